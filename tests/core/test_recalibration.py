"""Maps of confidence: by scikit-learn, and the threshold that makes inference need none."""

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from svr_lightning.core.stopping import StopRule
from svr_lightning.evaluation.recalibration import (
    FITS,
    fit_beta,
    fit_isotonic,
    raw_threshold,
    recalibrate,
    recalibrated,
)
from svr_lightning.evaluation.replay import replay
from svr_lightning.evaluation.table import TurnTable
from tests.trajectories import record, turn_tables, uncensored


def turns(seed: int, size: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Overconfident ones, with two decimals, 0 and 1 among them."""
    generator = np.random.default_rng(seed)
    confidence = np.round(generator.beta(3, 1, size), 2)
    confidence[:2] = [0.0, 1.0]
    return confidence, (generator.random(size) < confidence**2).astype(int)


def random_table(seed: int, size: int = 200) -> TurnTable:
    generator = np.random.default_rng(seed)
    rows = []
    for k in range(size):
        stated = np.round(generator.beta(3, 1, 3), 2)
        right = generator.random(3) < stated**2
        verdicts = ["C" if c > 0.5 else "I" for c in stated]
        columns = zip(right, verdicts, stated, strict=True)
        rows.append(record(str(k), *[(bool(y), v, float(c), 1) for y, v, c in columns]))
    return turn_tables(rows)["toy"]


def test_pooling_violators_is_worked_out_by_hand() -> None:
    # Accuracies 1, 0, 1/2, 1 at .1, .2, .5, .9: the first three pool to 2 of 4.
    confidence = np.array([0.1, 0.2, 0.5, 0.5, 0.9])
    fitted = fit_isotonic(confidence, np.array([1, 0, 1, 0, 1]))
    assert fitted.value.tolist() == [0.5, 0.5, 0.5, 1.0]
    assert fitted(np.array([0.0, 0.3, 0.7, 1.0])) == pytest.approx([0.5, 0.5, 0.75, 1.0])


@pytest.mark.parametrize("seed", range(4))
def test_the_isotonic_map_is_that_of_scikit_learn(seed: int) -> None:
    confidence, correct = turns(seed)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(confidence, correct)
    everywhere = np.linspace(0, 1, 501)
    ours = fit_isotonic(confidence, correct)(everywhere)
    assert ours == pytest.approx(theirs.predict(everywhere), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_the_beta_map_is_the_logistic_regression_of_scikit_learn(seed: int) -> None:
    confidence, correct = turns(seed)
    inside = np.clip(confidence, 1e-3, 1 - 1e-3)
    features = np.stack([np.log(inside), -np.log1p(-inside)], 1)
    theirs = LogisticRegression(C=1e6, tol=1e-10, max_iter=10_000).fit(features, correct)
    ours = fit_beta(confidence, correct)
    if (theirs.coef_ >= 0).all():
        assert [ours.a, ours.b] == pytest.approx(theirs.coef_[0].tolist(), rel=1e-3, abs=1e-3)
        assert ours.intercept == pytest.approx(theirs.intercept_[0], rel=1e-3, abs=1e-3)
        expected = theirs.predict_proba(features)[:, 1]
        assert ours(confidence) == pytest.approx(expected, abs=1e-4)
    else:  # one slope is held at 0: the other alone
        kept = int(np.argmax(theirs.coef_[0]))
        alone = LogisticRegression(C=1e6, tol=1e-10).fit(features[:, [kept]], correct)
        assert ours(confidence) == pytest.approx(
            alone.predict_proba(features[:, [kept]])[:, 1], abs=1e-4
        )


def test_a_map_never_falls_even_where_more_confidence_means_fewer_right() -> None:
    confidence, correct = turns(5)
    for fit in FITS.values():
        for labels in (correct, 1 - correct):
            values = fit(confidence, labels)(np.linspace(0, 1, 1001))
            assert (np.diff(values) >= -1e-15).all()
            assert ((values >= 0) & (values <= 1)).all()
    upside_down = fit_beta(confidence, 1 - correct)
    assert (upside_down.a, upside_down.b) == (0.0, 0.0)
    assert upside_down(np.array([0.3]))[0] == pytest.approx((1 - correct).mean())


def test_labels_that_a_threshold_separates_are_fitted_and_labels_of_one_kind_are_refused() -> None:
    confidence = np.array([0.1, 0.2, 0.8, 0.9])
    steep = fit_beta(confidence, np.array([0, 0, 1, 1]))
    assert steep(confidence).round() == pytest.approx([0, 0, 1, 1])
    with pytest.raises(ValueError, match="nothing can be fitted"):
        fit_beta(confidence, np.ones(4))


@pytest.mark.parametrize("method", FITS)
def test_a_threshold_on_the_mapped_scale_stops_where_its_stated_threshold_does(
    method: str,
) -> None:
    table = random_table(0)
    found = recalibrate({"toy": table}, method, np.arange(0.05, 1.04, 0.05).tolist(), 3)
    assert found.fitted_on == 100
    assert len(found.held["toy"].ids) == 100
    assert len(found.thresholds) >= 18  # the highest may never be reached
    outcomes = set()
    for mapped, stated in found.thresholds.items():
        new = replay(found.mapped["toy"], StopRule(threshold=mapped), 3)
        old = replay(found.held["toy"], StopRule(threshold=stated), 3)
        assert (new.returned == old.returned).all()
        outcomes.add(tuple(new.returned))
    assert len(outcomes) > 3


def test_the_halves_are_drawn_by_the_seed_and_share_no_problem() -> None:
    table = random_table(1, 41)
    held = [
        recalibrate({"toy": table}, "isotonic", [0.5], seed).held["toy"].ids for seed in (0, 0, 1)
    ]
    assert held[0] == held[1] != held[2]
    assert len(held[0]) == 21
    fitted = sorted(set(table.ids) - set(held[0]))
    rows = np.flatnonzero(np.isin(table.ids, fitted))
    alone = fit_isotonic(table.confidence[rows].ravel(), table.correct[rows].ravel())
    mapped = recalibrate({"toy": table}, "isotonic", [0.5], 0).mapped["toy"]
    expected = alone(table.select(np.flatnonzero(np.isin(table.ids, held[0]))).confidence)
    assert mapped.confidence == pytest.approx(expected)


def test_only_the_confidences_of_a_table_are_mapped_and_missing_turns_stay_missing() -> None:
    table = turn_tables([*uncensored(), record("g", (True, "C", 0.9, 1))])["toy"]
    mapped = recalibrated(table, fit_isotonic(np.array([0.0, 1.0]), np.array([0, 1])))
    assert np.array_equal(mapped.confidence, table.confidence, equal_nan=True)  # the identity
    assert mapped.correct is table.correct


def test_the_ends_of_the_scale_have_thresholds_too() -> None:
    flat = fit_isotonic(np.array([0.2, 0.8]), np.array([0.5, 0.5]))
    assert raw_threshold(flat, 0.5) == 0.0
    assert raw_threshold(flat, 0.51) is None
    line = fit_isotonic(np.array([0.0, 1.0]), np.array([0, 1]))
    assert raw_threshold(line, 1.0) == 1.0
    assert raw_threshold(line, 0.85) == 0.85
