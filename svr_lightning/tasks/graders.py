"""Notions of correctness, by name: the paper's rule, and mathematical equality.

Training rewards are always the paper's. Evaluation and ``regrade`` can choose.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from svr_lightning.core.types import Problem
from svr_lightning.tasks.base import Task
from svr_lightning.tasks.latex import MAX_ANSWER, normalise, read_number
from svr_lightning.tasks.symbolic import equal_answers_apart


class Grader(ABC):
    """Decides whether a completion's answer is correct."""

    name: str

    @abstractmethod
    def grade(self, task: Task, completion: str, problem: Problem) -> bool:
        """Whether the completion's answer is correct.

        Raises:
            GradingError: if it could not be found out within the bounds of time and memory.
        """


class PaperGrader(Grader):
    """The task's own rule, as in the paper."""

    name = "paper"

    def grade(self, task: Task, completion: str, problem: Problem) -> bool:
        """:meth:`Task.grade`; never raises."""
        return task.grade(completion, problem)


class SymbolicGrader(Grader):
    """The paper's rule, or else mathematical equality with the reference.

    It differs from the paper's for tasks that are :attr:`Task.mathematical`.
    """

    name = "symbolic"

    def __init__(self, compare: Callable[[str, str], bool] = equal_answers_apart) -> None:
        self._compare = compare

    def grade(self, task: Task, completion: str, problem: Problem) -> bool:
        """Compare in the worker process what the paper's rule tells apart.

        Raises:
            GradingError: if the worker ran out of time or memory, died or did not start.
        """
        if task.grade(completion, problem):
            return True
        answer = task.extract_answer(completion) if task.mathematical else None
        if answer is None or max(len(answer), len(problem.reference)) > MAX_ANSWER:
            return False
        if _are_plain_numbers(answer, problem.reference):
            return False
        return self._compare(answer, problem.reference)


def _are_plain_numbers(answer: str, reference: str) -> bool:
    """Whether the paper's rule has read both as numbers, so that nothing is left to find out."""
    both = (answer, reference)
    percent = any("%" in text or "percent" in text for text in both)
    return not percent and all(read_number(normalise(text)) is not None for text in both)


GRADERS: dict[str, Grader] = {grader.name: grader for grader in (PaperGrader(), SymbolicGrader())}


def get_grader(name: str) -> Grader:
    """The grader called ``name``.

    Raises:
        ValueError: naming the known graders.
    """
    if name not in GRADERS:
        raise ValueError(f"unknown grader {name!r}; known: {', '.join(sorted(GRADERS))}")
    return GRADERS[name]
