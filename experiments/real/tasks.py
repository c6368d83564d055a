"""Short problems with one short answer: five kinds of arithmetic, and three that it cannot do.

A problem's key, its kind and numbers, decides whether two problems are the same. Held-out problems
come first in the stream of a kind, so that training and demonstrations leave out their keys.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from svr_lightning.core.prompts import AnswerStyle
from svr_lightning.core.types import Problem
from svr_lightning.tasks.base import Row, Task, last_answer
from svr_lightning.tasks.fields import ID_COLUMN, row_id, text_field

SEED = 0
"""Of all problems, whatever the seed of a training."""
SIZES = {"test": 300, "train": 1500, "control": 120}
"""Problems of each file, equally many of each of its kinds."""

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
THINGS = ("pens", "apples", "cards", "books", "coins")
WORDS = (
    "banana letter coffee needle summer kitchen address balloon success mirror pepper tennis "
    "cinnamon assess parallel committee possess mississippi bookkeeper referee eleven total "
    "institute statistics tomato potato cocoa rhythm window yellow"
)


@dataclass(frozen=True, slots=True)
class Exercise:
    """A question with its solution."""

    key: tuple[Any, ...]
    question: str
    reasoning: str
    """One line that ends with the answer, or empty."""
    answer: str


Kinds = Mapping[str, Callable[[random.Random], Exercise]]


def _add(rng: random.Random) -> Exercise:
    a, b = rng.randrange(10, 200), rng.randrange(10, 200)
    return Exercise((a, b), f"What is {a} + {b}?", "", str(a + b))


def _ages(rng: random.Random) -> Exercise:
    a, b, times = rng.randrange(3, 30), rng.randrange(2, 15), rng.randrange(2, 4)
    one, two, three = rng.sample(("Tom", "Ann", "Ben", "Eva", "Max", "Lea"), 3)
    question = (
        f"{one} is {a}. {two} is {b} years older than {one}. {three} is {times} times as old as "
        f"{two}. How old is {three}?"
    )
    reasoning = f"{a}+{b}={a + b}, {a + b}*{times}={(a + b) * times}"
    return Exercise((a, b, times), question, reasoning, str((a + b) * times))


def _affine(rng: random.Random) -> Exercise:
    a, b, c = rng.randrange(2, 13), rng.randrange(2, 10), rng.randrange(2, 40)
    reasoning = f"{a}*{b}={a * b}, {a * b}+{c}={a * b + c}"
    return Exercise((a, b, c), f"What is {a} * {b} + {c}?", reasoning, str(a * b + c))


def _sum(rng: random.Random) -> Exercise:
    a, b, c = (rng.randrange(3, 40) for _ in range(3))
    reasoning = f"{a}+{b}={a + b}, {a + b}+{c}={a + b + c}"
    return Exercise((a, b, c), f"What is {a} + {b} + {c}?", reasoning, str(a + b + c))


def _boxes(rng: random.Random) -> Exercise:
    a, b = rng.randrange(2, 40), rng.randrange(2, 13)
    things = rng.choice(THINGS)
    question = f"There are {b} boxes with {a} {things} each. How many {things} are there?"
    return Exercise((a, b), question, f"{a}*{b}={a * b}", str(a * b))


def _letters(rng: random.Random) -> Exercise:
    word = rng.choice(WORDS.split())
    letter = rng.choice(sorted({*word}))
    question = f"How many times does the letter {letter} occur in the word {word}?"
    return Exercise((word, letter), question, "", str(word.count(letter)))


def _counting(rng: random.Random) -> Exercise:
    numbers = [rng.randrange(1, 100) for _ in range(rng.randrange(5, 10))]
    question = f"How many of these numbers are odd: {', '.join(map(str, numbers))}?"
    return Exercise((*numbers,), question, "", str(sum(n % 2 for n in numbers)))


def _weekdays(rng: random.Random) -> Exercise:
    day, later = rng.randrange(7), rng.randrange(8, 100)
    question = f"Today is {DAYS[day]}. Which day of the week is it in {later} days?"
    return Exercise((day, later), question, "", DAYS[(day + later) % 7])


ARITHMETIC: Kinds = {
    "add": _add,
    "ages": _ages,
    "affine": _affine,
    "sum": _sum,
    "boxes": _boxes,
}
"""What is trained on."""
OTHER: Kinds = {
    "letters": _letters,
    "counting": _counting,
    "weekdays": _weekdays,
}
"""The negative control: the model hardly solves them, and its probabilities say nothing either."""
KINDS = {**ARITHMETIC, **OTHER}


def stream(kind: str) -> Iterator[Exercise]:
    """Endless exercises of one kind, no two with the same key."""
    rng = random.Random(f"{kind}/{SEED}")
    seen: set[tuple[Any, ...]] = set()
    while True:
        exercise = KINDS[kind](rng)
        if exercise.key not in seen:
            seen.add(exercise.key)
            yield exercise


def exercises(name: str) -> Iterator[tuple[str, int, Exercise]]:
    """Kind, number and exercise of ``test``, ``train`` or ``control``; none is in two of them."""
    kinds = OTHER if name == "control" else ARITHMETIC
    first = SIZES["test"] // len(ARITHMETIC) if name == "train" else 0
    for kind in kinds:
        found = enumerate(stream(kind))
        for number, exercise in islice(found, first, first + SIZES[name] // len(kinds)):
            yield kind, number, exercise


def split(name: str) -> list[dict[str, str]]:
    """The rows of ``test``, ``train`` or ``control``."""
    return [
        {"id": f"{kind}/{number}", "question": one.question, "answer": one.answer}
        for kind, number, one in exercises(name)
    ]


def held_out() -> set[tuple[str, tuple[Any, ...]]]:
    """Kind and key of every problem that only recordings may contain."""
    return {(kind, one.key) for name in ("test", "control") for kind, _, one in exercises(name)}


class ShortAnswer(Task):
    """The last ``<answer>`` block has to hold the reference."""

    style = AnswerStyle(
        role="You answer short questions.",
        request="<answer>YOUR_ANSWER</answer>",
        reminder="<answer></answer>",
        draft_limit=320,
    )
    columns = (("question",), ("answer",), ID_COLUMN)
    max_completion_tokens = 80

    def from_row(self, row: Row) -> Problem:
        """Read ``question``, ``answer`` and ``id``."""
        question, answer = text_field(row, "question"), text_field(row, "answer")
        return Problem(id=row_id(row), task=self.name, question=question, reference=answer)

    def extract_answer(self, completion: str) -> str | None:
        """The text of the last block; None if there is none or it is blank."""
        return (last_answer(completion) or "").strip() or None

    def grade(self, completion: str, problem: Problem) -> bool:
        """Whether the answer is the reference, to the letter."""
        return bool(self.extract_answer(completion) == problem.reference)
