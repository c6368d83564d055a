"""What a task is: how its rows read, how an answer is written, extracted and graded."""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from svr_lightning.core.prompts import AnswerStyle, system_prompt
from svr_lightning.core.types import Problem
from svr_lightning.tasks.answers import AnswerForm

Row = Mapping[str, Any]
"""One record of a data set, by column name."""


class GradingError(RuntimeError):
    """An answer could not be graded: the process that grades it died, or ran out of time."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a task reads from the rows of a data set."""

    names: tuple[str, ...]
    """The column's name, and others it may have: the first one that a row has is read."""
    meaning: str
    required: bool = True


class Task(ABC):
    """A domain: row schema, answer convention and evaluator.

    A task from outside this package has the name ``package.module.Class``, followed by its init
    arguments as JSON where it has any; :func:`get_task` finds it again by that name. Init
    arguments must therefore be JSON values, and a task must not change after construction.
    """

    name: str
    style: ClassVar[AnswerStyle]
    """The task's part of the prompts."""
    columns: ClassVar[tuple[Column, ...]] = ()
    """What :meth:`from_row` reads. Errors and documentation list it."""
    max_completion_tokens: int = 2048
    """L_gen: completion limit of an evaluation whose configuration sets none."""
    grading_workers: int = 0
    """Threads in which :meth:`grade` runs while the engine generates. 0 grades in line: right for
    a grader that costs less than a millisecond. A task that starts a process per answer, or asks a
    sandbox, sets a number; its :meth:`grade` must then be thread-safe."""
    grader: str = "paper"
    """Which notion of correctness :meth:`grade` applies; results name it."""
    mathematical: bool = False
    """Whether answers and references are LaTeX, which the grader ``symbolic`` can compare."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Name the task after its class and its init arguments, unless the class has a name.

        Raises:
            TypeError: if an init argument is not a JSON value.
        """
        task = super().__new__(cls)
        if not hasattr(cls, "name"):
            task.name = _name(cls, task, args, kwargs)
        return task

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

        Majority voting counts answers as one whose forms are the same. By default the text itself,
        with white space reduced to single spaces.
        """
        text = " ".join(answer.split())
        return AnswerForm(text) if text else None

    @abstractmethod
    def grade(self, completion: str, problem: Problem) -> bool:
        """y_t: whether the completion's answer is correct. Never runs model text in this process.

        Raises:
            GradingError: if the grader could not decide. Nothing else is ever raised.
        """

    def format_score(self, completion: str) -> float:
        """r_taskfmt in [0, 1]: whether the answer follows the task's output convention.

        By default 1.0 where :meth:`extract_answer` finds an answer, else 0.0.
        """
        return 0.0 if self.extract_answer(completion) is None else 1.0


def _name(cls: type[Task], task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    path = f"{cls.__module__}.{cls.__qualname__}"
    signature = inspect.signature(cls.__init__)
    given = signature.bind(task, *args, **kwargs).arguments
    del given[next(iter(signature.parameters))]
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(name, {})
    try:
        return f"{path} {json.dumps(given, sort_keys=True)}" if given else path
    except TypeError as error:
        raise TypeError(f"task {path}: init arguments must be JSON values: {error}") from None
