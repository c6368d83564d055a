"""An answer that cannot be graded is wrong and says why; any other error is raised."""

import logging

import pytest

from svr_lightning.core.prompts import AnswerStyle
from svr_lightning.core.types import Problem
from svr_lightning.tasks import Task
from svr_lightning.tasks.base import GradingError, Row
from svr_lightning.tasks.grading import Label, label


class Sandboxed(Task):
    """Its sandbox fails on ``?``; on ``!`` the task itself does."""

    name = "sandboxed"
    style = AnswerStyle(role="", request="", reminder="", draft_limit=9)

    def from_row(self, row: Row) -> Problem:
        return Problem(id="1", task=self.name, question="?", reference="b")

    def extract_answer(self, completion: str) -> str | None:
        return completion

    def grade(self, completion: str, problem: Problem) -> bool:
        if completion == "?":
            raise GradingError("the sandbox is gone")
        if completion == "!":
            raise KeyError(completion)
        return bool(completion == problem.reference)


def test_an_answer_that_cannot_be_graded_is_wrong_and_logged_by_problem(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = Sandboxed()
    assert [label(task, text, task.from_row({})) for text in "ab"] == [Label(False), Label(True)]
    with caplog.at_level(logging.WARNING):
        found = label(task, "?", task.from_row({}))
    assert found == Label(correct=False, error="the sandbox is gone")
    assert "problem 1: counted as wrong, not graded: the sandbox is gone" in caplog.text


def test_an_error_that_is_no_grading_error_is_raised() -> None:
    task = Sandboxed()
    with pytest.raises(KeyError):
        label(task, "!", task.from_row({}))
