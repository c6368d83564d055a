"""A task from outside the package, whose answers are programs, trains through the command line."""

import shutil
from importlib import import_module
from pathlib import Path

import pytest

import svr_lightning as svr
from svr_lightning.core.types import Problem
from tests import forked
from tests.commands import ROOT, SMALL, jsonl, write_jsonl

EXAMPLE = ROOT / "examples" / "sorting_task.py"
ROW = {"inputs": [[3, 1, 2], [], [5, 5, 0]], "outputs": [[1, 2, 3], [], [0, 5, 5]]}

# The policy that the package ships writes arithmetic, and here an expression is a program too. Its
# outputs are never right, so each is noted where the task sees it; some problems cannot be graded.
NOTED = """
import os
from svr_lightning.tasks import GradingError
from my_package.sorting import Sorting as Base

class Sorting(Base):
    timeout = 20

    def grade(self, completion, problem):
        with open(os.environ["GRADED"], "a") as file:
            file.write(f"{problem.id} {os.getpid()}\\n")
        if problem.id.endswith("1"):
            raise GradingError("no sandbox today")
        return super().grade(completion, problem)
"""

CONFIG = """
trainer: {max_steps: 2, val_check_interval: null, limit_val_batches: 0}
model:
  updates_per_rollout: 1
  sampling: {max_completion_tokens: 48}
data:
  problems_per_step: 2
  train:
    name: sorting
    task: my_package.noted.Sorting
    path: PATH
    split: train
  val: []
"""


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "my_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    shutil.copy(EXAMPLE, folder / "sorting.py")
    (folder / "noted.py").write_text(NOTED)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_two_steps_through_the_command_line_without_touching_the_package(package):
    rows = write_jsonl(package / "rows.jsonl", ({**ROW, "id": f"s{i}"} for i in range(4)))
    config = package / "sorting.yaml"
    config.write_text(CONFIG.replace("PATH", str(rows)))
    graded = package / "graded.txt"
    command = ["fit", *SMALL, "--config", str(config)]
    command += ["--trainer.default_root_dir", str(package / "run")]
    printed = package / "log"
    code = forked.wait(forked.start(printed, *command, GRADED=str(graded)))
    assert code == 0, printed.read_text()[-3000:]
    assert "problem s1: counted as wrong, not graded: no sandbox today" in printed.read_text()
    seen = [line.split() for line in graded.read_text().splitlines()]
    assert {name for name, _ in seen} == {"s0", "s1", "s2", "s3"}
    logged = jsonl(package / "run" / "rollouts.jsonl")
    assert {record["step"] for record in logged} == {1, 2}
    turns = [turn for record in logged for turn in record["turns"]]
    assert len(turns) == len(seen)
    assert not any(turn["correct"] for turn in turns)
    assert "my_package.noted.Sorting" in (package / "run" / "config.yaml").read_text()


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
