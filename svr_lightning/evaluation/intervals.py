"""Intervals of metrics, over clusters of problems.

Variants of one problem are not independent: every resample and split here takes a cluster
whole. A problem's turns stay together for the same reason. Nothing here speaks of another decoding
seed or another training run.

Shapes: N problems, C clusters, R resamples. ``cluster`` is [N] codes 0..C-1.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.evaluation.calibration import ConfidenceCounts

RESAMPLES = 1000
Z_95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: half the width of a 95 % interval, in sigmas."""
_AT_ONCE = 100  # resamples whose turns are in memory together

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


def wilson_interval(proportion: float, n: float) -> list[float] | None:
    """The 95 % Wilson score interval of a proportion of n trials; None without trials.

    Examples:
        >>> [round(bound, 3) for bound in wilson_interval(0.8, 10)]
        [0.49, 0.943]
    """
    if n == 0:
        return None
    share = Z_95**2 / n
    centre = (proportion + share / 2) / (1 + share)
    half = math.sqrt(share * (proportion * (1 - proportion) + share / 4)) / (1 + share)
    low = 0.0 if proportion == 0 else max(centre - half, 0.0)
    high = 1.0 if proportion == 1 else min(centre + half, 1.0)
    return [low, high]


def effective_size(values: NDArray[Any], cluster: Ints) -> float:
    """How many independent problems the mean of [N] ``values`` is worth, at most N.

    N divided by the design effect, the ratio of the mean's variance over clusters to that over
    problems; C if all values are equal.

    Examples:
        >>> effective_size(np.array([1, 1, 0, 0]), np.array([0, 0, 1, 1]))
        2.0
    """
    n = len(values)
    if n == 0 or _clusters(cluster) == n:
        return float(n)
    gap = values - values.mean()
    within = float((gap**2).sum())
    if within == 0:
        return float(_clusters(cluster))
    between = float((cluster_sums(gap, cluster) ** 2).sum())
    return n / max(1.0, between / within)


def mean_variance(values: NDArray[Any], cluster: Ints) -> float:
    """Estimated variance of the mean of [N] ``values``, clusters being independent."""
    count = _clusters(cluster)
    if count < 2:
        return 0.0
    sums = cluster_sums(values - values.mean(), cluster)
    return float((sums**2).sum() * count / (count - 1) / len(values) ** 2)


def cluster_sums(values: NDArray[Any], cluster: Ints) -> Floats:
    """[C] sums of [N] values over each cluster."""
    return np.bincount(cluster, weights=values, minlength=_clusters(cluster)).astype(np.float64)


def resample_counts(cluster: Ints, resamples: int, seed: int) -> NDArray[np.int32]:
    """[R, N] how often each problem is in each resample of the C clusters."""
    count = _clusters(cluster)
    if count == 0:
        return np.zeros((resamples, 0), dtype=np.int32)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), resamples)
    return draws.astype(np.int32)[:, cluster]


def split_clusters(cluster: Ints, share: float, seed: int) -> Bools:
    """[N] a random ``share`` of the clusters, rounded down."""
    count = _clusters(cluster)
    order = np.random.default_rng(seed).permutation(count)
    return np.isin(cluster, order[: int(share * count)])


def percentile_interval(values: Floats) -> list[float] | None:
    """The 2.5 % and 97.5 % quantiles of the resamples in which a metric is defined; else None."""
    defined = values[~np.isnan(values)]
    if len(defined) == 0:
        return None
    return [float(bound) for bound in np.quantile(defined, (0.025, 0.975))]


def ratio_resamples(
    ratios: Mapping[str, tuple[Floats, Floats]], counts: NDArray[np.int32]
) -> dict[str, Floats]:
    """[R] resamples of metrics that are a sum over problems divided by another.

    Args:
        ratios: by name, numerator and denominator of each problem, [N] each.
        counts: [R, N], see :func:`resample_counts`.
    """
    columns = np.stack([column for pair in ratios.values() for column in pair], axis=1)
    sums = counts.astype(np.float64) @ columns
    below = np.where(sums[:, 1::2] > 0, sums[:, 1::2], np.nan)
    return dict(zip(ratios, (sums[:, ::2] / below).T, strict=True))


def level_resamples(
    confidence: Floats,
    correct: NDArray[Any],
    row: Ints,
    counts: NDArray[np.int32],
    statistics: Callable[[ConfidenceCounts], Mapping[str, Floats]],
) -> dict[str, Floats]:
    """[R] resamples of statistics of turns' confidences, such as AUROC or ECE.

    Args:
        confidence: [O] of turns.
        correct: [O]
        row: [O] the problem of each turn.
        counts: [R, N], see :func:`resample_counts`.
        statistics: values of shape [R] from levels with counts [R, U].
    """
    parts = [statistics(part) for part in _resampled(confidence, correct, row, counts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _resampled(
    confidence: Floats, correct: NDArray[Any], row: Ints, counts: NDArray[np.int32]
) -> Iterator[ConfidenceCounts]:
    order = np.argsort(confidence, kind="stable")
    values, starts = np.unique(confidence[order], return_index=True)
    label, problem = correct[order], row[order]
    for begin in range(0, len(counts), _AT_ONCE):
        weight = counts[begin : begin + _AT_ONCE, problem]
        sums = [
            np.add.reduceat(column, starts, axis=1).astype(np.float64)
            if len(starts)
            else np.zeros((len(weight), 0))
            for column in (weight, weight * label)
        ]
        yield ConfidenceCounts(confidence=values, total=sums[0], right=sums[1])


def best_within_cost(
    correct: NDArray[Any], tokens: NDArray[Any], budget: Floats, cluster: Ints
) -> tuple[Floats, Floats, list[int]] | None:
    """The most accurate option within a token budget, chosen and measured on different clusters.

    On each half of the clusters the option is chosen whose mean tokens there are within the mean
    budget there, and it is measured on the other half: a winner's own problems would flatter it.

    Args:
        correct: [K, N] of K options, such as thresholds and fixed budgets.
        tokens: [K, N]
        budget: [N] tokens that may be spent, such as another policy's.
        cluster: [N]

    Returns:
        [N] ``correct`` and [N] ``tokens`` of the chosen options, and the option chosen on the even
        and on the odd clusters; None if no option is cheap enough, or there is only one cluster.
    """
    even = cluster % 2 == 0
    chosen_correct, chosen_tokens = np.zeros(len(budget)), np.zeros(len(budget))
    options = []
    for seen in (even, ~even):
        if not seen.any() or seen.all():
            return None
        cost, accuracy = tokens[:, seen].mean(1), correct[:, seen].mean(1)
        cheap = cost <= budget[seen].mean()
        if not cheap.any():
            return None
        best = int(np.lexsort((cost, -np.where(cheap, accuracy, -1.0)))[0])
        options.append(best)
        chosen_correct[~seen], chosen_tokens[~seen] = correct[best, ~seen], tokens[best, ~seen]
    return chosen_correct, chosen_tokens, options


def _clusters(cluster: Ints) -> int:
    return int(cluster.max(initial=-1)) + 1
