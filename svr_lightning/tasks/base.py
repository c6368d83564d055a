"""The interface of a task: reads rows, defines the form of an answer, extracts and grades it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from svr_lightning.core.parsing import (
    ANSWER_CLOSE,
    ANSWER_OPEN,
    final_part,
    read_completion,
)
from svr_lightning.core.prompts import AnswerStyle, system_prompt
from svr_lightning.core.types import Problem, Reading

Row = Mapping[str, Any]
"""One record of a data set, by column name."""
TOLERANCE = Fraction(1, 10**5)
"""Absolute, between two numbers (the paper's 1e-5), however small the reference is."""


class GradingError(RuntimeError):
    """An answer could not be graded: the process that grades it died, or ran out of time."""


@dataclass(frozen=True)
class AnswerForm:
    """An answer in normal form."""

    text: str
    """The normalised text. Never empty."""
    number: Fraction | None = None
    """Its value, where answers are compared as numbers too."""

    def same(self, other: "AnswerForm") -> bool:
        """Whether the grader takes the two as equal: the same text, or close numbers.

        Not transitive: of three numbers in a row the outer two may be too far apart.
        """
        if self.number is None or other.number is None:
            return self.text == other.text
        return abs(self.number - other.number) < TOLERANCE


class AnswerNumbers:
    """Numbers the answers to one problem: equal numbers for answers that the task considers equal.

    An answer has the number of the first one that it equals, from 1; 0 if the task reads none.

    Args:
        form_of: the task's :meth:`Task.answer_form`.
    """

    def __init__(self, form_of: Callable[[str], AnswerForm | None]) -> None:
        self._form_of = form_of
        self._forms: list[AnswerForm] = []
        self._known: dict[str | None, int] = {None: 0}

    def number(self, answer: str | None) -> int:
        """The number of an answer as the task extracts it."""
        if answer not in self._known:
            self._known[answer] = self._new(self._form_of(answer or ""))
        return self._known[answer]

    def _new(self, form: AnswerForm | None) -> int:
        if form is None:
            return 0
        for number, other in enumerate(self._forms, start=1):
            if other.same(form):
                return number
        self._forms.append(form)
        return len(self._forms)


class Task(ABC):
    """A domain: row schema, answer convention and evaluator.

    A task from outside this package has the name ``package.module.Class``, by which
    :func:`get_task` finds it again; it is made without arguments. Settings are class attributes,
    and a variant is a subclass.
    """

    name: ClassVar[str]
    style: ClassVar[AnswerStyle]
    """The task's part of the prompts."""
    columns: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """What :meth:`from_row` reads: the names that each column may have. The first in a row counts.
    """
    max_completion_tokens: int = 2048
    """L_gen: completion limit of an evaluation whose configuration sets none."""
    takes_first: bool = False
    """Whether :meth:`extract_answer` takes the first of several answers rather than the last."""
    mathematical: bool = False
    """Whether answers and references are LaTeX, which the grader ``symbolic`` can compare."""

    def __init_subclass__(cls) -> None:
        """Name a class that sets no name: its base's name would lead to the base's grader."""
        if "name" not in vars(cls):
            cls.name = f"{cls.__module__}.{cls.__qualname__}"

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
        """A problem from a user's question. It has no reference, so it is not graded."""
        return Problem(id="", task=self.name, question=question, reference="")

    def read(
        self, completion: str, *, truncated: bool = False, plain: str | None = None
    ) -> Reading:
        """The answer of a completion, and which of its text decides: :func:`read_completion`."""
        return read_completion(
            completion,
            self.extract_answer,
            first=self.takes_first,
            truncated=truncated,
            plain=plain,
        )

    @abstractmethod
    def extract_answer(self, completion: str) -> str | None:
        """The answer as written, or None if none can be read.

        Both this and :meth:`grade` are called with the final part of a completion, what follows
        its last ``</think>``.
        """

    def answer_form(self, answer: str) -> AnswerForm | None:
        """The extracted answer in the form that is compared; None if it has none.

        Grading and majority voting take answers as equal whose forms are the same. By default the
        form is the text with white space reduced to single spaces.
        """
        text = " ".join(answer.split())
        return AnswerForm(text) if text else None

    def grade(self, completion: str, problem: Problem) -> bool:
        """y_t: whether the completion's answer is correct. Never runs model text in this process.

        By default it is if it has the same form as the reference.

        Raises:
            GradingError: if the grader could not decide. Nothing else is ever raised.
        """
        answer = self.answer_form(self.extract_answer(completion) or "")
        reference = self.answer_form(str(problem.reference))
        return answer is not None and reference is not None and answer.same(reference)

    def format_score(self, completion: str) -> float:
        """r_taskfmt in [0, 1]: whether the whole completion follows the task's output convention.

        By default 1.0 if :meth:`extract_answer` finds an answer, else 0.0.
        """
        return float(self.extract_answer(final_part(completion)) is not None)


def first_answer(completion: str) -> str | None:
    """The text between the final part's first opening tag and the next closing tag, or None."""
    _, _, rest = final_part(completion).partition(ANSWER_OPEN)
    content, closed, _ = rest.partition(ANSWER_CLOSE)
    return content if closed else None


def last_answer(completion: str) -> str | None:
    """The text in the final part's last tags that are closed, or None."""
    before, _, _ = final_part(completion).rpartition(ANSWER_CLOSE)
    _, opened, content = before.rpartition(ANSWER_OPEN)
    return content.partition(ANSWER_CLOSE)[0] if opened else None
