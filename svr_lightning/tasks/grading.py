"""Labels of completions, by the paper's rule or another grader.

Training rewards are always the paper's. An evaluation can choose a grader. Nothing that
builds an SVR prompt imports this.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from svr_lightning.core.types import Problem, ScoredTurn, Turn
from svr_lightning.errors import one_line
from svr_lightning.tasks import get_task, symbolic
from svr_lightning.tasks.base import GradingError, Task
from svr_lightning.tasks.fields import shown
from svr_lightning.tasks.latex import MAX_ANSWER, is_understood, normalise, read_number

log = logging.getLogger(__name__)


class Grader:
    """Decides whether an answer is correct: here by the task's own rule, as in the paper."""

    name = "paper"

    def prepare(self) -> None:
        """Called before the first answer, to fail early if nothing can be graded here.

        Raises:
            ConfigError: saying why not.
        """

    def grade(self, task: Task, completion: str, problem: Problem) -> bool:
        """Whether the completion's answer is correct.

        Raises:
            GradingError: if it could not be decided within the limits of time and memory.
        """
        return task.grade(completion, problem)


class SymbolicGrader(Grader):
    """The paper's rule, or else mathematical equality with the reference.

    It differs from the paper's for tasks that are :attr:`Task.mathematical`.
    """

    name = "symbolic"

    def prepare(self) -> None:
        """Start the worker process, and compare one pair of answers in it."""
        symbolic.prepare()

    def grade(self, task: Task, completion: str, problem: Problem) -> bool:
        """Compare in the worker process two answers that differ by the paper's rule.

        Raises:
            GradingError: if the worker ran out of time or memory, died or did not start.
        """
        if task.grade(completion, problem):
            return True
        answer = task.extract_answer(completion) if task.mathematical else None
        if answer is None:
            return False
        both = answer, problem.reference
        settled = max(map(len, both)) > MAX_ANSWER or all(map(_is_plain_number, both))
        return not settled and symbolic.equal_answers_apart(*both)


def _is_plain_number(text: str) -> bool:
    """Whether the paper's rule reads it as a number: between two of them its answer is final."""
    percent = "%" in text or "percent" in text
    return not percent and read_number(normalise(text)) is not None


GRADERS: dict[str, Grader] = {grader.name: grader for grader in (Grader(), SymbolicGrader())}


def get_grader(name: str) -> Grader:
    """The grader called ``name``.

    Raises:
        ValueError: naming the known graders.
    """
    if name not in GRADERS:
        raise ValueError(f"unknown grader {name!r}; known: {', '.join(sorted(GRADERS))}")
    return GRADERS[name]


@dataclass(frozen=True)
class Label:
    """y_t of one completion."""

    correct: bool
    error: str | None = None
    """Why the grader could not decide; the completion then counts as wrong."""


def label(task: Task, part: str, problem: Problem, grader: Grader | None = None) -> Label:
    """Grade the final part of a completion; one that cannot be graded is wrong, with the reason."""
    try:
        return Label((grader or GRADERS["paper"]).grade(task, part, problem))
    except GradingError as error:
        message = one_line(f"problem {problem.id}: counted as wrong, not graded: {error}")
        log.warning("%s", message)
        return Label(correct=False, error=str(error))


def check_reference(problem: Problem) -> None:
    r"""Grade a reference against itself, where answers are written like references.

    That is so for :attr:`Task.mathematical` tasks, whose answers are boxed.

    Raises:
        ValueError: if no answer could equal it.
    """
    task = get_task(problem.task)
    if not task.mathematical or not problem.has_reference:
        return
    answer = f"<answer>\\boxed{{{problem.reference}}}</answer>"
    if not label(task, answer, problem).correct:
        raise ValueError(
            f"the reference {shown(problem.reference)} does not equal itself, so no answer could "
            "be correct; it must be the answer alone"
        )


def unread_references(problems: Iterable[Problem]) -> list[str]:
    """References with digits that no grader reads, so that only the same text equals them.

    They are those of :attr:`Task.mathematical` tasks that the task does not read as a number; see
    :func:`.latex.is_understood`.
    """
    return [
        problem.reference
        for problem in problems
        if (task := get_task(problem.task)).mathematical
        and getattr(task.answer_form(problem.reference), "number", None) is None
        and not is_understood(problem.reference)
    ]


Formats = Callable[[Task, Turn], tuple[float, float]]
"""Takes a task and a turn; returns r_taskfmt and r_scfmt."""


def score_turns(problem: Problem, turns: Sequence[Turn], formats: Formats) -> list[ScoredTurn]:
    """Grade every turn of one trajectory: y_t and the two format scores beside v_t, c_t, q_t."""
    task = get_task(problem.task)
    scored = []
    for turn in turns:
        text = turn.completion.text
        verdict, confidence, truncated, *_ = turn.signals
        task_format, self_check_format = formats(task, turn)
        scored.append(
            ScoredTurn(
                correct=label(task, turn.reading.final_part(text), problem).correct,
                truncated=truncated,
                verdict=verdict,
                confidence=confidence,
                completion_tokens=turn.completion.completion_tokens,
                task_format=task_format,
                self_check_format=self_check_format,
                has_answer=turn.answer is not None,
                text=text,
                problem=problem,
            )
        )
    return scored
