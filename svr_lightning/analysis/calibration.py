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


def bin_of(confidence: NDArray[Any]) -> NDArray[np.int64]:
    """The bin of each confidence: [k/10, (k+1)/10), and the last one holds 1 too."""
    return np.searchsorted(np.arange(1, BINS) / BINS, confidence, side="right")


def expected_calibration_error(levels: ConfidenceCounts) -> Floats:
    """ECE: the mean over turns of |accuracy - mean confidence| of their bin."""
    in_bin = (bin_of(levels.confidence)[:, None] == np.arange(BINS)).astype(np.float64)
    gap = (levels.right - levels.total * levels.confidence) @ in_bin
    total = levels.total.sum(-1)
    return np.asarray(np.abs(gap).sum(-1) / np.where(total > 0, total, np.nan))


def auroc(levels: ConfidenceCounts) -> Floats:
    """How often a right turn has more confidence than a wrong one, ties counting one half."""
    return auroc_of_counts(levels.right, levels.total - levels.right)
