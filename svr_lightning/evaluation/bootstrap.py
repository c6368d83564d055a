"""Bootstrap over problems: what of a metric is chance of which problems were asked.

A problem's turns are drawn together, since they are anything but independent. Intervals are
percentile intervals; they say nothing about another decoding seed or another training run.
Shapes: N problems, R resamples.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from svr_lightning.evaluation.calibration import ConfidenceCounts

RESAMPLES = 1000
_AT_ONCE = 100  # resamples whose turns are in memory together

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def resample_counts(n: int, resamples: int, seed: int) -> NDArray[np.int32]:
    """[R, N] how often each problem is in each resample of N problems."""
    if n == 0:
        return np.zeros((resamples, 0), dtype=np.int32)
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    return draws.astype(np.int32)


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
    sums = counts.astype(np.float64) @ columns.astype(np.float64)
    below = np.where(sums[:, 1::2] > 0, sums[:, 1::2], np.nan)
    return dict(zip(ratios, (sums[:, ::2] / below).T, strict=True))


def level_resamples(
    confidence: Floats,
    correct: Bools,
    chosen: Bools,
    counts: NDArray[np.int32],
    statistics: Callable[[ConfidenceCounts], Mapping[str, Floats]],
) -> dict[str, Floats]:
    """[R] resamples of statistics of confidence levels.

    Args:
        confidence: [N, T].
        correct: [N, T].
        chosen: [N, T] which turns count.
        counts: [R, N], see :func:`resample_counts`.
        statistics: values of shape [R] from levels with counts [R, U].
    """
    parts = [statistics(part) for part in _resampled(confidence, correct, chosen, counts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _resampled(
    confidence: Floats, correct: Bools, chosen: Bools, counts: NDArray[np.int32]
) -> Iterator[ConfidenceCounts]:
    problem, turn = np.nonzero(chosen)
    order = np.argsort(confidence[problem, turn], kind="stable")
    problem, turn = problem[order], turn[order]
    values, starts = np.unique(confidence[problem, turn], return_index=True)
    label = correct[problem, turn]
    for begin in range(0, len(counts), _AT_ONCE):
        weight = counts[begin : begin + _AT_ONCE, problem]
        sums = [
            np.add.reduceat(column, starts, axis=1).astype(np.float64)
            if len(starts)
            else np.zeros((len(weight), 0))
            for column in (weight, weight * label)
        ]
        yield ConfidenceCounts(confidence=values, total=sums[0], right=sums[1])
