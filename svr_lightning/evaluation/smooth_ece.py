"""Smooth expected calibration error (Blasiok and Nakkiran 2023, "Smooth ECE").

smECE_sigma is the integral over t in [0, 1] of |mean_i K_sigma(t, c_i) (y_i - c_i)|, with the
Gaussian kernel reflected at both ends of the interval. It falls as sigma grows, so that
smECE_sigma = sigma has one solution: the smooth ECE, which needs neither bins nor a bandwidth.
"""

import numpy as np
from numpy.typing import NDArray

from svr_lightning.evaluation.calibration import ConfidenceCounts

_INTERVALS = 500
"""Of the grid over [0, 1]: confidences of two decimals lie on its nodes."""
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
