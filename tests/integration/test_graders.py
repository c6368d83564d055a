"""The two graders, and the process that the second one keeps."""

import os
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from svr_lightning.core.types import Problem
from svr_lightning.evaluation.evaluator import trajectory_record
from svr_lightning.tasks import get_task, symbolic
from svr_lightning.tasks.base import GradingError
from svr_lightning.tasks.grading import get_grader
from svr_lightning.tasks.symbolic import equal_answers_apart
from tests.commands import ROOT, ran
from tests.math_answers import EQUAL as EQUAL_BY_THE_PAPER
from tests.recipes import single_turn


def math(reference: str, task: str = "math") -> Problem:
    return Problem(id="a", task=task, question="?", reference=reference)


@pytest.mark.parametrize(
    ("task", "completion", "reference", "paper", "symbolic"),
    [
        ("math", r"\boxed{\sqrt{12}}", r"2\sqrt{3}", False, True),
        ("math", r"\boxed{0.5}", r"\frac12", True, True),
        ("math", r"\boxed{50\%}", "0.5", False, True),
        ("math", r"\boxed{3}", "4", False, False),
        ("math", r"\sqrt{12}", r"2\sqrt{3}", False, False),
        ("gsm8k", r"<answer>\boxed{2 \times 36}</answer>", "72", False, True),
        ("gsm8k", "#### 72", "72", True, True),
    ],
)
def test_symbolic_accepts_more_than_paper(task, completion, reference, paper, symbolic):
    problem = math(reference, task)
    assert get_grader("paper").grade(get_task(task), completion, problem) is paper
    assert get_grader("symbolic").grade(get_task(task), completion, problem) is symbolic


def test_what_the_papers_rule_or_plain_numbers_settle_starts_no_process(monkeypatch):
    monkeypatch.delattr(symbolic, "equal_answers_apart")
    grader = get_grader("symbolic")
    for pair in EQUAL_BY_THE_PAPER:
        completion = rf"<answer>\boxed{{{pair[0]}}}</answer>"
        assert grader.grade(get_task("math"), completion, math(pair[1])), pair
    assert not grader.grade(get_task("math"), r"\boxed{3}", math("4"))
    assert not grader.grade(get_task("math"), rf"\boxed{{{'x' * 2001}}}", math("4"))
    countdown = get_task("countdown").from_row({"nums": [3, 5], "target": 8})
    assert grader.grade(get_task("countdown"), "<answer>3+5</answer>", countdown)
    assert not grader.grade(get_task("countdown"), "<answer>2*4</answer>", countdown)


def test_an_unknown_grader_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown grader 'x'; known: paper, symbolic"):
        get_grader("x")


def worker() -> psutil.Process:
    return psutil.Process(symbolic._processes[os.getpid()].pid)


def test_a_worker_that_does_not_answer_is_killed_and_the_next_answer_is_compared(monkeypatch):
    assert equal_answers_apart("x+1", "1+x")
    stopped = worker()
    stopped.suspend()
    monkeypatch.setattr(symbolic, "SECONDS", 0.2)
    with pytest.raises(GradingError, match="took too much time or memory"):
        equal_answers_apart("x+2", "2+x")
    assert not stopped.is_running()
    monkeypatch.undo()
    assert equal_answers_apart("x+2", "2+x")


BARE = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
"""The interpreter without an environment."""
PACKAGES = Path(msgspec.__file__).parents[1]


def test_the_worker_has_the_packages_that_its_parent_has(tmp_path):
    here = tmp_path / "a:b"  # PYTHONPATH cannot name it
    here.symlink_to(PACKAGES)
    code = (
        "import sys; sys.path.insert(0, '')\n"
        "from svr_lightning.tasks.symbolic import equal_answers_apart\n"
        "print(equal_answers_apart('x+1', '1+x'), equal_answers_apart('x+1', 'x+2'))\n"
    )
    done = ran(BARE, "-P", "-c", code, cwd=here, PYTHONPATH=str(ROOT))
    assert done.stdout == "True False\n", done.stderr


def test_a_grader_that_cannot_work_here_says_so_before_the_first_answer(tmp_path):
    (tmp_path / "sympy.py").write_text("raise ImportError('this sympy is broken')\n")
    code = "from svr_lightning.tasks.grading import get_grader; get_grader('symbolic').prepare()"
    places = os.pathsep.join(map(str, (ROOT, tmp_path, PACKAGES)))
    done = ran(BARE, "-P", "-c", code, PYTHONPATH=places)
    assert "ConfigError: the grader 'symbolic' compares answers in a process" in done.stderr
    assert done.stderr.rstrip().endswith("ImportError: this sympy is broken")


def test_an_interrupted_comparison_does_not_answer_the_next_pair():
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symbolic, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            equal_answers_apart("x+2", "2+x")
    assert not equal_answers_apart("x+1", "x+2")


def test_the_worker_ends_with_its_parent_however_that_ends():
    code = (
        "import os, sys; from svr_lightning.tasks import symbolic\n"
        "from svr_lightning.tasks.grading import get_grader\n"
        "assert not {'sympy', 'torch', 'transformers'} & sys.modules.keys()\n"
        "assert symbolic.equal_answers_apart('x+1', '1+x')\n"
        "print(symbolic._processes[os.getpid()].pid, flush=True)\n"
    )
    for end in ("", "os.kill(os.getpid(), 9)"):
        pid = int(ran(sys.executable, "-c", code + end).stdout)
        deadline = time.monotonic() + 20
        while psutil.pid_exists(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not psutil.pid_exists(pid)


def test_an_evaluation_grades_as_it_was_told():
    one = single_turn(math(r"2\sqrt{3}"), r"\boxed{\sqrt{12}}")
    for grader, correct in (("paper", False), ("symbolic", True)):
        record = trajectory_record(one, "toy", grader)
        assert record.turns[0].correct is correct
        assert record.turns[0].grading_error is None
