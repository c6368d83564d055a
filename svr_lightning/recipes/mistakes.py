"""Wrong answers of earlier steps, kept for later ones."""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from svr_lightning.core.types import Problem
from svr_lightning.recipes.base import Group


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A wrong answer and the optimizer step that it was given at."""

    problem: Problem
    draft: str
    truncated: bool
    step: int


class MistakePool:
    """A queue of wrong answers, the oldest first."""

    def __init__(self) -> None:
        self._queue: deque[Mistake] = deque()

    def add(self, mistakes: Sequence[Mistake]) -> None:
        """Put them behind all others."""
        self._queue.extend(mistakes)

    def forget(self, capacity: int, before: int) -> None:
        """Drop what is over ``capacity``, and what is from a step before ``before``."""
        while self._queue and (len(self._queue) > capacity or self._queue[0].step < before):
            self._queue.popleft()

    def newest(self) -> dict[str, Mistake]:
        """The newest one of each problem, by the problem's id."""
        return {mistake.problem.id: mistake for mistake in self._queue}

    def state(self) -> list[dict[str, Any]]:
        """All of it in plain values."""
        return [asdict(mistake) for mistake in self._queue]

    def load(self, state: Sequence[dict[str, Any]]) -> None:
        """Take a state back in the place of what is there."""
        self._queue = deque(_mistake(entry) for entry in state)


def mistakes_of(group: Group, step: int) -> list[Mistake]:
    """The wrong first answers of a group."""
    return [
        Mistake(
            problem=group.problem,
            draft=trajectory.turns[0].completion.text,
            truncated=trajectory.turns[0].completion.truncated,
            step=step,
        )
        for trajectory, scored in zip(group.trajectories, group.scored, strict=True)
        if not scored[0].correct
    ]


def _mistake(entry: dict[str, Any]) -> Mistake:
    return Mistake(**{**entry, "problem": Problem(**entry["problem"])})
