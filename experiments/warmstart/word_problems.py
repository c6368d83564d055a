r"""The demonstrator of the embedded word problems.

A completion looks like this::

    <think>pens 4*3=12; left 12-5=7</think>
    <answer>\boxed{7}</answer>
    <self_check>VERDICT: CORRECT; CONFIDENCE: 0.95</self_check>

It misremembers facts: of the operations with a large right operand, a fixed part has a wrong value
of its own, which it writes often, each time the operation occurs, and goes on with. Where it solves
again it works such an operation out in parts with smaller numbers, at the price of more tokens.
Sometimes it takes the distractor for a quantity. Nothing in a trace says whether it is right.
"""

import random
from contextlib import suppress
from dataclasses import replace
from functools import cache

from experiments.problems.steps import Step, operate
from experiments.problems.word_problems import LARGEST_VALUE, NAMES, WordProblem, draw, solve
from experiments.warmstart.attempts import Attempt, Demonstrations, Lesson
from svr_lightning.core.types import Problem
from svr_lightning.tasks import get_task

LAYERS, TOKENIZER = 3, {"vocabulary": 1700, "largest_number": LARGEST_VALUE, "words": NAMES}
"""Of the policy's model, and options of its tokenizer."""
HARD = (6, 7, 8, 9, 11, 12)
"""Operations with another right operand are always remembered."""
SHAKY = 0.9
"""Share of the operations with these that have a wrong value besides the right one."""
CONFUSIONS = (0.3, 0.45, 0.6, 0.75)
"""Probability of the wrong value: which of these depends on the operation."""
SLIPS = (-10, -2, -1, 1, 2, 10)
"""The wrong value less the right one: which of these depends on the operation."""
DISTRACTED = 0.05
"""Probability of taking the distractor for a quantity, where there is one."""
CAREFUL = 0.85
"""Probability that solving again works out every shaky operation in parts."""
TRUST = {True: 0.97, False: 0.3}
"""Probability of the verdict CORRECT on right and on wrong answers. What a policy learns of it is
much weaker: it has to know its own facts to see which answers are wrong."""
CONFIDENT = {
    True: ((0.95, 50), (0.9, 30), (0.85, 14), (0.8, 4), (0.7, 2)),
    False: ((0.95, 20), (0.9, 28), (0.85, 27), (0.8, 13), (0.7, 12)),
}


def lessons(informative: float = 1.0) -> tuple[Lesson, ...]:
    """The whole warm start: one lesson."""
    taught = Demonstrations(
        solver=WordSolver(), informative=informative, trust=TRUST, confident=CONFIDENT
    )
    return (Lesson(demonstrations=taught, steps=3000, rate=3e-3, batch=16, check_weight=4.0),)


class WordSolver:
    """Solves word problems with mistakes."""

    def problem(self, rng: random.Random) -> Problem:
        """Any problem to train on; its payload has the story, which no prompt shows."""
        found = draw(rng, "train")
        return replace(get_task("gsm8k").from_row(found.row), payload={"word_problem": found})

    def attempt(self, rng: random.Random, problem: Problem, *, draft: bool = False) -> Attempt:
        """A solution from memory. A draft may have been solved again."""
        return _attempt(rng, problem, careful=draft and rng.random() < 0.2)

    def another(self, rng: random.Random, problem: Problem, draft: Attempt) -> Attempt:
        """Solve again, mostly with care: perhaps with the same answer."""
        return _attempt(rng, problem, careful=rng.random() < CAREFUL)


@cache
def mistaken(left: int, operator: str, right: int) -> tuple[int, float] | None:
    """The wrong value of an operation and how often it is taken; None for one that is known."""
    rng = random.Random(f"{left}{operator}{right}")
    if operator == "/" or right not in HARD or rng.random() >= SHAKY:
        return None
    wrong = operate(left, operator, right, LARGEST_VALUE).value + rng.choice(SLIPS)
    return (wrong, rng.choice(CONFUSIONS)) if 0 < wrong <= LARGEST_VALUE else None


def solved(rng: random.Random, problem: WordProblem, *, careful: bool) -> list[Step]:
    """The steps of an attempt, with the mistakes of the moment."""

    def remembered(label: str, left: int, operator: str, right: int) -> Step:
        step = operate(left, operator, right, LARGEST_VALUE, label)
        wrong = mistaken(left, operator, right)
        return replace(step, value=wrong[0]) if wrong and rng.random() < wrong[1] else step

    def work(label: str, left: int, operator: str, right: int) -> list[Step]:
        """With care, with each half of the right operand, as ``7*8`` by ``7*4`` and ``28+28``."""
        if not (careful and mistaken(left, operator, right)):
            return [remembered(label, left, operator, right)]
        half = right // 2
        done = [remembered(label, left, operator, half)]
        rest = right - half
        if operator == "*":
            done.append(remembered(label, left, operator, rest))
            operator, rest = "+", done[1].value
        return [*done, remembered(label, done[0].value, operator, rest)]

    quantities = dict(problem.quantities)
    if problem.distracted and rng.random() < DISTRACTED:
        quantities[rng.choice([*quantities])] = problem.unneeded
    for _ in range(50):
        with suppress(ArithmeticError):  # a mistake leads to a value that no step may have
            return solve(problem.story.steps, quantities, work)
    return problem.steps


def _attempt(rng: random.Random, problem: Problem, *, careful: bool) -> Attempt:
    word_problem: WordProblem = problem.payload["word_problem"]
    steps = solved(rng, word_problem, careful=careful)
    value = steps[-1].value
    return Attempt(
        reasoning="; ".join(step.text for step in steps),
        answer=rf"\boxed{{{value}}}",
        plan=steps[-1].task,
        correct=value == word_problem.steps[-1].value,
    )
