"""What a task is: how its rows read, how an answer is written, extracted and graded."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from svr_lightning.core.prompts import AnswerStyle, system_prompt
from svr_lightning.core.types import Problem
from svr_lightning.tasks.answers import AnswerForm

Row = Mapping[str, Any]
"""One record of a data set, under the column names it has on the hub."""


class GradingError(RuntimeError):
    """An answer could not be graded: the process that grades it died, or ran out of time."""


class Task(ABC):
    """A domain: row schema, answer convention and evaluator. Stateless."""

    name: str
    style: AnswerStyle
    max_completion_tokens: int
    """L_gen: completion limit in training."""
    length_scale: int
    """L_len: length-normalization scale of the solve reward."""
    grader: str = "paper"
    """Which notion of correctness :meth:`grade` applies; results name it."""
    mathematical: bool = False
    """Whether answers and references are LaTeX, which the grader ``symbolic`` can compare."""

    @property
    def system_prompt(self) -> str:
        """SVR's system message for this task."""
        return system_prompt(self.style)

    @abstractmethod
    def from_row(self, row: Row) -> Problem:
        """Turn a data set row into a problem.

        Raises:
            ValueError: naming the missing or malformed field.
        """

    def from_question(self, question: str) -> Problem:
        """A problem from a user's own words. It has no reference, so it is not graded."""
        return Problem(id="", task=self.name, question=question, reference="")

    @abstractmethod
    def extract_answer(self, completion: str) -> str | None:
        """The candidate answer as written, or None where none can be read."""

    def answer_form(self, answer: str) -> AnswerForm | None:
        """What :meth:`extract_answer` found, as the evaluator compares it; None where it cannot.

        Majority voting counts answers as one whose forms are the same. Here they are as written,
        but for white space.
        """
        text = " ".join(answer.split())
        return AnswerForm(text) if text else None

    @abstractmethod
    def grade(self, completion: str, problem: Problem) -> bool:
        """y_t: whether the completion's answer is correct. Never evaluates code.

        Raises:
            GradingError: if the grader could not decide. Nothing else is ever raised.
        """

    @abstractmethod
    def format_score(self, completion: str) -> float:
        """r_taskfmt: whether the answer follows the task's output convention."""
