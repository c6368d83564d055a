"""Calibration metrics: worked out by hand, by other libraries, and by their definitions."""

import math

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import auc, roc_auc_score, roc_curve
from torchmetrics.classification import BinaryCalibrationError

from svr_lightning.analysis.calibration import (
    ConfidenceCounts,
    auroc,
    bin_sums,
    expected_calibration_error,
    levels_of,
    reliability_bins,
)

EMPTY = levels_of(np.array([]), np.array([]))


def turns(seed: int, size: int, decimals: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Overconfident ones: right with chance c ** 2, away from both ends."""
    generator = np.random.default_rng(seed)
    confidence = 0.02 + 0.96 * generator.beta(3, 1.5, size)
    if decimals is not None:
        confidence = np.round(confidence, decimals)
    return confidence, (generator.random(size) < confidence**2).astype(int)


def few() -> ConfidenceCounts:
    """.2 wrong; .6 right, wrong; .9 right, right, wrong."""
    confidence = np.array([0.9, 0.2, 0.6, 0.9, 0.6, 0.9])
    return levels_of(confidence, np.array([1, 0, 1, 1, 0, 0]))


# Bins


@pytest.mark.parametrize("bins", [1, 2, 3, 5, 7, 10, 15, 20, 100])
def test_a_confidence_at_an_edge_lies_in_the_bin_that_it_begins_and_1_in_the_last(
    bins: int,
) -> None:
    edges = [k / bins for k in range(bins + 1)]
    for k, edge in enumerate(edges):
        filled = bin_sums(levels_of(np.array([edge]), np.array([1])), bins)[0]
        assert np.flatnonzero(filled).tolist() == [min(k, bins - 1)]
        if 0 < k < bins:
            below = levels_of(np.array([math.nextafter(edge, 0)]), np.array([1]))
            assert np.flatnonzero(bin_sums(below, bins)[0]).tolist() == [k - 1]


def test_confidences_written_with_two_decimals_lie_where_they_read() -> None:
    # 0.29 * 100 is 28.999999999999996, and yet .29 begins bin 29.
    for k in range(100):
        filled = bin_sums(levels_of(np.array([float(f"0.{k:02d}")]), np.array([0])), 100)[0]
        assert np.flatnonzero(filled).tolist() == [k]


def test_the_bars_of_a_reliability_diagram_are_worked_out_by_hand() -> None:
    assert reliability_bins(few(), 2) == [
        {"low": 0.0, "high": 0.5, "n": 1, "confidence": 0.2, "accuracy": 0.0},
        {"low": 0.5, "high": 1.0, "n": 5, "confidence": pytest.approx(3.9 / 5), "accuracy": 3 / 5},
    ]
    assert reliability_bins(few(), 10)[5] == {
        "low": 0.5,
        "high": 0.6,
        "n": 0,
        "confidence": None,
        "accuracy": None,
    }


def test_bins_and_errors_are_those_of_scikit_learn_and_torchmetrics() -> None:
    confidence, correct = turns(0, 1000)
    levels = levels_of(confidence, correct)
    rows = [row for row in reliability_bins(levels, 10) if row["n"]]
    truth, stated = calibration_curve(correct, confidence, n_bins=10)
    assert [row["accuracy"] for row in rows] == pytest.approx(truth.tolist())
    assert [row["confidence"] for row in rows] == pytest.approx(stated.tolist())
    theirs = BinaryCalibrationError(n_bins=10)(torch.tensor(confidence), torch.tensor(correct))
    assert expected_calibration_error(levels) == pytest.approx(float(theirs), abs=1e-6)


# Ranks


def test_the_auroc_is_that_of_scikit_learn() -> None:
    confidence, correct = turns(4, 700, 1)
    levels = levels_of(confidence, correct)
    assert auroc(levels) == pytest.approx(roc_auc_score(correct, confidence))
    assert auroc(levels) == pytest.approx(auc(*roc_curve(correct, confidence)[:2]))


def test_what_is_undefined_is_nan() -> None:
    for value in (
        expected_calibration_error(EMPTY),
        auroc(levels_of(np.array([0.2, 0.9]), np.array([1, 1]))),
    ):
        assert np.isnan(value)
