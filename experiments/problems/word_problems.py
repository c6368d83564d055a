"""The second embedded task: word problems of two to four steps, answered with one number.

Unlike Countdown's, an answer cannot be checked without solving the problem. GSM8K's task reads and
grades the rows. A problem is a story, its quantities, and the names in it; some stories hold a
number that the question does not need.

A hash of a story and of its quantities *as a multiset* determines the split: no story has the same
quantities in two splits, in any order and with any distractor. The split
``shifted`` has one quantity above the training range in each problem.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from experiments.problems.steps import Step, operate

QUANTITIES = range(2, 11)
SHIFTED = range(11, 16)
"""One quantity of each problem of the split ``shifted`` is from this range, above the others."""
LARGEST_VALUE = 99
"""No step has a larger value."""
SIZES = {"train": 4000, "dev": 120, "test": 240, "shifted": 160}
"""Rows of each split; in dev, test and shifted no two of them share story and quantities."""
TEST_SHARE = 0.2
DEV_SHARE = 0.1
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")


@dataclass(frozen=True, slots=True)
class Story:
    """A text with gaps for quantities, and the steps that solve it."""

    name: str
    steps: str
    """Each is ``label left operator right``; operands are quantities, constants, or ``#1`` for the
    value of the first step. They are joined by ``; ``."""
    text: str
    """The story; gaps are quantities ``{a}`` to ``{c}``, people ``{N}`` and ``{M}``."""
    question: str
    distractor: str
    """A sentence with the quantity ``{d}``, which no step needs."""


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A story with its gaps filled."""

    story: Story
    quantities: Mapping[str, int]
    """Of every letter in the story."""
    people: Mapping[str, str]
    unneeded: int
    """The distractor's quantity."""
    distracted: int
    """Where the distractor stands: 0 nowhere, 1 before the story, 2 before the question."""

    @property
    def steps(self) -> list[Step]:
        """The solution."""
        return solve(self.story.steps, self.quantities)

    @property
    def row(self) -> dict[str, str]:
        """As GSM8K's task reads it."""
        parts = [self.story.text, self.story.question]
        if self.distracted:
            parts.insert(self.distracted - 1, self.story.distractor)
        gaps = {**self.quantities, **self.people, "d": self.unneeded}
        return {
            "question": " ".join(parts).format(**gaps),
            "answer": f"#### {self.steps[-1].value}",
            "cluster": cluster_of(self.story, self.quantities.values()),
        }


_STORIES = """
pens: pens a * b; left #1 - c
    {N} buys {a} boxes of {b} pens and gives {c} pens to {M}.
    How many pens does {N} have left?
    {N} owns {d} rulers.
wage: pay a * b; all #1 + c
    {N} works {a} hours for {b} dollars an hour and gets a tip of {c} dollars.
    How many dollars does {N} have?
    The way to work takes {d} minutes.
fewer: other a + b; all #1 + a
    {N} has {a} marbles, which is {b} fewer than {M} has.
    How many marbles do they have together?
    {M} has {d} balls.
more: other a - b; all #1 + a
    {N} has {a} stamps, which is {b} more than {M} has.
    How many stamps do they have together?
    {M} has {d} coins.
bus: on a + b; left #1 - c
    There are {a} people in a bus. At a stop {b} people get on and {c} get off.
    How many people are in the bus?
    The bus is {d} years old.
share: sweets b * c; each #1 / a
    {a} children share {b} bags of {c} sweets equally.
    How many sweets does each child get?
    Each bag costs {d} cents.
age: older a + b; younger #1 - c
    {N} is {a} years old. {M} is {b} years older than {N}. Tom is {c} years younger than {M}.
    How old is Tom?
    {N} has {d} cousins.
twice: other a * 2; all #1 + a; left #2 - b
    {N} picks {a} apples and {M} picks twice as many. They eat {b} apples.
    How many apples are left?
    {M} picks {d} plums.
weeks: days a * 7; all #1 + b; left #2 - c
    {N} is away for {a} weeks and {b} days. It rains on {c} of these days.
    On how many days does it not rain?
    The trip costs {d} dollars a day.
dozen: eggs a * 12; left #1 - b; all #2 + c
    {N} has {a} dozen eggs, breaks {b} eggs and buys {c} more.
    How many eggs does {N} have?
    {N} has {d} hens.
market: melons a * b; lemons c * 2; all #1 + #2
    {N} buys {a} melons for {b} dollars each and {c} lemons for 2 dollars each.
    How many dollars does {N} pay?
    {N} also carries {d} bags.
change: books a * b; paid c * 10; back #2 - #1
    {N} pays {a} books of {b} dollars each with {c} notes of 10 dollars.
    How many dollars does {N} get back?
    {N} reads {d} pages a day.
trees: trees a * b; left #1 - c; new c * 2; all #2 + #3
    A garden has {a} rows of {b} trees. {c} trees fall and twice as many are planted.
    How many trees are there now?
    There are {d} benches.
half: rolls a * b; half #1 / 2; left #2 - c
    {N} bakes {a} trays of {b} rolls, sells half of them and eats {c}.
    How many rolls are left?
    Baking takes {d} minutes.
"""
"""Name and steps of each story; its text, its question and its distractor."""
_LINES = [line.strip() for line in _STORIES.strip().splitlines()]
STORIES = tuple(
    Story(*head.split(": "), *texts)
    for head, *texts in zip(*(_LINES[part::4] for part in range(4)), strict=True)
)


def exactly(label: str, left: int, operator: str, right: int) -> list[Step]:
    """One step, with its value."""
    return [operate(left, operator, right, LARGEST_VALUE, label)]


def solve(
    steps: str,
    quantities: Mapping[str, int],
    work: Callable[[str, int, str, int], list[Step]] = exactly,
) -> list[Step]:
    """The steps with numbers; ``work`` makes one or more of each.

    Raises:
        ArithmeticError: unless all values are whole, positive and small enough.
    """
    done: list[Step] = []
    values = dict(quantities)
    for number, step in enumerate(steps.split("; "), start=1):
        label, first, operator, second = step.split(" ")
        left, right = (values[name] if name in values else int(name) for name in (first, second))
        done += work(label, left, operator, right)
        values[f"#{number}"] = done[-1].value
    return done


@cache
def universe(story: Story, split: str) -> tuple[tuple[int, ...], ...]:
    """The quantities of a story that belong to a split, in every order that can be solved.

    Sets of quantities are assigned to the splits by their hash: each story is in every split.
    """
    letters = [letter for letter in "abc" if f"{{{letter}}}" in story.text]
    found: dict[str, list[tuple[int, ...]]] = {}
    for numbers in product(range(QUANTITIES[0], SHIFTED[-1] + 1), repeat=len(letters)):
        if sum(number in SHIFTED for number in numbers) == (split == "shifted"):
            with suppress(ArithmeticError):
                solve(story.steps, dict(zip(letters, numbers, strict=True)))
                found.setdefault(cluster_of(story, numbers), []).append(numbers)
    ordered = sorted(found, key=lambda key: hashlib.sha256(key.encode()).digest())
    test, dev = (round(share * len(ordered)) for share in (TEST_SHARE, TEST_SHARE + DEV_SHARE))
    parts = {"test": ordered[:test], "dev": ordered[test:dev], "train": ordered[dev:]}
    return tuple(numbers for key in parts.get(split, ordered) for numbers in found[key])


def cluster_of(story: Story, quantities: Iterable[int]) -> str:
    """Story and sorted quantities: what decides the split."""
    return "-".join([story.name, *map(str, sorted(quantities))])


def draw(rng: random.Random, split: str) -> WordProblem:
    """A random problem of a split; all stories are equally likely."""
    story = rng.choice(STORIES)
    numbers = rng.choice(universe(story, split))
    people = dict(zip("NM", rng.sample(NAMES, 2), strict=True))
    unneeded = rng.choice([number for number in QUANTITIES if number not in numbers])
    quantities = dict(zip("abc", numbers, strict=False))
    return WordProblem(story, quantities, people, unneeded, distracted=rng.choice((0, 1, 2)))


def rows(split: str) -> list[dict[str, Any]]:
    """Rows of a split as GSM8K's task reads them: ``id``, ``question``, ``answer``, ``cluster``."""
    rng = random.Random(f"word problems {split}")
    found: dict[str, dict[str, Any]] = {}
    while len(found) < SIZES[split]:
        row = draw(rng, split).row
        key = row["question" if split == "train" else "cluster"]
        found.setdefault(key, {"id": f"{split}-{len(found)}-{row['cluster']}", **row})
    return [*found.values()]
