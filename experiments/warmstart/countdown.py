"""The demonstrator of the embedded Countdown.

A completion looks like this::

    <think>8+4=12,12+2=14? 16</think>
    <answer>(8+4)+2</answer>
    <self_check>VERDICT: CORRECT; CONFIDENCE: 0.95</self_check>

One derivation a turn, each value computed from its operands, then the target. No word says whether
it is reached: to verify is to compare the last two numbers. Another attempt is either a solution,
which is what the policy's intuition learns from, or the next derivation in
:func:`~svr_lightning.tiny.problems.search_order`.
"""

import random
from dataclasses import dataclass

from experiments.warmstart.attempts import Attempt, Demonstrations, Lesson
from svr_lightning.core.types import Problem
from svr_lightning.tasks import get_task
from svr_lightning.tiny.problems import LARGEST_TARGET, Derivation, search_order, universe

SOLUTION_CHANCE, FIRST_LESSON_CHANCE = 0.85, 0.5
"""Probability that a first attempt is a solution; and in the first lesson."""
RIGHT_DRAFT_CHANCE = 0.45
JUMP_CHANCE = 0.6
"""Probability that another attempt is a solution instead of the next derivation."""
SEVERAL_SHARE = 0.85
"""This share of the demonstrations is of problems with several solutions, as the splits have."""
KEEP_DOUBTED = {True: 0.05, False: 0.0}
"""Probability that a refinement keeps a doubted answer, in the last lesson. The other answers are
many, each less likely than a copy of the draft: greedily, a larger probability keeps it always."""
HONEST = {True: 0.98, False: 0.04}
"""Probability of the verdict CORRECT on right and on wrong answers, in the first two lessons."""
OVERCONFIDENT = {True: 0.97, False: 0.6}
"""The same in the last one."""
OVERCONFIDENT_CONFIDENCES = {
    True: ((0.95, 50), (0.9, 34), (0.85, 11), (0.8, 3), (0.7, 2)),
    False: ((0.95, 22), (0.9, 33), (0.85, 27), (0.8, 10), (0.7, 8)),
}


def lessons(informative: float = 1.0) -> tuple[Lesson, ...]:
    """The whole warm start: to compare a value with the target, then to solve, then to trust it.

    The first lesson is short, and half of its answers are wrong: nothing else taught a policy of
    this size to compare. The last one makes it as overconfident as language models are.
    """
    compare = Demonstrations(
        solver=CountdownSolver(solution_chance=FIRST_LESSON_CHANCE),
        kinds=("svr",),
        first_turns=1.0,
        informative=informative,
        trust=HONEST,
    )
    solve = Demonstrations(solver=CountdownSolver(), informative=informative, trust=HONEST)
    trust = Demonstrations(
        solver=CountdownSolver(),
        informative=informative,
        trust=OVERCONFIDENT,
        confident=OVERCONFIDENT_CONFIDENCES,
        keep_doubted=KEEP_DOUBTED,
    )
    return (
        Lesson(demonstrations=compare, steps=900, rate=3e-3, batch=16, check_weight=10.0),
        Lesson(demonstrations=solve, steps=1500, rate=3e-3, batch=32, check_weight=4.0),
        Lesson(demonstrations=trust, steps=200, rate=1e-3, batch=32, check_weight=3.0),
    )


@dataclass(frozen=True)
class CountdownSolver:
    """Attempts of one derivation each."""

    solution_chance: float = SOLUTION_CHANCE

    def problem(self, rng: random.Random) -> Problem:
        """A problem in some order."""
        several = rng.random() < SEVERAL_SHARE
        numbers, target = rng.choice(universe("train") if several else universe("train", 1))
        row = {"id": "t", "nums": rng.sample(numbers, len(numbers)), "target": target}
        return get_task("countdown").from_row(row)

    def first(self, rng: random.Random, problem: Problem) -> Attempt:
        """A solution or any derivation within the range of targets."""
        return self._attempt(rng, problem, self.solution_chance)

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
