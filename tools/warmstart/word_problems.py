r"""The demonstrator of the embedded word problems.

A completion looks like this::

    <think>pens 4*3=12; left 12-5=7</think>
    <answer>\boxed{7}</answer>
    <self_check>VERDICT: CORRECT; CONFIDENCE: 0.95</self_check>

It makes the mistakes that language models make: a slip in a step, the distractor in the place of a
quantity or in a step of its own, another operation, a step left out. Which mistake tempts it, and
how much, depends on the story and on where the distractor stands, so the same mistake comes back
when it solves again. A slip is carried through the later steps. Nothing in a trace says whether it
is right.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from svr_lightning.core.types import Problem
from svr_lightning.tasks import get_task
from svr_lightning.tiny.word_problems import (
    LARGEST_VALUE,
    STORIES,
    Split,
    Step,
    WordProblem,
    draw,
    solve,
)
from tools.warmstart.attempts import Attempt, Demonstrations
from tools.warmstart.documents import Document

Steps = tuple[Step, ...]

TEMPTATIONS = (0.2, 0.35, 0.5, 0.6, 0.7)
"""Probability of a story's favourite mistake: which of these depends on story and distractor."""
OTHER_MISTAKE = 0.05
"""Probability of a mistake that does not depend on them."""
SLIP, LARGE_SLIP, LARGE = 0.02, 0.06, 20
"""Probability of a slip in a step with a value up to, and above, :data:`LARGE`."""
SLIPS = (-10, -2, -1, 1, 2, 10)
AGAIN_RIGHT = 0.65
"""Probability that solving again, after a right answer, ends there again."""
CORRECTED, SAME_MISTAKE = 0.55, 0.2
"""Probabilities that solving again, after a wrong answer, corrects it, or ends there again."""
TRUST = {True: 0.97, False: 0.6}
"""Probability of the verdict CORRECT on right and on wrong answers. What a policy learns of it is
weaker: it has to solve the problem to see which answers are wrong."""
CONFIDENT = {
    True: ((0.95, 45), (0.9, 30), (0.85, 15), (0.8, 7), (0.7, 3)),
    False: ((0.95, 20), (0.9, 25), (0.85, 25), (0.8, 15), (0.7, 15)),
}
_KINDS = ("distractor", "extra", "operation", "skip")


def documents(seed: int, split: str = "train", informative: float = 1.0) -> Iterator[Document]:
    """Endless demonstrations; see :class:`~tools.warmstart.attempts.Demonstrations`."""
    return Demonstrations(
        solver=WordSolver(cast(Split, split)),
        informative=informative,
        trust=TRUST,
        confident=CONFIDENT,
    ).stream(seed)


@dataclass(frozen=True)
class WordSolver:
    """Solves word problems with mistakes."""

    split: Split = "train"

    def problem(self, rng: random.Random) -> Problem:
        """Any problem of the split; its payload has the story, which no prompt shows."""
        return problem_of(draw(rng, self.split))

    def first(self, rng: random.Random, problem: Problem) -> Attempt:
        """A solution with the mistakes that the problem tempts to."""
        word_problem: WordProblem = problem.payload["word_problem"]
        wrong = mistakes(word_problem)
        favourite, chance = temptation(word_problem)
        every = [steps for of_kind in wrong.values() for steps in of_kind]
        steps, drawn = word_problem.steps, rng.random()
        if drawn < chance and wrong[favourite]:
            steps = wrong[favourite][word_problem.place % len(wrong[favourite])]
        elif every and (drawn < chance or drawn > 1 - OTHER_MISTAKE):
            steps = rng.choice(every)
        return attempt_of(word_problem, slipped(rng, steps))

    def draft(self, rng: random.Random, problem: Problem) -> Attempt:
        """A first attempt, or a second one."""
        attempt = self.first(rng, problem)
        return self.another(rng, problem, attempt) if rng.random() < 0.25 else attempt

    def another(self, rng: random.Random, problem: Problem, draft: Attempt) -> Attempt:
        """Solve again: the same answer, the right one, or another mistake."""
        word_problem: WordProblem = problem.payload["word_problem"]
        drawn = rng.random()
        if drawn < (AGAIN_RIGHT if draft.correct else CORRECTED):
            return attempt_of(word_problem, word_problem.steps)
        if not draft.correct and drawn < CORRECTED + SAME_MISTAKE:
            return draft
        for _ in range(50):
            attempt = self.first(rng, problem)
            if not attempt.correct and attempt.answer != draft.answer:
                return attempt
        return draft


def problem_of(word_problem: WordProblem) -> Problem:
    """The problem as the task reads it, with the story as its payload."""
    answer = f"#### {word_problem.steps[-1].value}"
    row = {"id": "", "question": word_problem.question, "answer": answer}
    return replace(get_task("gsm8k").from_row(row), payload={"word_problem": word_problem})


def attempt_of(word_problem: WordProblem, steps: Steps) -> Attempt:
    """Steps as an attempt."""
    last, value = steps[-1], steps[-1].value
    return Attempt(
        reasoning="; ".join(step.text for step in steps),
        answer=rf"\boxed{{{value}}}",
        plan=f"{last.left}{last.operator}{last.right}",
        correct=value == word_problem.steps[-1].value,
    )


def mistakes(problem: WordProblem) -> Mapping[str, list[Steps]]:
    """Wrong solutions by kind: ``distractor``, ``extra``, ``operation`` and ``skip``."""
    plan = [step.split(" ") for step in problem.story.steps]
    plans: dict[str, list[list[list[str]]]] = {kind: [] for kind in _KINDS}
    if problem.place:
        plans["extra"] = [[*plan, [plan[-1][0], f"#{len(plan)}", "-", "d"]]]
    for i, (label, left, operator, right) in enumerate(plan):
        swapped = {"+": "-", "-": "+", "*": "+", "/": "-"}[operator]
        plans["operation"].append([*plan[:i], [label, left, swapped, right], *plan[i + 1 :]])
        if problem.place and right in "abc":
            plans["distractor"].append([*plan[:i], [label, left, operator, "d"], *plan[i + 1 :]])
        if not left.startswith("#") or i == len(plan) - 1:
            plans["skip"].append(_without(plan, i))
    found: dict[str, list[Steps]] = {}
    for kind, of_kind in plans.items():
        solved = [
            solve([" ".join(step) for step in wrong], problem.quantities) for wrong in of_kind
        ]
        right_value = problem.steps[-1].value
        found[kind] = [steps for steps in solved if steps and steps[-1].value != right_value]
    return found


def temptation(problem: WordProblem) -> tuple[str, float]:
    """The favourite mistake of a story with its distractor in this place, and its probability."""
    cell = f"{problem.story.name} {problem.place}"
    kinds = ("distractor", "extra", "skip") if problem.place else ("operation", "skip")
    return random.Random(f"favourite {cell}").choice(kinds), _STRENGTHS[cell]


def slipped(rng: random.Random, steps: Steps) -> Steps:
    """The steps, perhaps with a wrong value in one, with which the later ones go on."""
    for i, step in enumerate(steps):
        if rng.random() >= (LARGE_SLIP if step.value > LARGE else SLIP):
            continue
        changed = {step.value: step.value + rng.choice(SLIPS)}
        done = [*steps[:i], replace(step, value=changed[step.value])]
        for later in steps[i + 1 :]:
            operands = {
                "a": changed.get(later.left, later.left),
                "b": changed.get(later.right, later.right),
            }
            again = solve([f"{later.label} a {later.operator} b"], operands)
            if again is None:
                return steps
            changed[later.value] = again[0].value
            done += again
        return tuple(done) if 0 < done[i].value <= LARGEST_VALUE else steps
    return steps


def _without(plan: list[list[str]], index: int) -> list[list[str]]:
    """The plan without a step; what used its result takes its left operand."""
    kept = []
    for label, left, operator, right in plan[:index] + plan[index + 1 :]:
        names = []
        for name in (left, right):
            number = int(name[1:]) - 1 if name.startswith("#") else -1
            if number == index:
                names.append(plan[index][1])
            else:
                names.append(f"#{number}" if number > index else name)
        kept.append([label, names[0], operator, names[1]])
    return kept


def _strengths() -> dict[str, float]:
    """Every strength equally often over stories and places."""
    cells = [f"{story.name} {place}" for story in STORIES for place in range(3)]
    random.Random("strengths").shuffle(cells)
    return {cell: TEMPTATIONS[i % len(TEMPTATIONS)] for i, cell in enumerate(cells)}


_STRENGTHS = _strengths()
