"""The demonstrator of the embedded Countdown.

A completion looks like this::

    <think>8+4=12,12+2=14? 16</think>
    <answer>(8+4)+2</answer>
    <self_check>VERDICT: CORRECT; CONFIDENCE: 0.95</self_check>

One derivation a turn, each value computed from its operands, then the target. No word says whether
it is reached: to verify is to compare the last two numbers, and the demonstrator's verdict hardly
does. Another attempt is either a solution, which is what the policy's intuition learns
from, or the next derivation in :func:`~tools.warmstart.countdown_problems.search_order`.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from svr_lightning.core.types import Problem
from svr_lightning.tasks import get_task
from tools.warmstart.attempts import Attempt, Demonstrations
from tools.warmstart.countdown_problems import (
    LARGEST_TARGET,
    Derivation,
    Split,
    search_order,
    universe,
)
from tools.warmstart.documents import Document

SOLUTION_CHANCE = 0.9
"""Probability that a first attempt is a solution."""
RIGHT_DRAFT_CHANCE = 0.45
JUMP_CHANCE = 0.6
"""Probability that another attempt is a solution instead of the next derivation."""
SEVERAL_SHARE = 0.85
"""This share of the demonstrations is of problems with several solutions, as the splits have."""


def documents(seed: int, split: str = "train", informative: float = 1.0) -> Iterator[Document]:
    """Endless demonstrations; see :class:`~tools.warmstart.attempts.Demonstrations`."""
    solver = CountdownSolver(cast(Split, split))
    return Demonstrations(solver=solver, informative=informative).stream(seed)


@dataclass(frozen=True)
class CountdownSolver:
    """Attempts of one derivation each."""

    split: Split = "train"

    def problem(self, rng: random.Random) -> Problem:
        """A problem in some order."""
        several = rng.random() < SEVERAL_SHARE
        numbers, target = rng.choice(universe(self.split) if several else universe(self.split, 1))
        row = {"id": "t", "nums": rng.sample(numbers, len(numbers)), "target": target}
        return get_task("countdown").from_row(row)

    def first(self, rng: random.Random, problem: Problem) -> Attempt:
        """A solution or any derivation within the range of targets."""
        return self._attempt(rng, problem, SOLUTION_CHANCE)

    def draft(self, rng: random.Random, problem: Problem) -> Attempt:
        """A solution or any derivation within the range of targets."""
        return self._attempt(rng, problem, RIGHT_DRAFT_CHANCE)

    def another(self, rng: random.Random, problem: Problem, draft: Attempt) -> Attempt:
        """Another solution, or the derivation after the draft's."""
        options = search_order(tuple(problem.payload["nums"]))
        place = [reasoning(problem, option) for option in options].index(draft.reasoning)
        solutions = [
            option
            for k, option in enumerate(options)
            if option.value == _target(problem) and k != place
        ]
        if solutions and rng.random() < JUMP_CHANCE:
            return attempt_of(problem, rng.choice(solutions))
        return attempt_of(problem, options[(place + 1) % len(options)])

    def _attempt(self, rng: random.Random, problem: Problem, chance: float) -> Attempt:
        options = search_order(tuple(problem.payload["nums"]))
        solutions = [option for option in options if option.value == _target(problem)]
        near = [option for option in options if option.value <= LARGEST_TARGET]
        return attempt_of(problem, rng.choice(solutions if rng.random() < chance else near))


def attempt_of(problem: Problem, derivation: Derivation) -> Attempt:
    """A derivation as an attempt."""
    return Attempt(
        reasoning=reasoning(problem, derivation),
        answer=derivation.expression,
        plan=derivation.first.task,
        correct=derivation.value == _target(problem),
    )


def reasoning(problem: Problem, derivation: Derivation) -> str:
    """Both steps, and the target beside the value that they reach."""
    return f"{derivation.text}? {_target(problem)}"


def _target(problem: Problem) -> int:
    return int(str(problem.reference))
