"""A task from outside the package, whose answers are programs."""

import shutil
from importlib import import_module
from pathlib import Path

import pytest

import svr_lightning as svr
from svr_lightning.core.types import Problem
from tests.commands import ROOT

EXAMPLE = ROOT / "examples" / "sorting_task.py"
ROW = {"inputs": [[3, 1, 2], [], [5, 5, 0]], "outputs": [[1, 2, 3], [], [0, 5, 5]]}


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "my_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    shutil.copy(EXAMPLE, folder / "sorting.py")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


SORT = "def solve(xs): return sorted(xs)"


@pytest.mark.parametrize(
    ("program", "right"),
    [
        (SORT, True),
        ("def solve(xs):\n    xs.sort()\n    return xs", True),
        ("def solve(xs): return xs", False),
        ("def solve(xs): return 1 / 0", False),
        ("3 + 5", False),
        ("import sys; sys.exit(0)", False),
        ("while True: pass", False),
        ("while True: print('x' * 1000)", False),
        (f"xs = bytearray(10**9)\n{SORT}", False),
        (f"open(PATH, 'w').write('x')\n{SORT}", False),
        (f"open(PATH)\n{SORT}", False),
        (f"import os\nos.close(0)\nimport socket\nsocket.socket()\n{SORT}", False),
        (f"import os\nos.fork()\n{SORT}", False),
        (f"import os\nos.system('true') and 1 / 0\n{SORT}", False),
        ("def solve(xs): return solve(xs)", False),
        ("not python", False),
        ("#" * 20_000 + "\n" + SORT, False),
    ],
)
def test_programs_run_in_a_process_that_can_do_nothing_else(package, program, right):
    task = import_module("my_package.sorting").Sorting()
    task.timeout = 1 if "while" in program else 20
    leak = package / "leak"
    text = program.replace("PATH", repr(str(leak)))
    problem = task.from_row(ROW)
    assert task.grade(f"<answer>{text}</answer>", problem) is right
    assert not leak.exists()
    assert task.format_score(f"<answer>{text}</answer>") == 1.0


def test_the_example_reads_its_rows_and_words_its_own_prompts(package):
    task = svr.get_task("my_package.sorting.Sorting")
    problem = task.from_row(ROW)
    assert isinstance(problem, Problem)
    assert (problem.task, problem.reference) == (task.name, ROW["outputs"])
    assert problem.payload == {"inputs": ROW["inputs"]}
    assert "careful programmer" in svr.first_turn_messages(task, problem)[0]["content"]
    assert not task.grade("no program", problem)
    with pytest.raises(ValueError, match="fields 'inputs' and 'outputs'"):
        task.from_row({"inputs": "3 1 2"})
