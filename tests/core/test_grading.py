"""Labels in line and in threads: the same, in order, and wrong where nothing can be decided."""

import logging
import threading
from concurrent.futures import wait

import pytest

from svr_lightning.core.prompts import AnswerStyle
from svr_lightning.core.types import Problem
from svr_lightning.tasks import TASKS, Task
from svr_lightning.tasks.base import GradingError, Row
from svr_lightning.tasks.grading import GradingPool, Label, label


class Slow(Task):
    """Grades the answers of one problem in the order in which the test lets them go."""

    name = "slow"
    style = AnswerStyle(role="", request="", reminder="", draft_limit=9)
    grading_workers = 3

    def __init__(self) -> None:
        self.started = {text: threading.Event() for text in "abc?"}
        self.gates = {text: threading.Event() for text in "abc?"}
        self.threads: set[str] = set()

    def from_row(self, row: Row) -> Problem:
        return Problem(id="1", task=self.name, question="?", reference="b")

    def extract_answer(self, completion: str) -> str | None:
        return completion

    def grade(self, completion: str, problem: Problem) -> bool:
        self.threads.add(threading.current_thread().name)
        self.started[completion].set()
        assert self.gates[completion].wait(30)
        if completion == "?":
            raise GradingError("the sandbox is gone")
        return bool(completion == problem.reference)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Slow:
    task = Slow()
    monkeypatch.setitem(TASKS, "slow", task)
    return task


def test_labels_come_in_the_order_of_the_completions_however_grading_ends(task: Slow) -> None:
    with GradingPool() as pool:
        handles = pool.submit(task.from_row({}), ["a", "b", "c"])
        for event in (task.started[text] for text in "abc"):
            assert event.wait(30)  # all three at once, while this thread goes on
        for text, handle in zip("cba", reversed(handles), strict=True):
            task.gates[text].set()
            wait([handle], 30)
        assert [handle.result() for handle in handles] == [Label(False), Label(True), Label(False)]
    assert len(task.threads) == 3
    assert not any(thread.name in task.threads for thread in threading.enumerate())


def test_an_answer_that_cannot_be_graded_is_wrong_and_logged_by_problem(
    task: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    task.gates["?"].set()
    with caplog.at_level(logging.WARNING), GradingPool() as pool:
        (handle,) = pool.submit(task.from_row({}), ["?"])
        found = handle.result()
    assert found == Label(correct=False, error="the sandbox is gone")
    assert "problem 1: counted as wrong, not graded: the sandbox is gone" in caplog.text
    assert label(task, "?", task.from_row({})) == found


def test_a_task_without_workers_is_graded_at_once_in_the_calling_thread() -> None:
    countdown = TASKS["countdown"]
    problem = countdown.from_row({"nums": [3, 5], "target": 8})
    before = threading.active_count()
    with GradingPool() as pool:
        handles = pool.submit(problem, ["<answer>3+5</answer>", "<answer>3*5</answer>"])
        assert all(handle.done() for handle in handles)
        assert threading.active_count() == before
    assert [handle.result().correct for handle in handles] == [True, False]


def test_an_error_that_is_no_grading_error_is_raised(task: Slow) -> None:
    with GradingPool() as pool:
        (handle,) = pool.submit(task.from_row({}), ["unheard of"])
        with pytest.raises(KeyError):
            handle.result()
