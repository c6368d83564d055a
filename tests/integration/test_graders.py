"""The two graders, and the process that the second one keeps."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from svr_lightning.core.parsing import parse_self_check
from svr_lightning.core.types import Completion, Ending, FinishReason, Problem, Trajectory, Turn
from svr_lightning.evaluation.adaptive import trajectory_record
from svr_lightning.tasks import get_task, symbolic
from svr_lightning.tasks.base import GradingError
from svr_lightning.tasks.grading import SymbolicGrader, get_grader
from svr_lightning.tasks.symbolic import SymbolicWorker
from tests.math_answers import EQUAL as EQUAL_BY_THE_PAPER

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compare() -> Iterator[SymbolicWorker]:
    process = SymbolicWorker()
    yield process
    process.close()


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


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
def test_symbolic_accepts_more_than_paper(
    compare: SymbolicWorker, task: str, completion: str, reference: str, paper: bool, symbolic: bool
) -> None:
    problem = math(reference, task)
    assert get_grader("paper").grade(get_task(task), completion, problem) is paper
    grader = SymbolicGrader(compare.equal)
    assert grader.grade(get_task(task), completion, problem) is symbolic


def test_what_the_papers_rule_or_plain_numbers_settle_starts_no_process() -> None:
    process = SymbolicWorker()
    grader = SymbolicGrader(process.equal)
    for pair in EQUAL_BY_THE_PAPER:
        completion = rf"<answer>\boxed{{{pair[0]}}}</answer>"
        assert grader.grade(get_task("math"), completion, math(pair[1])), pair
    assert not grader.grade(get_task("math"), r"\boxed{3}", math("4"))
    assert not grader.grade(get_task("math"), rf"\boxed{{{'x' * 2001}}}", math("4"))
    countdown = get_task("countdown").from_row({"nums": [3, 5], "target": 8})
    assert grader.grade(get_task("countdown"), "<answer>3+5</answer>", countdown)
    assert not grader.grade(get_task("countdown"), "<answer>2*4</answer>", countdown)
    assert process.pid is None


def test_an_unknown_grader_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown grader 'x'; known: paper, symbolic"):
        get_grader("x")


def test_a_killed_worker_is_replaced_between_answers(compare: SymbolicWorker) -> None:
    assert compare.equal("x+1", "1+x")
    assert compare.pid is not None
    for of_parent in (True, False):
        parent = psutil.Process(compare.pid)
        (child,) = parent.children()
        (parent if of_parent else child).kill()  # a parent ends with its child
        deadline = time.monotonic() + 20
        while parent.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.05)
        assert compare.equal("x+1", "1+x")


def test_a_worker_that_does_not_answer_is_killed_and_the_next_answer_is_compared(
    compare: SymbolicWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare.equal("x+1", "1+x")
    stopped = compare.pid
    assert stopped is not None
    processes = [psutil.Process(stopped), *psutil.Process(stopped).children()]
    os.killpg(stopped, signal.SIGSTOP)
    monkeypatch.setattr(symbolic, "WALL_SECONDS", 0.2)
    with pytest.raises(GradingError, match="ran out of time or died"):
        compare.equal("x+2", "2+x")
    assert not psutil.wait_procs(processes, timeout=20)[1]
    monkeypatch.undo()
    assert compare.equal("x+2", "2+x")


def test_a_process_that_runs_out_of_memory_says_so_and_asks_to_be_replaced() -> None:
    done = python(
        "from svr_lightning.tasks import worker\n"
        "worker.equal_answers = lambda *_: bytearray(2**62)\n"
        'requests = [b\'["1", "2"]\'] * 2\n'
        "print(worker.serve(requests, print) == worker._GO_ON)"
    )
    assert done.stdout == "b'm\\n'\nTrue\n", done.stderr


def test_an_answer_that_uses_up_its_processor_time_ends_the_worker_in_the_kernel() -> None:
    done = python(
        "import itertools; from svr_lightning.tasks import worker\n"
        "worker.CPU_SECONDS = 0.1\n"
        "worker.equal_answers = lambda *_: sum(itertools.repeat(1))\n"
        'worker.serve([b\'["1", "2"]\'], print)'
    )
    assert done.returncode == -signal.SIGPROF, done.stderr


LOCKED = """
import ast, builtins, ctypes, os, socket, subprocess, sys, sympy
from sympy.parsing.sympy_parser import parse_expr
from svr_lightning.tasks import worker
assert not {"torch", "transformers"} & sys.modules.keys()
kept = eval, exec, compile, open
code = compile("1", "", "eval")
worker.prepare()
worker.lock_down()
tries = {
    "eval": lambda: eval("1"), "exec": lambda: exec("1"),
    "compile": lambda: compile("1", "", "eval"),
    "kept eval": lambda: kept[0]("1"), "kept exec": lambda: kept[1](code),
    "kept compile": lambda: kept[2]("1", "", "eval"), "ast": lambda: ast.parse("1"),
    "sympify": lambda: sympy.sympify("x+1"), "parse_expr": lambda: parse_expr("x+1"),
    "lambdify": lambda: sympy.lambdify(sympy.Symbol("x"), sympy.Symbol("x")),
    "open": lambda: open("/dev/null"), "kept open": lambda: kept[3]("/dev/null"),
    "os.open": lambda: os.open("/dev/null", 0), "socket": socket.socket, "fork": os.fork,
    "system": lambda: os.system("true"), "run": lambda: subprocess.run(["true"]),
    "import": lambda: __import__("this"), "library": lambda: ctypes.CDLL("libc.so.6"),
    "memory": lambda: bytearray(2**30), "input": input, "kill": lambda: os.kill(1, 0),
}
allowed = []
for name, attempt in tries.items():
    try:
        attempt()
        allowed.append(name)
    except (OSError, MemoryError, sympy.SympifyError):
        pass
print(allowed)
"""


def test_the_worker_cannot_run_code_open_anything_or_take_much_memory() -> None:
    done = python(LOCKED)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_the_worker_answers_after_it_has_locked_itself_down(compare: SymbolicWorker) -> None:
    assert compare.equal(r"\frac{\sinh x}{\cosh x}", r"\tanh x")
    assert compare.equal("x > 2", r"(2, \infty)")
    assert compare.equal(r"a^2 - b^2 + c x f", "(a-b)(a+b) + c x f")
    assert not compare.equal("\0" * 100, "\ud800")


def test_the_worker_ends_with_its_parent_however_that_ends() -> None:
    code = (
        "import os, sys; from svr_lightning.tasks.grading import get_grader\n"
        "from svr_lightning.tasks.symbolic import _shared, equal_answers_apart\n"
        "assert not {'sympy', 'torch', 'transformers'} & sys.modules.keys()\n"
        "assert equal_answers_apart('x+1', '1+x')\n"
        "print(_shared.pid, flush=True)\n"
    )
    for end in ("", "os.kill(os.getpid(), 9)"):
        pid = int(python(code + end).stdout)
        deadline = time.monotonic() + 20
        while psutil.pid_exists(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not psutil.pid_exists(pid)


def trajectory(text: str, reference: str) -> Trajectory:
    completion = Completion(
        prompt_ids=(1,),
        token_ids=(2,),
        logprobs=(-1.0,),
        text=text,
        finish_reason=FinishReason.STOP,
        policy_version=0,
    )
    turn = Turn(index=1, completion=completion, check=parse_self_check(text))
    return Trajectory(problem=math(reference), sample=0, turns=(turn,), ending=Ending(1, 1, False))


def test_an_evaluation_grades_as_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    one = trajectory(r"\boxed{\sqrt{12}}", r"2\sqrt{3}")
    for grader, correct in (("paper", False), ("symbolic", True)):
        record = trajectory_record(one, "toy", grader)
        assert record.turns[0].correct is correct
        assert record.turns[0].grading_error is None

    def gone(*_: str) -> bool:
        raise GradingError("gone")

    monkeypatch.setattr(get_grader("symbolic"), "_compare", gone)
    turn = trajectory_record(one, "toy", "symbolic").turns[0]
    assert (turn.correct, turn.grading_error) == (False, "gone")
