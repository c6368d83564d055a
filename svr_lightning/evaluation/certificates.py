"""Operating points that keep promises about new problems, with a stated confidence.

Learn then test (Angelopoulos, Bates, Candes, Jordan, Lei 2021): every threshold of a grid that was
fixed before looking at the samples is a null hypothesis "it breaks a promise", with a p-value that
is valid for any sample size and any distribution. A procedure that controls the family-wise error
at delta = 1 - confidence rejects some of them. With probability at least 1 - delta every certified
threshold keeps every promise; any may be chosen. docs/certificates.md has the proofs.

The unit is the cluster: the mean over variants of one problem. Assumed: clusters are independent
draws from one distribution; policy, decoding and T_max stay as they are.

Shapes: C clusters, G thresholds.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.core.stopping import Confident
from svr_lightning.evaluation.intervals import cluster_sums
from svr_lightning.evaluation.p_values import binomial_cdf, mean_p_value, share_p_value
from svr_lightning.evaluation.replay import replay
from svr_lightning.evaluation.table import TurnTable, pool, problem_table

STARTS = 4
"""Thresholds, evenly spaced over the grid, among which delta is shared at first."""
_HALVINGS = 50

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


# --- promises -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """What one threshold did on labelled problems."""

    threshold: float
    columns: Mapping[str, Floats]
    """[C] means over each cluster's problems: ``accepted``, answers whose turn reached the
    threshold; ``esr``, those before T_max; ``pse`` and ``wrong_accepted``, wrong ones of the two;
    ``wrong`` answers of all problems; ``tokens`` and ``turns``."""
    single: bool
    """Whether every cluster is one problem, so that losses are 0 or 1."""

    @property
    def rates(self) -> dict[str, float]:
        """The mean of each column, ``wrong_accepted`` over accepted answers, and ``escalated``."""
        found = {name: float(column.mean()) for name, column in self.columns.items()}
        accepted = found["accepted"]
        found["wrong_accepted"] = found["wrong_accepted"] / accepted if accepted else math.nan
        return {**found, "escalated": 1 - accepted}


def operating_point(
    threshold: float, columns: Mapping[str, NDArray[Any]], cluster: NDArray[np.int64]
) -> OperatingPoint:
    """The point of [N] columns over problems: those of :class:`OperatingPoint`."""
    size = cluster_sums(np.ones(len(cluster)), cluster)
    return OperatingPoint(
        threshold=threshold,
        columns={name: cluster_sums(column, cluster) / size for name, column in columns.items()},
        single=bool((size == 1).all()),
    )


def replayed_points(
    tables: Mapping[str, TurnTable], rule: Confident, thresholds: Iterable[float], max_turns: int
) -> list[OperatingPoint]:
    """``rule`` at each threshold on recorded turns; all data sets count as one mixture.

    Raises:
        ValueError: if turns are missing for a threshold.
    """
    table = pool(tables)
    points = []
    for threshold in sorted(set(thresholds), reverse=True):
        tried = replace(rule, threshold=threshold)
        outcome = replay(table, tried, max_turns)
        found = problem_table(table, outcome)
        seen = [t[:end] for t, end in zip(table.signals, outcome.observed.tolist(), strict=True)]
        accepted = np.array([bool(turns) and tried.stops(turns, max_turns) for turns in seen])
        wrong = 1 - found.problems["final_correct"]
        columns = {
            "accepted": accepted,
            "wrong_accepted": accepted * wrong,
            "wrong": wrong,
            "pse": found.ratio("pse")[0],
            "esr": found.problems["stopped_early"],
            "tokens": found.problems["total_tokens"],
            "turns": found.problems["turns"],
        }
        points.append(operating_point(threshold, columns, table.cluster))
    return points


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The mean loss of new problems is at most ``limit``."""

    name: str
    """``pse``: share of problems that stop before T_max with a wrong answer. ``wrong_accepted``:
    share of wrong ones among accepted answers. ``wrong``: share of wrong answers. ``escalated``:
    share of problems without an accepted answer. ``tokens``: mean of prompts and completions."""
    limit: float
    bound: float = 1.0
    """No problem's loss is larger, known beforehand: for tokens T_max times the model's length."""

    def losses(self, point: OperatingPoint) -> Floats:
        """[C] losses in [0, bound], whose mean is above the limit where the promise is broken.

        For ``wrong_accepted``, a ratio of two means, these are wrong + limit (1 - accepted):
        E wrong <= limit E accepted is the promise.
        """
        if self.name == "wrong_accepted":
            rest = self.limit * (1 - point.columns["accepted"])
            return np.minimum(point.columns["wrong_accepted"] + rest, 1.0)  # rounding
        if self.name == "escalated":
            return 1 - point.columns["accepted"]
        return point.columns[self.name]

    def p_value(self, point: OperatingPoint) -> float:
        """Of "the promise is broken": exact for single problems, a betting test for clusters."""
        if counts := self._counts(point):
            return share_p_value(*counts, self.limit)
        return mean_p_value(self.losses(point), self.limit, self.bound)

    def drift_p_value(self, point: OperatingPoint) -> float:
        """Of "the promise still holds" on new problems: small where they break it."""
        if counts := self._counts(point):
            failures, n = counts
            return share_p_value(n - failures, n, 1 - self.limit)
        kept = self.bound - self.losses(point)
        return mean_p_value(kept, self.bound - self.limit, self.bound)

    def upper_bound(self, point: OperatingPoint, level: float) -> float:
        """The smallest limit that would be granted at ``level``; valid for this point alone.

        Of a share of single problems it is the one-sided bound of Clopper and Pearson.
        """
        return _smallest(lambda x: replace(self, limit=x).p_value(point) <= level, self.bound)

    def _counts(self, point: OperatingPoint) -> tuple[int, int] | None:
        """Failures and trials, where a binomial law holds for them."""
        if not point.single or self.name == "tokens":
            return None
        if self.name == "wrong_accepted":  # given which answers are accepted
            accepted = point.columns["accepted"].sum()
            return round(point.columns["wrong_accepted"].sum()), round(accepted)
        losses = self.losses(point)
        return round(losses.sum()), len(losses)


# --- the choice ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One threshold of a grid and what was certified of it."""

    threshold: float
    rates: dict[str, float]
    """What was seen, see :class:`OperatingPoint`."""
    level: float
    """Share of delta it was tested at; 0 where no test was left for it."""
    p_values: dict[str, float]
    """By promise."""
    certified: bool

    @property
    def broken(self) -> list[str]:
        """The promises that could not be certified at its level."""
        return [name for name, p in self.p_values.items() if self.level == 0 or p > self.level]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certification:
    """Every threshold, and the choice."""

    candidates: tuple[Candidate, ...]
    """From the strictest threshold down."""
    choice: Candidate | None
    """The certified one with the fewest tokens."""
    bounds: dict[str, float]
    """By promise, the one-sided bound of the choice at its level. It would hold for a threshold
    that was named beforehand; only the promises hold for the one that was chosen."""
    smallest: dict[str, float]
    """Without a choice, by promise: the least limit with which these samples would have certified
    a threshold, the other promises as they are; a promise that does not help is left out."""


def certify(
    points: Sequence[OperatingPoint], promises: Sequence[Promise], delta: float
) -> Certification:
    """Test each point and choose.

    Args:
        points: of a grid that was chosen without looking at the samples.
        promises: all of them have to hold; the p-value of a point is the largest of theirs.
        delta: 1 - confidence.
    """
    candidates = tested(points, promises, delta)
    choice = cheapest(candidates)
    if choice is None:
        points = sorted(points, key=lambda point: -point.threshold)
        levels = start_levels(len(points), delta, starts_of(promises, len(points)))
        smallest = {one.name: _smallest_limit(points, promises, one, levels) for one in promises}
        known = {name: limit for name, limit in smallest.items() if limit is not None}
        return Certification(candidates=candidates, choice=None, bounds={}, smallest=known)
    (point,) = (point for point in points if point.threshold == choice.threshold)
    bounds = {one.name: one.upper_bound(point, choice.level) for one in promises}
    return Certification(candidates=candidates, choice=choice, bounds=bounds, smallest={})


def tested(
    points: Sequence[OperatingPoint], promises: Sequence[Promise], delta: float
) -> tuple[Candidate, ...]:
    """Each point, from the strictest threshold down; the arguments are those of :func:`certify`."""
    points = sorted(points, key=lambda point: -point.threshold)
    p_values = [{one.name: one.p_value(point) for one in promises} for point in points]
    levels = start_levels(len(points), delta, starts_of(promises, len(points)))
    certified, tried = sequential_test([max(each.values()) for each in p_values], levels)
    rows = zip(points, p_values, tried.tolist(), certified.tolist(), strict=True)
    return tuple(
        Candidate(
            threshold=point.threshold,
            rates=point.rates,
            level=level,
            p_values=values,
            certified=holds,
        )
        for point, values, level, holds in rows
    )


def cheapest(candidates: Sequence[Candidate]) -> Candidate | None:
    """The certified one with the fewest tokens."""
    return min((row for row in candidates if row.certified), key=_cost, default=None)


def starts_of(promises: Sequence[Promise], size: int) -> int:
    """Among how many of ``size`` thresholds delta is shared at first.

    A promise on premature stops alone is kept most easily by the strictest thresholds, so that a
    few starts do. Others may be kept in the middle of the grid alone: then every threshold is a
    start, which certifies all that Bonferroni's correction would, and more.
    """
    return min(STARTS, size) if all(one.name == "pse" for one in promises) else size


def start_levels(size: int, delta: float, starts: int) -> Floats:
    """[size] how delta is shared: evenly among ``starts`` places, the first of them place 0."""
    levels = np.zeros(size)
    levels[np.arange(starts) * size // starts] = delta / starts
    return levels


def sequential_test(p_values: Iterable[float], levels: Floats) -> tuple[Bools, Floats]:
    """Fixed-sequence testing with several starts, each handing on what it has kept.

    A threshold is certified where its p-value is at most its own share of delta plus, if the one
    before was certified, the level that this one was tested at (the fallback procedure, Wiens
    2003; with one start it is plain fixed-sequence testing). The family-wise error is at most
    delta = sum(levels), whether or not the losses are monotone in the threshold: monotony only
    decides how far down one comes.

    Args:
        p_values: [G] from the strictest threshold down.
        levels: [G] shares of delta.

    Returns:
        [G] which are certified, and the level at which each was tested.
    """
    certified, tested = np.zeros(len(levels), dtype=np.bool_), np.zeros(len(levels))
    carried = 0.0
    for place, (p_value, own) in enumerate(zip(p_values, levels, strict=True)):
        tested[place] = level = own + carried
        certified[place] = level > 0 and p_value <= level
        carried = level if certified[place] else 0.0
    return certified, tested


def labels_needed(limit: float, share: float, delta: float, power: float = 0.9) -> int:
    """The fewest independent labels with which a promise on a share can be expected to be kept.

    With n of them and at most k failures the exact test certifies ``limit`` at ``delta``; the
    chance of at most k failures is ``power`` if their share is really ``share``. For a promise on
    accepted answers labels are accepted ones.

    Raises:
        ValueError: if ``share`` is not below ``limit``, so that no number suffices.

    Examples:
        >>> labels_needed(0.1, 0.0, 0.1)
        22
    """
    if not 0 <= share < limit < 1:
        raise ValueError(f"a share of {share:g} never certifies a limit of {limit:g}")
    failures, n = 0, 1
    while True:
        high = n
        while binomial_cdf(failures, high, limit) > delta:
            n, high = high + 1, 2 * high
        while n < high:  # more labels with as many failures never certify less
            middle = (n + high) // 2
            if binomial_cdf(failures, middle, limit) <= delta:
                high = middle
            else:
                n = middle + 1
        if binomial_cdf(failures, n, share) >= power:
            return n
        failures += 1


def _cost(row: Candidate) -> tuple[float, float, float]:
    """Fewest tokens first; of equals more right answers, then the stricter threshold."""
    return row.rates["tokens"], row.rates["wrong"], -row.threshold


def _smallest_limit(
    points: Sequence[OperatingPoint], promises: Sequence[Promise], one: Promise, levels: Floats
) -> float | None:
    """Bisection: a larger limit never certifies less."""
    others = [promise for promise in promises if promise is not one]
    fixed = [max((other.p_value(p) for other in others), default=0.0) for p in points]

    def some(limit: float) -> bool:
        tried = replace(one, limit=limit)
        found = [max(tried.p_value(p), other) for p, other in zip(points, fixed, strict=True)]
        return bool(sequential_test(found, levels)[0].any())

    return _smallest(some, one.bound) if some(one.bound) else None


def _smallest(granted: Callable[[float], bool], high: float) -> float:
    """The smallest value in [0, high] from which on a monotone condition holds."""
    low = 0.0
    if granted(low):
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if granted(middle) else (middle, high)
    return high
