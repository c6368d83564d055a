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
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, permutations
from typing import Any, Literal, get_args

Split = Literal["train", "dev", "test", "outside"]

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
    *("++", "+-", "-+", "--", "**", "*/", "/*", "//"),
    *("+*", "*+", "-*", "*-", "+/", "/+", "-/", "/-"),
)
"""Operators of the first and second step. Derivations that are equal by algebra are neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation on two positive integers, with a positive integer as its value: ``8/2=4``."""

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


@cache
def search_order(numbers: tuple[int, ...]) -> tuple[Derivation, ...]:
    """The different derivations of three positive integers, in the order of a systematic search.

    Operators first, then pairs by position; a difference or quotient takes the larger number
    first. Values are positive integers up to :data:`LARGEST_VALUE`; nothing is divided by 1.
    """
    found = []
    for operators in _OPERATORS:
        for i, j, k in PAIRS:
            first = _step(numbers[i], operators[0], numbers[j])
            if first is None:
                continue
            second = _step(first.value, operators[1], numbers[k])
            if second is not None:
                in_order = operators[1] in "+*" or first.value >= numbers[k]
                found.append(Derivation(first=first, second=second, mid_is_left=in_order))
    return tuple(dict.fromkeys(found))


def _step(a: int, operator: str, b: int) -> Step | None:
    """``a operator b``, the larger first where order matters; None where it is not allowed."""
    large, small = max(a, b), min(a, b)
    if operator in "+*":
        value = a + b if operator == "+" else a * b
        allowed = value <= LARGEST_VALUE
        return Step(left=a, operator=operator, right=b, value=value) if allowed else None
    if operator == "-":
        allowed, value = large > small, large - small
    else:
        allowed, value = small > 1 and large % small == 0, large // small
    return Step(left=large, operator=operator, right=small, value=value) if allowed else None


def split_of(numbers: Sequence[int]) -> Split | None:
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
    split: Split, min_solutions: int = MIN_SOLUTIONS
) -> tuple[tuple[tuple[int, int, int], int], ...]:
    """All (sorted numbers, target) of a split, in lexicographic order."""
    largest = LARGEST_OUTSIDE if split == "outside" else LARGEST_NUMBER
    found: list[tuple[tuple[int, int, int], int]] = []
    for a, b, c in combinations_with_replacement(range(1, largest + 1), 3):
        if split_of((a, b, c)) != split:
            continue
        counts = Counter(derivation.value for derivation in search_order((a, b, c)))
        found.extend(
            ((a, b, c), target)
            for target in sorted(counts)
            if target <= LARGEST_TARGET and counts[target] >= min_solutions
        )
    return tuple(found)


def generate(split: Split, orders: int = 2) -> list[dict[str, Any]]:
    """Rows of a split as the Countdown task reads them: ``id``, ``nums``, ``target``, ``cluster``.

    All orders of one problem have the same ``cluster``: they are not independent observations.

    Args:
        split: ``train``, ``dev`` (for tuning and for validation during training), ``test``, or
            ``outside`` (a test set with numbers that are larger than those of training).
        orders: how many different orders of each problem's numbers to give, at most; the choice
            depends on the problem alone.

    Raises:
        ValueError: for an unknown split.
    """
    if split not in get_args(Split):
        raise ValueError(f"split {split!r}: one of {', '.join(get_args(Split))}")
    rows = []
    for numbers, target in universe(split):
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
