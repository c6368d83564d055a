"""The embedded default's problems: Countdown with three numbers from 1 to 10.

The task is the real one, only smaller. A problem enters if at least :data:`MIN_SOLUTIONS` of its
about 30 two-step derivations reach the target. Which problems are held out depends on a hash of
the numbers *as a multiset* and the target: no order of a held-out problem is ever trained on.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, permutations
from typing import Any, Literal

Split = Literal["train", "dev", "test"]

LARGEST_NUMBER = 10
LARGEST_TARGET = 100
MIN_SOLUTIONS = 2
TEST_PERCENT = 18
DEV_PERCENT = 10
PAIRS = ((0, 1, 2), (0, 2, 1), (1, 2, 0))
"""Positions of the first step's operands and of the third number."""
_OPERATORS = "+-*/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation on two positive integers, with a positive integer as its value.

    Examples:
        >>> Step(left=8, operator="/", right=2, value=4).text
        '8/2=4'
    """

    left: int
    operator: str
    right: int
    value: int

    @property
    def task(self) -> str:
        """The operation without its value: ``8/2``."""
        return f"{self.left}{self.operator}{self.right}"

    @property
    def text(self) -> str:
        """The step as an equation."""
        return f"{self.task}={self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """Two steps that use three numbers once each."""

    first: Step
    second: Step
    mid_is_left: bool
    """Whether the first step's value is the left operand of the second step."""

    @property
    def value(self) -> int:
        """The value of the derivation."""
        return self.second.value

    @property
    def text(self) -> str:
        """Both steps, as a reasoning trace shows them: ``8/2=4,4*4=16``."""
        return f"{self.first.text},{self.second.text}"

    @property
    def expression(self) -> str:
        """The derivation as one expression: ``(8/2)*4``."""
        inner = f"({self.first.task})"
        second = self.second
        if self.mid_is_left:
            return f"{inner}{second.operator}{second.right}"
        return f"{second.left}{second.operator}{inner}"


def derivations(numbers: Sequence[int]) -> list[Derivation]:
    """All derivations of three positive integers, in the order that a systematic search takes.

    Pairs by position, then the first operator, then the second; a difference or quotient takes
    the larger number first. Values are positive integers and nothing is divided by 1.
    """
    found = []
    for i, j, k in PAIRS:
        for operator in _OPERATORS:
            first = _step(numbers[i], operator, numbers[j])
            if first is None:
                continue
            for second_operator in _OPERATORS:
                second = _step(first.value, second_operator, numbers[k])
                if second is not None:
                    in_order = second_operator in "+*" or first.value >= numbers[k]
                    found.append(Derivation(first=first, second=second, mid_is_left=in_order))
    return found


@cache
def search_order(numbers: tuple[int, ...]) -> tuple[Derivation, ...]:
    """:func:`derivations` without those that read the same because two numbers are equal."""
    return tuple(dict.fromkeys(derivations(numbers)))


def _step(a: int, operator: str, b: int) -> Step | None:
    """``a operator b``, the larger first where order matters; None where it is not allowed."""
    large, small = max(a, b), min(a, b)
    if operator == "+":
        return Step(left=a, operator=operator, right=b, value=a + b)
    if operator == "*":
        return Step(left=a, operator=operator, right=b, value=a * b)
    if operator == "-":
        if large == small:
            return None
        return Step(left=large, operator=operator, right=small, value=large - small)
    if small == 1 or large % small:
        return None
    return Step(left=large, operator=operator, right=small, value=large // small)


def split_of(numbers: Sequence[int], target: int) -> Split:
    """The split that every order of this problem belongs to."""
    key = f"{sorted(numbers)} {target}"
    percent = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100
    if percent < TEST_PERCENT:
        return "test"
    return "dev" if percent < TEST_PERCENT + DEV_PERCENT else "train"


@cache
def universe(
    split: Split, min_solutions: int = MIN_SOLUTIONS
) -> tuple[tuple[tuple[int, int, int], int], ...]:
    """All (sorted numbers, target) of a split, in lexicographic order."""
    found: list[tuple[tuple[int, int, int], int]] = []
    for a, b, c in combinations_with_replacement(range(1, LARGEST_NUMBER + 1), 3):
        counts = Counter(derivation.value for derivation in derivations((a, b, c)))
        found.extend(
            ((a, b, c), target)
            for target in sorted(counts)
            if target <= LARGEST_TARGET
            and counts[target] >= min_solutions
            and split_of((a, b, c), target) == split
        )
    return tuple(found)


def generate(split: Split, orders: int = 2) -> list[dict[str, Any]]:
    """Rows of a split as the Countdown task reads them: ``id``, ``nums``, ``target``, ``cluster``.

    All orders of one problem have the same ``cluster``: they are not independent observations.

    Args:
        split: ``train``, ``dev`` (for tuning and for validation during training) or ``test``.
        orders: how many different orders of each problem's numbers to give, at most; the choice
            depends on the problem alone.

    Raises:
        ValueError: for an unknown split.
    """
    if split not in ("train", "dev", "test"):
        raise ValueError(f"split {split!r}: one of train, dev, test")
    return rows_of(split, universe(split), orders)


def rows_of(
    split: str, problems: Iterable[tuple[tuple[int, int, int], int]], orders: int
) -> list[dict[str, Any]]:
    """The rows of (sorted numbers, target) pairs, see :func:`generate`."""
    rows = []
    for numbers, target in problems:
        cluster = "-".join(map(str, (*numbers, target)))
        for order, nums in enumerate(_orders(numbers, target)[:orders]):
            identity = f"{split}-{cluster}-{order}"
            rows.append({"id": identity, "nums": list(nums), "target": target, "cluster": cluster})
    return rows


def _orders(numbers: tuple[int, int, int], target: int) -> list[tuple[int, ...]]:
    """The distinct orders of a problem's numbers, shuffled by the problem itself."""
    distinct = sorted(set(permutations(numbers)))
    random.Random(f"{numbers} {target}").shuffle(distinct)
    return distinct
