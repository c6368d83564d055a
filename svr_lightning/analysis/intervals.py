"""Intervals of metrics, over clusters of problems.

Variants of one problem are not independent: every resample and split here takes a cluster
whole. A problem's turns stay together for the same reason. Intervals do not include the variation
between decoding seeds or training runs.

Shapes: N problems, C clusters, R resamples. ``cluster`` is [N] codes 0..C-1.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.analysis.table import Bools, Floats, Ints

Z_95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: half the width of a 95 % interval, in sigmas."""


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
    """The effective number of independent problems in the mean of [N] ``values``, at most N.

    N divided by the design effect, the ratio of the mean's variance over clusters to that over
    problems; C if all values are equal, and 1 in one cluster, which tells nothing of others.

    Examples:
        >>> effective_size(np.array([1, 1, 0, 0]), np.array([0, 0, 1, 1]))
        2.0
    """
    n, count = len(values), _clusters(cluster)
    if n == 0 or count in (1, n):
        return float(count)
    gap = values - values.mean()
    within = float((gap**2).sum())
    if within == 0:
        return float(count)
    between = float((cluster_sums(gap, cluster) ** 2).sum())
    return n / max(1.0, between / within)


def cluster_sums(values: NDArray[Any], cluster: Ints) -> Floats:
    """[C] sums of [N] values over each cluster."""
    return np.bincount(cluster, weights=values, minlength=_clusters(cluster)).astype(np.float64)


def resample_counts(cluster: Ints, resamples: int, seed: int) -> NDArray[np.uint8]:
    """[R, N] how often each problem is in each resample of the C clusters: a few times at most."""
    count = _clusters(cluster)
    rng = np.random.default_rng(seed)
    shares = np.full(count, 1 / max(count, 1))
    counts = np.zeros((resamples, len(cluster)), dtype=np.uint8)
    # One at a time, since all of them in 64 bits would take gigabytes.
    for row in counts if count else ():
        row[:] = rng.multinomial(count, shares)[cluster]
    return counts


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
    return list(map(float, np.quantile(defined, (0.025, 0.975))))


def share_interval(share: float, resampled: Floats, size: float) -> list[float] | None:
    """The 95 % interval of a share, from its resamples.

    Where every resample gives the same, as with none or all right, or draws the only cluster, they
    say nothing of new problems: then it is the Wilson interval for ``size`` independent problems.
    """
    if size == 1 or (len(resampled) and (resampled == resampled[0]).all()):
        return wilson_interval(share, size)
    return percentile_interval(resampled)


def _clusters(cluster: Ints) -> int:
    return int(cluster.max(initial=-1)) + 1
