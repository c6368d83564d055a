"""Calibration of stated confidences, from counts at each distinct one.

Everything is computed from :class:`ConfidenceCounts`: ties are exact and a thousand resamples are
one call: functions take counts of shape [..., U] and give values of shape [...]. Shapes: U
distinct confidences, M turns. What is undefined (no turns, one class only) is nan here and None
where :mod:`svr_lightning.evaluation.diagnostics` writes it down.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from svr_lightning.core.metrics import auroc_of_counts

BINS = 10
"""Bins of reliability diagrams and of both binned calibration errors."""

Equal = Literal["width", "mass"]
Floats = NDArray[np.float64]


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
    """The levels of [M] confidences and labels.

    Examples:
        >>> levels = levels_of(np.array([0.9, 0.5, 0.9]), np.array([1, 0, 0]))
        >>> levels.confidence.tolist(), levels.total.tolist(), levels.right.tolist()
        ([0.5, 0.9], [1.0, 2.0], [0.0, 1.0])
    """
    values, level = np.unique(np.asarray(confidence, dtype=np.float64), return_inverse=True)
    total = np.bincount(level, minlength=len(values)).astype(np.float64)
    right = np.bincount(level, weights=np.asarray(correct, np.float64), minlength=len(values))
    return ConfidenceCounts(confidence=values, total=total, right=right.astype(np.float64))


def brier_decomposition(levels: ConfidenceCounts) -> dict[str, Floats]:
    """Brier = reliability - resolution + uncertainty (Murphy 1973), exactly.

    Taken over distinct confidences rather than over bins, so that no within-bin term is left.
    Reliability is the mean squared distance of a confidence from the accuracy at it, resolution
    the variance of that accuracy over turns, uncertainty the variance of the label.
    """
    n = levels.total.sum(-1)
    base = _ratio(levels.right.sum(-1), n)
    accuracy = _level_accuracy(levels)
    gap = (levels.confidence - accuracy) ** 2
    spread = (accuracy - base[..., None]) ** 2
    wrong = levels.total - levels.right
    squares = levels.right * (1 - levels.confidence) ** 2 + wrong * levels.confidence**2
    return {
        "brier": _ratio(squares.sum(-1), n),
        "brier_reliability": _ratio((levels.total * gap).sum(-1), n),
        "brier_resolution": _ratio((levels.total * spread).sum(-1), n),
        "brier_uncertainty": base * (1 - base),
    }


def bin_sums(
    levels: ConfidenceCounts, bins: int = BINS, equal: Equal = "width"
) -> NDArray[np.float64]:
    """Turns, right turns and summed confidence in each bin.

    Bins of equal width are [k/bins, (k+1)/bins), and the last one holds 1 too; a confidence
    written as the decimal k/bins lies in bin k. Bins of equal mass keep turns of one confidence
    together: a level goes to the bin in which the middle of its ranks falls, so that a large level
    may leave neighbouring bins empty.

    Returns:
        [3, ..., bins].
    """
    stated = levels.total * levels.confidence
    columns = np.stack([levels.total, levels.right, stated])
    if equal == "width":
        inner = np.arange(1, bins) / bins
        index = np.searchsorted(inner, levels.confidence, side="right")
        return np.asarray(columns @ (index[:, None] == np.arange(bins)).astype(np.float64))
    n = np.maximum(levels.total.sum(-1, keepdims=True), 1)
    middle = np.cumsum(levels.total, -1) - levels.total / 2
    index = (middle / n * bins).astype(np.int64)  # never falls along the levels
    cuts = np.stack([(index < k).sum(-1) for k in range(1, bins)], -1)
    whole = np.zeros((*columns.shape[:-1], columns.shape[-1] + 1))
    np.cumsum(columns, -1, out=whole[..., 1:])
    places = np.broadcast_to(cuts, (*columns.shape[:-1], bins - 1))
    inner_sums = np.take_along_axis(whole, places, -1)
    return np.diff(inner_sums, axis=-1, prepend=0.0, append=whole[..., -1:])


def expected_calibration_error(
    levels: ConfidenceCounts, bins: int = BINS, equal: Equal = "width"
) -> NDArray[np.float64]:
    """ECE: the mean over turns of |accuracy - mean confidence| of their bin; see `bin_sums`."""
    _, right, stated = bin_sums(levels, bins, equal)
    return _ratio(np.abs(right - stated).sum(-1), levels.total.sum(-1))


def reliability_bins(
    levels: ConfidenceCounts, bins: int = BINS, equal: Equal = "width"
) -> list[dict[str, float | int | None]]:
    """The bars of a reliability diagram of one sample.

    Args:
        levels: with counts [U].
        bins: how many.
        equal: see :func:`bin_sums`.

    Returns:
        One per bin: ``n`` turns, mean ``confidence`` and ``accuracy`` (None of an empty bin), and
        for bins of equal width their ``low`` and ``high`` edges.
    """
    total, right, stated = bin_sums(levels, bins, equal)
    rows: list[dict[str, float | int | None]] = []
    for k in range(bins):
        n = total[k]
        edges = {"low": k / bins, "high": (k + 1) / bins} if equal == "width" else {}
        mean = {
            "confidence": float(stated[k] / n) if n else None,
            "accuracy": float(right[k] / n) if n else None,
        }
        rows.append({**edges, "n": int(n), **mean})
    return rows


def auroc(levels: ConfidenceCounts) -> NDArray[np.float64]:
    """How often a right turn has more confidence than a wrong one, ties counting one half."""
    return auroc_of_counts(levels.right, levels.total - levels.right)


def risk_at_coverage(levels: ConfidenceCounts, coverage: float) -> NDArray[np.float64]:
    """Share of wrong ones among the ceil(coverage * M) most confident turns.

    Turns of equal confidence come in random order; the value is the expectation over it, so that
    the part of a level that still fits counts with the level's own error rate.
    """
    total, wrong, before, _ = _from_the_top(levels)
    taken = np.ceil(np.round(coverage * total.sum(-1, keepdims=True), 9))
    share = np.clip(taken - before, 0, total) / np.maximum(total, 1)
    return _ratio((wrong * share).sum(-1), taken[..., 0])


def area_under_risk_coverage(levels: ConfidenceCounts) -> NDArray[np.float64]:
    """AURC: the mean over k = 1..M of the expected risk of the k most confident turns.

    Ties are handled by expectation, as in :func:`risk_at_coverage`: within a level of m turns
    with error rate e, behind ``a`` turns of which ``w`` are wrong, the risk at k is
    (w + (k - a) e) / k, and the sum over the level is m e + (w - a e)(H(a + m) - H(a)) with the
    harmonic numbers H.
    """
    total, wrong, before, wrong_before = _from_the_top(levels)
    rate = wrong / np.maximum(total, 1)
    most = int(total.sum(-1).max(initial=0))
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, most + 1))])
    start = before.astype(np.int64)
    rise = harmonic[start + total.astype(np.int64)] - harmonic[start]
    area = wrong + (wrong_before - before * rate) * rise
    return _ratio(area.sum(-1), total.sum(-1))


def _from_the_top(levels: ConfidenceCounts) -> tuple[Floats, Floats, Floats, Floats]:
    """Levels from the most confident down: turns, wrong ones, and both summed over those before."""
    total = levels.total[..., ::-1]
    wrong = total - levels.right[..., ::-1]
    return total, wrong, np.cumsum(total, -1) - total, np.cumsum(wrong, -1) - wrong


def _level_accuracy(levels: ConfidenceCounts) -> NDArray[np.float64]:
    """[..., U] accuracy at each level; its confidence where a resample has no turn there."""
    some = levels.total > 0
    return np.where(some, levels.right / np.where(some, levels.total, 1), levels.confidence)


def _ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> NDArray[np.float64]:
    """A quotient; nan over 0."""
    denominator = np.asarray(denominator, dtype=np.float64)
    return np.asarray(numerator / np.where(denominator > 0, denominator, np.nan))


# --- smooth ECE ---------------------------------------------------------------------------------
#
# Blasiok and Nakkiran 2023, "Smooth ECE": smECE_sigma is the integral over t in [0, 1] of
# |mean_i K_sigma(t, c_i) (y_i - c_i)|, with the Gaussian kernel reflected at both ends of the
# interval. It falls as sigma grows, so that smECE_sigma = sigma has one solution: the smooth ECE,
# which needs neither bins nor a bandwidth.

_INTERVALS = 500
"""Spacing of the grid over [0, 1]: confidences of two decimals lie on its nodes."""
_EXACT = 2.0**-12
"""How well the bandwidth is found: finer than the grid."""


def smooth_ece(levels: ConfidenceCounts) -> NDArray[np.float64]:
    """The solution of smECE_sigma = sigma for counts [..., U]; nan without turns.

    On a grid of 500 intervals, a confidence between two nodes being shared between them. Errors
    below about 0.002 are those of the grid.
    """
    spectrum = _residual_spectrum(levels)
    # It falls as sigma grows, so the solution lies below the error at any smaller sigma, and
    # above the error at any larger one.
    high = _smoothed_error(spectrum, np.zeros(spectrum.shape[:-1]))
    low = np.minimum(_smoothed_error(spectrum, high), high)
    while (high - low).max(initial=0) > _EXACT:
        sigma = (low + high) / 2
        error = _smoothed_error(spectrum, sigma)
        # The solution lies between sigma and the error at sigma: at least a halving.
        low = np.maximum(low, np.minimum(sigma, error))
        high = np.minimum(high, np.maximum(sigma, error))
        high = np.maximum(low, high)  # rounding, where both meet
    return np.where(levels.total.sum(-1) > 0, (low + high) / 2, np.nan)


def smooth_ece_at(levels: ConfidenceCounts, sigma: float) -> NDArray[np.float64]:
    """smECE_sigma of counts [..., U] at one bandwidth."""
    spectrum = _residual_spectrum(levels)
    return _smoothed_error(spectrum, np.full(spectrum.shape[:-1], sigma))


def _residual_spectrum(levels: ConfidenceCounts) -> NDArray[np.float64]:
    """The Fourier coefficients [..., K + 1] of the residuals, reflected to a circle of length 2.

    An even function on that circle, smoothed by a Gaussian there, is on [0, 1] what the kernel
    reflected at both ends gives, with all its reflections.
    """
    n = np.maximum(levels.total.sum(-1, keepdims=True), 1)
    residual = (levels.right - levels.total * levels.confidence) / n
    place = levels.confidence * _INTERVALS
    node = np.minimum(np.floor(place), _INTERVALS - 1).astype(np.int64)
    upper = place - node
    density = np.zeros((*residual.shape[:-1], _INTERVALS + 1))
    if len(node):
        starts = np.flatnonzero(np.diff(node, prepend=-1))
        density[..., node[starts]] += np.add.reduceat(residual * (1 - upper), starts, axis=-1)
        density[..., node[starts] + 1] += np.add.reduceat(residual * upper, starts, axis=-1)
    density[..., 1:-1] /= 2  # an inner node stands twice on the circle, each end once
    circle = np.concatenate([density, density[..., -2:0:-1]], axis=-1)
    return np.asarray(np.fft.rfft(circle).real)  # even, so real


def _smoothed_error(
    spectrum: NDArray[np.float64], sigma: NDArray[np.float64]
) -> NDArray[np.float64]:
    wave = np.pi * np.arange(_INTERVALS + 1)
    damping = np.exp(-((sigma[..., None] * wave) ** 2) / 2)
    smoothed = np.fft.irfft(spectrum * damping, n=2 * _INTERVALS)
    return np.asarray(np.abs(smoothed).sum(-1))
