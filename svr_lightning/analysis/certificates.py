"""Operating points with guaranteed limits on new problems, at a stated confidence.

Learn then test (Angelopoulos, Bates, Candes, Jordan, Lei 2021): every threshold of a grid that was
fixed before looking at the samples is a null hypothesis "it violates a promise", with a p-value
that is valid for any sample size and distribution. A procedure that controls the family-wise error
at delta = 1 - confidence rejects some of them. With probability at least 1 - delta every certified
threshold keeps every promise; any may be chosen. docs/certificates.md has the proofs.

The unit is the cluster: the mean over variants of one problem. Assumed: clusters are independent
draws from one distribution; policy, decoding and T_max do not change.

Shapes: C clusters, G thresholds.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.analysis.intervals import cluster_sums
from svr_lightning.analysis.operating_point import Promise
from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.table import Bools, Floats, TurnTable, pool
from svr_lightning.core.stopping import StopRule
from svr_lightning.errors import ConfigError, require

STARTS = 4
"""Number of thresholds, evenly spaced over the grid, among which delta is divided at first."""
POWER = 0.9
"""How likely a promise that is kept is to be certified, where labels are counted."""
_BETS = np.arange(1, 21) / 20


# --- what rules do ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What a rule did on labelled problems."""

    rule: StopRule
    columns: Mapping[str, Floats]
    """[C] means over each cluster's problems: ``accepted``, answers that the rule
    accepts; ``early``, those accepted before T_max; ``wrong_accepted`` and ``pse``, wrong answers
    among either; ``wrong``, problems without a correct answer; ``tokens`` and ``turns``."""
    single: bool
    """Whether every cluster is one problem, so that losses are 0 or 1."""

    @classmethod
    def of(
        cls, rule: StopRule, columns: Mapping[str, NDArray[Any]], cluster: NDArray[np.int64]
    ) -> "Replayed":
        """Averages [N] columns over each cluster's problems."""
        size = np.bincount(cluster)
        means = {name: cluster_sums(column, cluster) / size for name, column in columns.items()}
        return cls(rule=rule, columns=means, single=bool((size == 1).all()))

    @property
    def threshold(self) -> float:
        """The value of the rule's field that was varied."""
        return float(self.rule.bound)

    @property
    def rates(self) -> dict[str, float]:
        """The mean of each column, ``wrong_accepted`` over accepted answers."""
        rates = {name: float(column.mean()) for name, column in self.columns.items()}
        accepted = rates["accepted"]
        rates["wrong_accepted"] = rates["wrong_accepted"] / accepted if accepted else math.nan
        return rates

    def losses(self, promise: Promise) -> Floats:
        """[C] losses in [0, bound], whose mean is above the limit if the promise is violated.

        For ``wrong_accepted``, a ratio of two means, these are wrong + limit (1 - accepted):
        E wrong <= limit E accepted is the promise.
        """
        if promise.name == "wrong_accepted":
            rest = promise.limit * (1 - self.columns["accepted"])
            return np.minimum(self.columns["wrong_accepted"] + rest, 1.0)  # rounding
        return self.columns[promise.name]

    def p_value(self, promise: Promise) -> float:
        """P-value of "the promise is violated": exact for problems, a betting test for clusters."""
        if counts := self._counts(promise):
            return binomial_cdf(*counts, promise.limit)
        return mean_p_value(self.losses(promise), promise.limit, promise.bound)

    def drift_p_value(self, promise: Promise) -> float:
        """P-value of "the promise still holds" on new problems: small if they violate it."""
        if counts := self._counts(promise):
            failures, n = counts
            return binomial_cdf(n - failures, n, 1 - promise.limit)
        kept = promise.bound - self.losses(promise)
        return mean_p_value(kept, promise.bound - promise.limit, promise.bound)

    def _counts(self, promise: Promise) -> tuple[int, int] | None:
        """Failures and trials, if they follow a binomial distribution."""
        if not self.single or promise.name == "tokens":
            return None
        if promise.name == "wrong_accepted":  # given which answers are accepted
            accepted = self.columns["accepted"].sum()
            return round(self.columns["wrong_accepted"].sum()), round(accepted)
        losses = self.losses(promise)
        return round(losses.sum()), len(losses)


def replay_rules(
    tables: Mapping[str, TurnTable], rules: Iterable[StopRule], max_turns: int
) -> list[Replayed]:
    """Rules on recorded turns with T_max = ``max_turns``; all data sets count as one mixture.

    Raises:
        ValueError: if turns are missing for a rule.
    """
    table = pool(tables)
    points = []
    for rule in rules:
        ended = replay(table, rule, max_turns)
        accepted = ended.accepted
        early = accepted & ended.stopped_early
        wrong = 1 - ended.problems["final_correct"]
        columns = {
            "accepted": accepted,
            "wrong_accepted": accepted * wrong,
            "wrong": wrong,
            "early": early,
            "pse": early * wrong,
            "turns": ended.problems["turns"],
            "tokens": ended.problems["total_tokens"],
        }
        points.append(Replayed.of(rule, columns, table.cluster))
    return points


# --- p-values -----------------------------------------------------------------------------------


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) <= k): the p-value of "the share of failures is above p", from k of n.

    Examples:
        >>> round(binomial_cdf(1, 2, 0.5), 12)
        0.75
    """
    if k >= n or p <= 0:
        return 1.0
    if k < 0 or p >= 1:
        return 0.0
    j = np.arange(1, k + 1)
    chosen = np.concatenate([[0.0], np.cumsum(np.log((n - j + 1) / j))])
    successes = np.arange(k + 1)
    masses = np.exp(chosen + successes * math.log(p) + (n - successes) * math.log1p(-p))
    return min(math.fsum(masses.tolist()), 1.0)


def mean_p_value(values: Floats, limit: float, bound: float = 1.0) -> float:
    """P-value of "the mean is above ``limit``" for values known to be in [0, bound].

    A betting test (Waudby-Smith and Ramdas 2024): with x = value / bound and m = limit / bound,
    the capital prod(1 + l (m - x)) of a bet 0 <= l <= 1 / (1 - m) has expectation at most 1 under
    the null, and so has its mean over a fixed grid of bets; 1 / capital is a p-value (Markov). It
    does not depend on the order of the values.

    Raises:
        ConfigError: if a value lies outside [0, bound].
    """
    if len(values) and (values.min() < 0 or values.max() > bound):
        raise ConfigError(
            f"a problem's loss lies outside [0, {bound:g}]; give a larger token bound"
        )
    share = limit / bound
    if share >= 1:
        return 0.0  # the bound itself keeps this promise
    if len(values) == 0 or share <= 0:
        return 1.0
    distinct, counts = np.unique(values, return_counts=True)
    with np.errstate(divide="ignore"):  # a bet of everything may lose everything
        gains = np.log1p(_BETS[:, None] / (1 - share) * (share - distinct / bound))
    capital = (gains * counts).sum(1)
    most = capital.max()
    if most <= 0:  # no bet has won, so that their mean is at most 1
        return 1.0
    return float(min(1.0, math.exp(-most) / np.exp(capital - most).mean()))


# --- the choice ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One rule of a grid and what was certified of it."""

    threshold: float
    rates: dict[str, float]
    """Observed rates, see :class:`Replayed`."""
    level: float
    """Level at which it was tested; 0 if it was not tested."""
    p_values: dict[str, float]
    """The p-value of each promise, by name."""
    certified: bool


def candidates_of(
    points: Iterable[Replayed], promises: Sequence[Promise], delta: float
) -> tuple[Candidate, ...]:
    """Each point by decreasing threshold.

    Args:
        points: of a grid that was chosen without looking at the samples.
        promises: all must hold; the p-value of a point is the largest of theirs.
        delta: 1 - confidence.
    """
    points = sorted(points, key=lambda point: -point.threshold)
    p_values: list[dict[str, float]] = [
        {promise.name: point.p_value(promise) for promise in promises} for point in points
    ]
    levels = start_levels(promises, len(points), delta)
    certified, tried = sequential_test([max(each.values()) for each in p_values], levels)
    return tuple(
        Candidate(
            threshold=point.threshold,
            rates=point.rates,
            level=level,
            p_values=values,
            certified=holds,
        )
        for point, values, level, holds in zip(
            points, p_values, tried.tolist(), certified.tolist(), strict=True
        )
    )


def cheapest(candidates: Sequence[Candidate], promises: Sequence[Promise]) -> Candidate | None:
    """The certified one with the fewest tokens that accepts answers which could break a promise.

    Of equals, or without tokens, the one with the fewest turns; then the more accurate; then the
    one that accepts more, which decides if there is one turn; then the stricter.
    """

    def useful(row: Candidate) -> bool:
        accepts = row.certified and row.rates["accepted"] > 0
        return accepts and any(promise.can_be_broken(row.rates) for promise in promises)

    def cost(row: Candidate) -> tuple[float, ...]:
        rates = row.rates
        tokens = np.nan_to_num(rates["tokens"])
        return tokens, rates["turns"], rates["wrong"], -rates["accepted"], -row.threshold

    return min(filter(useful, candidates), key=cost, default=None)


def start_levels(promises: Sequence[Promise], size: int, delta: float) -> Floats:
    """[size] shares of delta: equal at the starts, one of which is the strictest threshold.

    A promise on premature stops alone is satisfied most easily by the strictest thresholds, so
    :data:`STARTS` of them are enough. Others may hold only in the middle of the grid: then every
    threshold is a start, which certifies everything that Bonferroni's correction would, and more.
    """
    starts = min(STARTS, size) if all(promise.name == "pse" for promise in promises) else size
    levels = np.zeros(size)
    levels[np.arange(starts) * size // starts] = delta / starts
    return levels


def sequential_test(p_values: Iterable[float], levels: Floats) -> tuple[Bools, Floats]:
    """Fixed-sequence testing with several starts, each passing on its level if certified.

    A threshold is certified if its p-value is at most its own share of delta plus, if the
    previous one was certified, the level of that one (the fallback procedure, Wiens 2003; with
    one start it is plain fixed-sequence testing). The family-wise error is at most
    delta = sum(levels), whether or not the losses are monotone in the threshold; monotony only
    affects how many are certified.

    Args:
        p_values: [G] from the strictest threshold down.
        levels: [G] shares of delta.

    Returns:
        [G] which are certified, and the level at which each was tested.
    """
    certified, tested = np.zeros(len(levels), dtype=np.bool_), np.zeros(len(levels))
    carried = 0.0
    for index, (p_value, share) in enumerate(zip(p_values, levels, strict=True)):
        level = share + carried
        tested[index] = level
        certified[index] = level > 0 and p_value <= level
        carried = level if certified[index] else 0.0
    return certified, tested


def labels_needed(limit: float, share: float, delta: float) -> int:
    """The smallest number of independent labels for which a promise on a share is likely certified.

    With n of them and at most k failures the exact test certifies ``limit`` at ``delta``; the
    chance of at most k failures is :data:`POWER` if their true share is ``share``. For a promise on
    accepted answers, only accepted answers count as labels.

    Raises:
        ValueError: if ``share`` is not below ``limit``, so that no number suffices.

    Examples:
        >>> labels_needed(0.1, 0.0, 0.1)
        22
    """
    require(0 <= share < limit < 1, f"a share of {share:g} never certifies a limit of {limit:g}")
    failures, n = 0, 1
    while True:
        # More labels with as few failures make the p-value smaller.
        n = bisect_left(
            range(2**53),
            True,
            lo=n,
            key=lambda labels: binomial_cdf(failures, labels, limit) <= delta,
        )
        require(n < 2**53, f"a limit of {limit:g} needs more labels than can be counted")
        if binomial_cdf(failures, n, share) >= POWER:
            return n
        failures += 1
