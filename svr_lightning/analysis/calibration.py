"""Calibration of stated confidences, from counts at each distinct one.

Ties are exact, and a thousand resamples are one call: functions take counts of shape [..., U] and
give values of shape [...]. Shapes: U distinct confidences, M turns. What is undefined is nan.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.analysis.table import Floats
from svr_lightning.core.metrics import auroc_of_counts

BINS = 10
"""Bins of reliability diagrams and of the expected calibration error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceCounts:
    """How many turns state each distinct confidence, and how many of them are right."""

    confidence: Floats
    """[U] ascending, in [0, 1]."""
    total: Floats
    """[..., U] turns; leading axes are resamples."""
    right: Floats
    """[..., U] right ones of them."""


def levels_of(confidence: NDArray[Any], correct: NDArray[Any]) -> ConfidenceCounts:
    """The counts of [M] confidences and labels.

    Examples:
        >>> levels = levels_of(np.array([0.9, 0.5, 0.9]), np.array([1, 0, 0]))
        >>> levels.confidence.tolist(), levels.total.tolist(), levels.right.tolist()
        ([0.5, 0.9], [1.0, 2.0], [0.0, 1.0])
    """
    values, level = np.unique(np.asarray(confidence, dtype=np.float64), return_inverse=True)
    total = np.bincount(level, minlength=len(values)).astype(np.float64)
    right = np.bincount(level, weights=np.asarray(correct, np.float64), minlength=len(values))
    return ConfidenceCounts(confidence=values, total=total, right=right.astype(np.float64))


def bin_sums(levels: ConfidenceCounts, bins: int = BINS) -> Floats:
    """[3, ..., bins] turns, right turns and summed confidence in each bin of equal width.

    Bins are [k/bins, (k+1)/bins), and the last one holds 1 too; a confidence written as the
    decimal k/bins lies in bin k.
    """
    columns = np.stack([levels.total, levels.right, levels.total * levels.confidence])
    index = np.searchsorted(np.arange(1, bins) / bins, levels.confidence, side="right")
    return np.asarray(columns @ (index[:, None] == np.arange(bins)).astype(np.float64))


def expected_calibration_error(levels: ConfidenceCounts, bins: int = BINS) -> Floats:
    """ECE: the mean over turns of |accuracy - mean confidence| of their bin."""
    _, right, stated = bin_sums(levels, bins)
    return _ratio(np.abs(right - stated).sum(-1), levels.total.sum(-1))


def reliability_bins(
    levels: ConfidenceCounts, bins: int = BINS
) -> list[dict[str, float | int | None]]:
    """The bars of a reliability diagram, from counts [U].

    Returns:
        One per bin: its edges ``low`` and ``high``, ``n`` turns, and mean ``confidence`` and
        ``accuracy``, None of an empty bin.
    """
    return [
        {
            "low": k / bins,
            "high": (k + 1) / bins,
            "n": int(n),
            "confidence": float(stated / n) if n else None,
            "accuracy": float(right / n) if n else None,
        }
        for k, (n, right, stated) in enumerate(bin_sums(levels, bins).T)
    ]


def auroc(levels: ConfidenceCounts) -> Floats:
    """How often a right turn has more confidence than a wrong one, ties counting one half."""
    return auroc_of_counts(levels.right, levels.total - levels.right)


def area_under_risk_coverage(levels: ConfidenceCounts) -> Floats:
    """AURC: the mean over k = 1..M of the expected share of wrong ones of the k most confident.

    The expectation is over the order of ties: within a level of m turns with error rate e, behind
    ``a`` turns of which ``w`` are wrong, the risk at k is (w + (k - a) e) / k, and the sum over the
    level is m e + (w - a e)(H(a + m) - H(a)) with the harmonic numbers H.
    """
    total = levels.total[..., ::-1]
    wrong = total - levels.right[..., ::-1]
    before, wrong_before = np.cumsum(total, -1) - total, np.cumsum(wrong, -1) - wrong
    rate = wrong / np.maximum(total, 1)
    most = int(total.sum(-1).max(initial=0))
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, most + 1))])
    start = before.astype(np.int64)
    rise = harmonic[start + total.astype(np.int64)] - harmonic[start]
    area = wrong + (wrong_before - before * rate) * rise
    return _ratio(area.sum(-1), total.sum(-1))


def _ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> Floats:
    """A quotient; nan over 0."""
    denominator = np.asarray(denominator, dtype=np.float64)
    return np.asarray(numerator / np.where(denominator > 0, denominator, np.nan))
