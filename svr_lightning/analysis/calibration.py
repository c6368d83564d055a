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
    turns, right, stated = bin_sums(levels, bins)
    total = turns.sum(-1)
    return np.asarray(np.abs(right - stated).sum(-1) / np.where(total > 0, total, np.nan))


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
