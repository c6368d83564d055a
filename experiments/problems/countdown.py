"""The embedded Countdown: three numbers from 1 to 12, a target of at most 100, split by numbers.

A problem enters if at least :data:`MIN_SOLUTIONS` of its about 26 derivations in two steps reach
the target. **Splits have different numbers**: the multiset determines the split, so the numbers of
a held-out problem never occur together in training, with any target. The split
``outside`` has a number above the trained range in every problem.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, permutations, product
from typing import Any

from experiments.problems.steps import Step, operate

SPLITS = ("train", "dev", "test", "outside")
LARGEST_NUMBER = 12
LARGEST_OUTSIDE = 15
"""Problems of the split ``outside`` have a number between the trained range and this."""
LARGEST_TARGET = 100
LARGEST_VALUE = 200
"""Largest value of a step."""
MIN_SOLUTIONS = 3
"""Least number of different derivations of a problem's target."""
TEST_PERCENT = 18
DEV_PERCENT = 8
OUTSIDE_PERCENT = 12
"""This share of the multisets outside of the trained range is used."""
PAIRS = ((0, 1, 2), (0, 2, 1), (1, 2, 0))
"""Positions of the first step's operands and of the third number."""
_OPERATORS = (
    "++",
    "+-",
    "-+",
    "--",
    "**",
    "*/",
    "/*",
    "//",
    "+*",
    "*+",
    "-*",
    "*-",
    "+/",
    "/+",
    "-/",
    "/-",
)
"""Operators of the first and second step. Derivations that are equal by algebra are neighbours."""


@dataclass(frozen=True, slots=True)
class Derivation:
    """Two steps that use three numbers once each."""

    first: Step
    second: Step
    expression: str
    """Both as one: ``(8/2)*4``."""

    @property
    def value(self) -> int:
        """The value of the derivation."""
        return self.second.value


@cache
def search_order(numbers: tuple[int, ...]) -> tuple[Derivation, ...]:
    """The different derivations of three positive integers, in the order of a systematic search.

    Operators first, then pairs by position; a difference or quotient takes the larger number
    first. Values are positive integers up to :data:`LARGEST_VALUE`; nothing is divided by 1.
    """
    found = []
    for operators, (i, j, k) in product(_OPERATORS, PAIRS):
        with suppress(ArithmeticError):
            first = _step(numbers[i], operators[0], numbers[j])
            second = _step(first.value, operators[1], numbers[k])
            parts = [f"({first.task})", operators[1], str(numbers[k])]
            if operators[1] in "-/" and first.value < numbers[k]:
                parts.reverse()
            found.append(Derivation(first, second, "".join(parts)))
    return tuple(dict.fromkeys(found))


def _step(a: int, operator: str, b: int) -> Step:
    """The larger number first where order matters. Raises ArithmeticError where not allowed."""
    left, right = (a, b) if operator in "+*" else (max(a, b), min(a, b))
    if operator == "/" and right == 1:
        raise ArithmeticError("nothing is divided by 1")
    return operate(left, operator, right, LARGEST_VALUE)


def split_of(numbers: Sequence[int]) -> str | None:
    """The split that problems with these numbers belong to, in any order and with any target.

    None for most multisets outside of the trained range, which no split uses.
    """
    digest = hashlib.sha256(str(sorted(numbers)).encode()).digest()
    percent = int.from_bytes(digest[:8], "big") % 100
    if max(numbers) > LARGEST_NUMBER:
        return "outside" if percent < OUTSIDE_PERCENT else None
    if percent < TEST_PERCENT:
        return "test"
    return "dev" if percent < TEST_PERCENT + DEV_PERCENT else "train"


@cache
def universe(
    split: str, min_solutions: int = MIN_SOLUTIONS
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """All (sorted numbers, target) of a split, in lexicographic order."""
    found = []
    for numbers in combinations_with_replacement(range(1, LARGEST_OUTSIDE + 1), 3):
        if split_of(numbers) == split:
            counts = Counter(derivation.value for derivation in search_order(numbers))
            found += [
                (numbers, target)
                for target in sorted(counts)
                if target <= LARGEST_TARGET and counts[target] >= min_solutions
            ]
    return tuple(found)


def rows(split: str, orders: int = 2) -> list[dict[str, Any]]:
    """Rows of a split as the Countdown task reads them: ``id``, ``nums``, ``target``, ``cluster``.

    Each problem is there in at most so many orders of its numbers, which depend on the problem
    alone. They have the same ``cluster``: they are not independent observations.
    """
    found = []
    for numbers, target in universe(split):
        cluster = "-".join(map(str, (*numbers, target)))
        distinct = sorted(set(permutations(numbers)))
        random.Random(f"{numbers} {target}").shuffle(distinct)
        for order, nums in enumerate(distinct[:orders]):
            name = f"{split}-{cluster}-{order}"
            found.append({"id": name, "nums": list(nums), "target": target, "cluster": cluster})
    return found
