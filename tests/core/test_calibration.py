"""Calibration metrics: worked out by hand, by other libraries, and by their definitions."""

import itertools
import math

import numpy as np
import pytest
import relplot
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import auc, brier_score_loss, roc_auc_score, roc_curve
from torchmetrics.classification import BinaryCalibrationError

from svr_lightning.evaluation.calibration import (
    ConfidenceCounts,
    area_under_risk_coverage,
    auroc,
    bin_sums,
    brier_decomposition,
    expected_calibration_error,
    levels_of,
    reliability_bins,
    risk_at_coverage,
    smooth_ece,
    smooth_ece_at,
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
    # Ranks 1; 2-3; 4-6 of six: middles at 1/12, 4/12, 9/12 of the mass.
    mass = reliability_bins(few(), 2, "mass")
    assert [row["n"] for row in mass] == [3, 3]
    assert [row["accuracy"] for row in mass] == [1 / 3, 2 / 3]
    assert reliability_bins(few(), 10)[5] == {
        "low": 0.5,
        "high": 0.6,
        "n": 0,
        "confidence": None,
        "accuracy": None,
    }


def test_both_calibration_errors_are_worked_out_by_hand() -> None:
    # Two bins: |0 - .2| of 1 turn and |3 - 3.9| of 5, over 6; of mass |1 - 1.4| and |2 - 2.7|.
    assert expected_calibration_error(few(), 2) == pytest.approx((0.2 + 0.9) / 6)
    assert expected_calibration_error(few(), 2, "mass") == pytest.approx((0.4 + 0.7) / 6)


def test_one_confidence_said_of_every_turn_is_one_bin_of_any_kind() -> None:
    levels = levels_of(np.full(40, 0.95), np.arange(40) % 2)
    for equal in ("width", "mass"):
        assert expected_calibration_error(levels, 10, equal) == pytest.approx(0.45)
    assert np.sort(bin_sums(levels, 10, "mass")[0]).tolist() == [0.0] * 9 + [40.0]


def test_bins_and_errors_are_those_of_scikit_learn_and_torchmetrics() -> None:
    confidence, correct = turns(0, 1000)
    levels = levels_of(confidence, correct)
    for equal, strategy in (("width", "uniform"), ("mass", "quantile")):
        rows = [row for row in reliability_bins(levels, 10, equal) if row["n"]]
        truth, stated = calibration_curve(correct, confidence, n_bins=10, strategy=strategy)
        assert [row["accuracy"] for row in rows] == pytest.approx(truth.tolist())
        assert [row["confidence"] for row in rows] == pytest.approx(stated.tolist())
    theirs = BinaryCalibrationError(n_bins=10)(torch.tensor(confidence), torch.tensor(correct))
    assert expected_calibration_error(levels) == pytest.approx(float(theirs), abs=1e-6)


# Smooth calibration error


def quadrature(confidence: np.ndarray, correct: np.ndarray, sigma: float) -> float:
    """smECE_sigma by its definition: images of every turn in both mirrors, 4001 nodes."""
    place = np.linspace(0, 1, 4001)
    images = [sign * confidence[:, None] + 2 * shift for shift in range(-3, 4) for sign in (1, -1)]
    kernel = sum(np.exp(-(((place - image) / sigma) ** 2) / 2) for image in images)
    smoothed = (correct - confidence) @ kernel / (len(confidence) * sigma * math.sqrt(2 * math.pi))
    return float(np.trapezoid(np.abs(smoothed), place))


@pytest.mark.parametrize("decimals", [2, None])
@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.5])
def test_the_smoothed_error_is_the_integral_that_defines_it(
    sigma: float, decimals: int | None
) -> None:
    confidence, correct = turns(1, 150, decimals)
    confidence[:3] = [0.0, 1.0, 1.0]  # an end is its own mirror image
    found = smooth_ece_at(levels_of(confidence, correct), sigma)
    assert found == pytest.approx(quadrature(confidence, correct, sigma), abs=2e-5)


def test_the_smooth_ece_is_the_bandwidth_that_equals_its_error() -> None:
    for seed in range(3):
        levels = levels_of(*turns(seed, 400, 2))
        found = float(smooth_ece(levels))
        assert smooth_ece_at(levels, found) == pytest.approx(found, abs=3e-4)
        assert 0 < found <= expected_calibration_error(levels, 1000) + 3e-4


def test_the_smooth_ece_is_that_of_its_authors() -> None:
    # Theirs is on a coarser bandwidth (1/1024) and weighs nodes by density near the ends.
    for seed, size in ((2, 500), (3, 3000)):
        confidence, correct = turns(seed, size)
        found = float(smooth_ece(levels_of(confidence, correct)))
        assert found == pytest.approx(relplot.smECE(confidence, correct), rel=0.03)


# Proper scores and ranks


def test_the_decomposition_of_the_brier_score_is_worked_out_by_hand_and_adds_up() -> None:
    parts = {name: float(value) for name, value in brier_decomposition(few()).items()}
    # Accuracies 0, 1/2, 2/3 at .2, .6, .9; half of all are right.
    reliability = (0.2**2 + 2 * 0.1**2 + 3 * (0.9 - 2 / 3) ** 2) / 6
    resolution = (0.5**2 + 2 * 0 + 3 * (2 / 3 - 1 / 2) ** 2) / 6
    brier = (0.04 + 0.16 + 0.36 + 0.01 + 0.01 + 0.81) / 6
    expected = (brier, reliability, resolution, 0.25)
    assert list(parts.values()) == pytest.approx(expected)
    assert brier == pytest.approx(reliability - resolution + 0.25)


def test_brier_score_and_auroc_are_those_of_scikit_learn() -> None:
    confidence, correct = turns(4, 700, 1)
    levels = levels_of(confidence, correct)
    parts = brier_decomposition(levels)
    assert parts["brier"] == pytest.approx(brier_score_loss(correct, confidence))
    rest = parts["brier_reliability"] - parts["brier_resolution"] + parts["brier_uncertainty"]
    assert rest == pytest.approx(float(parts["brier"]), abs=1e-14)
    assert auroc(levels) == pytest.approx(roc_auc_score(correct, confidence))
    assert auroc(levels) == pytest.approx(auc(*roc_curve(correct, confidence)[:2]))


def test_risk_is_its_mean_over_all_orders_of_equal_confidences() -> None:
    labels = ([1, 1, 0], [1, 0], [0])  # at .9, .6, .2
    orders = [
        [1 - y for part in parts for y in part]
        for parts in itertools.product(*(itertools.permutations(part) for part in labels))
    ]
    risk = np.array([np.cumsum(order) / np.arange(1, 7) for order in orders]).mean(0)
    for coverage, k in ((1 / 6, 1), (0.3, 2), (0.5, 3), (0.6, 4), (5 / 6, 5), (1.0, 6)):
        assert risk_at_coverage(few(), coverage) == pytest.approx(risk[k - 1])
    assert area_under_risk_coverage(few()) == pytest.approx(risk.mean())


def test_without_ties_the_area_is_the_mean_of_the_running_error() -> None:
    confidence, correct = turns(5, 300)
    wrong = 1 - correct[np.argsort(-confidence)]
    expected = (np.cumsum(wrong) / np.arange(1, 301)).mean()
    assert area_under_risk_coverage(levels_of(confidence, correct)) == pytest.approx(expected)


def test_what_is_undefined_is_nan() -> None:
    for value in (
        expected_calibration_error(EMPTY),
        expected_calibration_error(EMPTY, 10, "mass"),
        smooth_ece(EMPTY),
        brier_decomposition(EMPTY)["brier"],
        area_under_risk_coverage(EMPTY),
        risk_at_coverage(EMPTY, 0.5),
        auroc(levels_of(np.array([0.2, 0.9]), np.array([1, 1]))),
    ):
        assert np.isnan(value)


def test_many_samples_at_once_are_each_alone() -> None:
    generator = np.random.default_rng(6)
    confidence = np.array([0.0, 0.05, 0.3, 0.5, 0.77, 0.95, 1.0])
    total = generator.integers(0, 9, (5, 7)).astype(float)
    total[4] = [0, 0, 0, 6, 0, 0, 0]
    right = np.floor(total * generator.random((5, 7)))
    together = ConfidenceCounts(confidence=confidence, total=total, right=right)
    for statistic in (
        lambda x: expected_calibration_error(x, 4),
        lambda x: expected_calibration_error(x, 4, "mass"),
        lambda x: brier_decomposition(x)["brier_resolution"],
        lambda x: risk_at_coverage(x, 0.7),
        area_under_risk_coverage,
        auroc,
        smooth_ece,
    ):
        alone = [
            float(
                statistic(
                    levels_of(
                        np.repeat(confidence, n.astype(int)),
                        np.concatenate(
                            [np.arange(k) < r for k, r in zip(n.astype(int), y, strict=True)]
                        ),
                    )
                )
            )
            for n, y in zip(total, right, strict=True)
        ]
        assert statistic(together) == pytest.approx(alone, abs=3e-4, nan_ok=True)
