"""Countdown problems: generated ones in the format of the hub's data set, and the hub's split.

Generated ones follow what is observable of ``Jiayi-Pan/Countdown-Tasks-3to4``: every problem can
be solved with *all* its numbers through intermediate results that are non-negative integers,
divisions being exact. The size and the target are drawn first and numbers until they reach the
target, so that both stay close to uniform. No multiset of numbers and target occurs twice.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np

from svr_lightning.errors import ConfigError

CountdownSplit = Literal["countdown_train", "countdown_eval"]

TRAINING_ROWS = 50_000
EVALUATION_ROWS = 1_000
MAX_SIZE = 5
"""Most numbers of one problem: reachable values grow by a factor of 12 per number."""
_DRAWS_PER_TARGET = 1_000
_TARGETS_PER_PROBLEM = 50


@dataclass(frozen=True, kw_only=True)
class CountdownGenerator:
    """A stream of Countdown problems, and which part of it to take."""

    count: int = 1000
    """Number of problems."""
    start: int = 0
    """Problems of the stream to pass over first. A held-out set that starts where the training
    set of the same seed ends has no problem in common with it."""
    sizes: tuple[int, ...] = (3, 4)
    """How many numbers a problem has; each size is equally likely."""
    max_number: int = 99
    """Numbers lie between 1 and this."""
    min_target: int = 10
    """Smallest target."""
    max_target: int = 100
    """Largest target."""
    seed: int = 42
    """Problem k of the stream depends on this and on the four settings above, not on count."""

    def check(self) -> None:
        """Refuse settings that make no sense.

        Raises:
            ConfigError: naming the setting.
        """
        problem = ""
        if self.count < 1 or self.start < 0:
            problem = f"count={self.count} must be positive and start={self.start} not negative"
        elif not self.sizes or not all(2 <= size <= MAX_SIZE for size in self.sizes):
            problem = f"sizes={list(self.sizes)} must hold numbers from 2 to {MAX_SIZE}"
        elif self.max_number < 1:
            problem = f"max_number={self.max_number} must be positive"
        elif not 0 <= self.min_target <= self.max_target:
            problem = f"min_target={self.min_target} must lie in [0, max_target={self.max_target}]"
        if problem:
            raise ConfigError(f"generate: {problem}")


def generate_rows(generator: CountdownGenerator) -> list[dict[str, Any]]:
    """The rows of a generator: ``{"nums": [44, 19, 35], "target": 98}``.

    Raises:
        ConfigError: if its settings do not allow that many different problems.

    Examples:
        >>> generate_rows(CountdownGenerator(count=2, seed=0))
        [{'nums': [42, 26, 51, 41], 'target': 78}, {'nums': [28, 75, 62, 25], 'target': 37}]
    """
    generator.check()
    return list(islice(_stream(generator), generator.start, generator.start + generator.count))


def reachable(numbers: Sequence[int]) -> set[int]:
    """All values of expressions that use each number once, over non-negative integers.

    Subtractions that fall below zero and divisions with a remainder are not taken.

    Examples:
        >>> sorted(reachable([6, 3]))
        [2, 3, 9, 18]
    """
    values: dict[int, set[int]] = {}
    for subset in range(1, 1 << len(numbers)):
        if subset & (subset - 1) == 0:
            values[subset] = {numbers[subset.bit_length() - 1]}
            continue
        values[subset] = set()
        part = (subset - 1) & subset
        while part:
            rest = subset ^ part
            if part < rest:  # each way to split a subset comes up twice
                values[subset] |= _combined(values[part], values[rest])
            part = (part - 1) & subset
    return values[(1 << len(numbers)) - 1]


def _combined(left: set[int], right: set[int]) -> set[int]:
    found: set[int] = set()
    for a in left:
        for b in right:
            large, small = (a, b) if a >= b else (b, a)
            found.update((a + b, a * b, large - small))
            if small and large % small == 0:
                found.add(large // small)
    return found


def _stream(generator: CountdownGenerator) -> Iterator[dict[str, Any]]:
    # random() is the one method whose values Python promises to keep from version to version.
    uniform = random.Random(generator.seed).random  # noqa: S311
    seen: set[tuple[int, ...]] = set()
    while True:
        for _ in range(_TARGETS_PER_PROBLEM):
            row = _draw(generator, uniform, seen)
            if row is not None:
                yield row
                break
        else:
            raise ConfigError(
                f"generate: found {len(seen)} different problems and then no further one; these "
                f"settings do not allow start + count = {generator.start + generator.count}, "
                "lower it or widen sizes, max_number or the targets"
            )


def _draw(
    generator: CountdownGenerator, uniform: Callable[[], float], seen: set[tuple[int, ...]]
) -> dict[str, Any] | None:
    """One problem that is not in ``seen``, or None if no numbers for its target are found."""
    size = generator.sizes[int(uniform() * len(generator.sizes))]
    targets = generator.max_target - generator.min_target + 1
    target = generator.min_target + int(uniform() * targets)
    for _ in range(_DRAWS_PER_TARGET):
        numbers = [1 + int(uniform() * generator.max_number) for _ in range(size)]
        key = (target, *sorted(numbers))
        if key not in seen and target in reachable(numbers):
            seen.add(key)
            return {"nums": numbers, "target": target}
    return None


def countdown_split(pool: int, part: CountdownSplit) -> list[int]:
    """Row indices of the paper's Countdown split.

    Training rows are the first 50,000 of ``numpy.random.default_rng(42).permutation(pool)``,
    evaluation rows the first 1,000 of ``default_rng(0).permutation`` of the others in ascending
    order. On the hub's rows this equals ``shuffle(seed=42)`` and ``shuffle(seed=0)`` of the
    ``datasets`` package.

    Raises:
        ValueError: if the pool has fewer than 51,000 rows.
    """
    if pool < TRAINING_ROWS + EVALUATION_ROWS:
        raise ValueError(
            f"select: {part} draws from at least {TRAINING_ROWS + EVALUATION_ROWS} rows and "
            f"there are {pool}; point path at the whole data set, or remove select and use limit"
        )
    order = np.random.default_rng(42).permutation(pool)
    if part == "countdown_train":
        return [int(index) for index in order[:TRAINING_ROWS]]
    rest = np.sort(order[TRAINING_ROWS:])
    drawn = np.random.default_rng(0).permutation(len(rest))[:EVALUATION_ROWS]
    return [int(index) for index in rest[drawn]]
