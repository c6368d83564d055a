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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Literal, get_args

Split = Literal["train", "dev", "test", "shifted"]

QUANTITIES = range(2, 11)
SHIFTED = range(11, 16)
"""One quantity of each problem of the split ``shifted`` is from this range, above the others."""
LARGEST_VALUE = 99
"""No step has a larger value."""
SIZES: Mapping[Split, int] = {"train": 4000, "dev": 120, "test": 240, "shifted": 160}
"""Rows of each split; in dev, test and shifted no two of them share story and quantities."""
TEST_SHARE = 0.2
DEV_SHARE = 0.1
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")


@dataclass(frozen=True, slots=True)
class Story:
    """A text with gaps for quantities, and the steps that solve it."""

    name: str
    text: str
    """The story; gaps are quantities ``{a}`` to ``{c}``, people ``{N}`` and ``{M}``."""
    question: str
    distractor: str
    """A sentence with the quantity ``{d}``, which no step needs."""
    steps: tuple[str, ...]
    """Each is ``label left operator right``; operands are quantities, constants, or ``#1`` for the
    value of the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step with its numbers filled in."""

    label: str
    left: int
    operator: str
    right: int
    value: int

    @property
    def text(self) -> str:
        """The step as a trace shows it: ``left 12-5=7``."""
        return f"{self.label} {self.left}{self.operator}{self.right}={self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WordProblem:
    """A story with its gaps filled."""

    story: Story
    quantities: Mapping[str, int]
    """The quantity of every letter in the story, and of the distractor's ``d``."""
    people: tuple[str, str]
    distracted: int
    """Where the distractor stands: 0 nowhere, 1 before the story, 2 before the question."""

    @property
    def question(self) -> str:
        """The text that the policy sees."""
        distractor = [self.story.distractor]
        parts = [*distractor * (self.distracted == 1), self.story.text]
        parts += [*distractor * (self.distracted == 2), self.story.question]
        names = dict(zip("NM", self.people, strict=True))
        return " ".join(parts).format(**self.quantities, **names)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The solution."""
        solution = solve(self.story.steps, self.quantities)
        assert solution is not None, "a problem is only made where its steps have values"
        return solution

    @property
    def cluster(self) -> str:
        """Story and sorted quantities: what decides the split."""
        used = sorted(value for letter, value in self.quantities.items() if letter != "d")
        return "-".join([self.story.name, *map(str, used)])


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


def _stories() -> Iterator[Story]:
    lines = [line.strip() for line in _STORIES.strip().splitlines()]
    parts = (lines[part::4] for part in range(4))
    for head, text, question, distractor in zip(*parts, strict=True):
        name, _, steps = head.partition(": ")
        yield Story(name, text, question, distractor, tuple(steps.split("; ")))


STORIES = tuple(_stories())


def solve(steps: Sequence[str], quantities: Mapping[str, int]) -> tuple[Step, ...] | None:
    """The steps with numbers, or None unless all values are whole, positive and small enough."""
    done: list[Step] = []
    for step in steps:
        label, *operands = step.split(" ")
        left, right = (_operand(name, quantities, done) for name in operands[::2])
        value = apply(left, operands[1], right)
        if value is None:
            return None
        done.append(Step(label=label, left=left, operator=operands[1], right=right, value=value))
    return tuple(done)


def apply(left: int, operator: str, right: int) -> int | None:
    """The value of an operation, or None unless it is whole, positive and small enough."""
    if operator == "/":
        value = left // right if right and left % right == 0 else 0
    else:
        value = {"+": left + right, "-": left - right, "*": left * right}[operator]
    return value if 0 < value <= LARGEST_VALUE else None


@cache
def universe(story: Story, split: Split) -> tuple[tuple[int, ...], ...]:
    """The quantities of a story that belong to a split, in every order that can be solved.

    Sets of quantities are assigned to the splits by their hash: each story is in every split.
    """
    letters = [letter for letter in "abc" if f"{{{letter}}}" in story.text]
    found: dict[str, list[tuple[int, ...]]] = {}
    for numbers in product(range(QUANTITIES[0], SHIFTED[-1] + 1), repeat=len(letters)):
        large = sum(number in SHIFTED for number in numbers)
        if large == (split == "shifted") and solve(
            story.steps, dict(zip(letters, numbers, strict=True))
        ):
            key = "-".join([story.name, *map(str, sorted(numbers))])
            found.setdefault(key, []).append(numbers)
    ordered = sorted(found, key=lambda key: hashlib.sha256(key.encode()).digest())
    test, dev = (round(share * len(ordered)) for share in (TEST_SHARE, TEST_SHARE + DEV_SHARE))
    parts = {"test": ordered[:test], "dev": ordered[test:dev], "train": ordered[dev:]}
    return tuple(numbers for key in parts.get(split, ordered) for numbers in found[key])


def draw(rng: random.Random, split: Split) -> WordProblem:
    """A random problem of a split; all stories are equally likely."""
    story = rng.choice(STORIES)
    numbers = rng.choice(universe(story, split))
    first, second = rng.sample(NAMES, 2)
    return WordProblem(
        story=story,
        quantities={
            **dict(zip("abc", numbers, strict=False)),
            "d": rng.choice([number for number in QUANTITIES if number not in numbers]),
        },
        people=(first, second),
        distracted=rng.choice((0, 1, 2)),
    )


def generate(split: Split) -> list[dict[str, Any]]:
    """Rows of a split as GSM8K's task reads them: ``id``, ``question``, ``answer``, ``cluster``.

    Raises:
        ValueError: for an unknown split.
    """
    if split not in get_args(Split):
        raise ValueError(f"split {split!r}: one of {', '.join(get_args(Split))}")
    return [
        {
            "id": f"{split}-{number}-{problem.cluster}",
            "question": problem.question,
            "answer": f"#### {problem.steps[-1].value}",
            "cluster": problem.cluster,
        }
        for number, problem in enumerate(_chosen(split))
    ]


def _chosen(split: Split) -> Iterator[WordProblem]:
    rng = random.Random(f"word problems {split}")
    seen: set[str] = set()
    while len(seen) < SIZES[split]:
        problem = draw(rng, split)
        key = problem.question if split == "train" else problem.cluster
        if key not in seen:
            seen.add(key)
            yield problem


def _operand(name: str, quantities: Mapping[str, int], done: Sequence[Step]) -> int:
    if name.startswith("#"):
        return done[int(name[1:]) - 1].value
    return quantities[name] if name in quantities else int(name)
