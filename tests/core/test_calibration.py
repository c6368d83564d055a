"""Calibration metrics: worked out by hand, by other libraries, and by their definitions."""

import numpy as np
import pytest
import torch
from sklearn.metrics import auc, roc_auc_score, roc_curve
from torchmetrics.classification import BinaryCalibrationError

from svr_lightning.analysis.calibration import (
    auroc,
    bin_of,
    expected_calibration_error,
    levels_of,
)

EMPTY = levels_of(np.array([]), np.array([]))


def turns(seed: int, size: int, decimals: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Overconfident ones: right with chance c ** 2, away from both ends."""
    generator = np.random.default_rng(seed)
    confidence = 0.02 + 0.96 * generator.beta(3, 1.5, size)
    if decimals is not None:
        confidence = np.round(confidence, decimals)
    return confidence, (generator.random(size) < confidence**2).astype(int)


# Bins


def test_a_confidence_at_an_edge_lies_in_the_bin_that_it_begins_and_1_in_the_last() -> None:
    edges = np.arange(11) / 10
    written = np.array([float(f"0.{k}") for k in range(10)])
    assert bin_of(edges).tolist() == [*range(10), 9]
    assert bin_of(written).tolist() == [*range(10)]
    assert bin_of(np.nextafter(edges[1:], 0)).tolist() == [*range(10)]


def test_the_calibration_error_is_worked_out_by_hand_and_that_of_torchmetrics() -> None:
    # .2 wrong; .6 right, wrong; .9 right, right, wrong: gaps of .2, .2 and .7.
    confidence, correct = np.array([0.9, 0.2, 0.6, 0.9, 0.6, 0.9]), np.array([1, 0, 1, 1, 0, 0])
    error = expected_calibration_error(levels_of(confidence, correct))
    assert error == pytest.approx((0.2 + 0.2 + 0.7) / 6)
    confidence, correct = turns(0, 1000)
    theirs = BinaryCalibrationError(n_bins=10)(torch.tensor(confidence), torch.tensor(correct))
    error = expected_calibration_error(levels_of(confidence, correct))
    assert error == pytest.approx(float(theirs), abs=1e-6)


# Ranks


def test_the_auroc_is_that_of_scikit_learn() -> None:
    confidence, correct = turns(4, 700, 1)
    levels = levels_of(confidence, correct)
    assert auroc(levels) == pytest.approx(roc_auc_score(correct, confidence))
    assert auroc(levels) == pytest.approx(auc(*roc_curve(correct, confidence)[:2]))


def test_what_is_undefined_is_nan() -> None:
    assert np.isnan(expected_calibration_error(EMPTY))
    assert np.isnan(auroc(levels_of(np.array([0.2, 0.9]), np.array([1, 1]))))
