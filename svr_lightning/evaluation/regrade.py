"""Recorded turns graded again, by another notion of correctness."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from svr_lightning.core.types import Problem
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.records import SampleRecord, TurnRecord
from svr_lightning.tasks import get_task
from svr_lightning.tasks.graders import Grader
from svr_lightning.tasks.grading import label


@dataclass(frozen=True)
class Change:
    """A turn whose label changed."""

    id: str
    turn: int
    answer: str | None
    reference: Any
    correct: bool
    """The new label."""


@dataclass
class Changes:
    """The changes of one data set."""

    turns: int = 0
    changed: list[Change] = field(default_factory=list)
    undecided: int = 0
    """Turns that could not be graded and count as wrong."""

    def count(self, *, correct: bool) -> int:
        """Turns that became right, or wrong."""
        return sum(change.correct is correct for change in self.changed)


def regrade(
    records: Sequence[SampleRecord], grader: Grader
) -> tuple[list[SampleRecord], dict[str, Changes]]:
    """Grade every recorded turn again; nothing else of a record changes.

    Returns:
        The records with new labels, and what changed, by data set. A turn that cannot be graded
        counts as wrong and says why in ``grading_error``.

    Raises:
        ConfigError: naming a record that has no reference, or does not name a known task.
    """
    changes: dict[str, Changes] = {}
    graded = []
    for record in records:
        problem = gradable(record)
        seen = changes.setdefault(record.dataset, Changes())
        turns = tuple(_graded(turn, problem, grader) for turn in record.turns)
        for old, new in zip(record.turns, turns, strict=True):
            seen.turns += 1
            seen.undecided += new.grading_error is not None
            if new.correct != old.correct:
                change = Change(
                    problem.id, new.turn, new.answer, problem.reference, bool(new.correct)
                )
                seen.changed.append(change)
        graded.append(replace(record, turns=turns))
    return graded, changes


def gradable(record: SampleRecord) -> Problem:
    """The problem of a record; raises ConfigError if its answers cannot be graded."""
    try:
        problem = record.problem()
        get_task(problem.task)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not record.has_reference:
        where = "/".join(record.key)
        raise ConfigError(f"{where} has no reference answer, so that it cannot be graded")
    return problem


def _graded(turn: TurnRecord, problem: Problem, grader: Grader) -> TurnRecord:
    new = label(get_task(problem.task), turn.text, problem, grader)
    return replace(turn, correct=new.correct, grading_error=new.error)
