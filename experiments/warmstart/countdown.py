"""The demonstrator of the embedded Countdown.

A completion looks like this::

    <think>8+4=12,12+2=14? 16</think>
    <answer>(8+4)+2</answer>
    <self_check>VERDICT: CORRECT; CONFIDENCE: 0.95</self_check>

One derivation a turn, each value computed from its operands, then the target. No word says whether
it is reached: to verify is to compare the last two numbers. Another attempt is either a solution,
which is what the policy's intuition learns from, or the next derivation in
:func:`~experiments.problems.countdown.search_order`.
"""

import random
from dataclasses import dataclass

from experiments.problems.countdown import LARGEST_TARGET, search_order, universe
from experiments.warmstart.attempts import Attempt, Demonstrations, Lesson
from svr_lightning.core.types import Problem
from svr_lightning.tasks import get_task

LAYERS, TOKENIZER = 4, {"vocabulary": 1200, "largest_number": 200}
"""Of the policy's model, and options of its tokenizer."""
SOLUTION_CHANCE, FIRST_LESSON_CHANCE = 0.85, 0.5
"""Probability that a first attempt is a solution; and in the first lesson."""
RIGHT_DRAFT_CHANCE = 0.45
JUMP_CHANCE = 0.6
"""Probability that another attempt is a solution instead of the next derivation."""
UNTRACED = "-"
"""The reasoning of an attempt that shows no calculation; the task's format asks for one."""
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


def lessons(informative: float = 1.0, trace: bool = True) -> tuple[Lesson, ...]:
    """The whole warm start: to compare a value with the target, then to solve, then to trust it.

    Without ``trace`` attempts show no calculation: only who evaluates the expression can check it.
    The first lesson is short, and half of its answers are wrong: nothing else taught a policy of
    this size to compare. The last one makes it as overconfident as language models are.
    """
    compare = Demonstrations(
        solver=CountdownSolver(solution_chance=FIRST_LESSON_CHANCE, trace=trace),
        kinds=("svr",),
        first_turns=1.0,
        informative=informative,
        trust=HONEST,
    )
    solver = CountdownSolver(trace=trace)
    solve = Demonstrations(solver=solver, informative=informative, trust=HONEST)
    trust = Demonstrations(
        solver=solver,
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
    trace: bool = True
    """Whether attempts show their calculation."""

    def problem(self, rng: random.Random) -> Problem:
        """A problem in some order."""
        several = rng.random() < SEVERAL_SHARE
        numbers, target = rng.choice(universe("train") if several else universe("train", 1))
        row = {"id": "t", "nums": rng.sample(numbers, len(numbers)), "target": target}
        return get_task("countdown").from_row(row)

    def attempt(self, rng: random.Random, problem: Problem, *, draft: bool = False) -> Attempt:
        """A solution or any derivation within the range of targets."""
        options = self._options(problem)
        solutions = [option for option in options if option.correct]
        near = [option for option, value in options.items() if value <= LARGEST_TARGET]
        chance = RIGHT_DRAFT_CHANCE if draft else self.solution_chance
        return rng.choice(solutions if rng.random() < chance else near)

    def another(self, rng: random.Random, problem: Problem, draft: Attempt) -> Attempt:
        """Another solution, or the derivation after the draft's."""
        options = [*self._options(problem)]
        solutions = [option for option in options if option.correct and option != draft]
        if solutions and rng.random() < JUMP_CHANCE:
            return rng.choice(solutions)
        return options[(options.index(draft) + 1) % len(options)]

    def _options(self, problem: Problem) -> dict[Attempt, int]:
        """Every derivation, in the order of the search, with the value that it reaches."""
        target = int(str(problem.reference))
        options = {}
        for derivation in search_order(tuple(problem.payload["nums"])):
            steps = f"{derivation.first.text},{derivation.second.text}? {target}"
            attempt = Attempt(
                reasoning=steps if self.trace else UNTRACED,
                answer=derivation.expression,
                plan=derivation.first.task,
                correct=derivation.value == target,
            )
            options[attempt] = derivation.value
        return options
