"""Promises: p-values by other libraries, the procedure by hand, the guarantee by simulation."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from svr_lightning.analysis.certificates import (
    Replayed,
    binomial_cdf,
    candidates_of,
    cheapest,
    labels_needed,
    mean_p_value,
    replay_rules,
    sequential_test,
    start_levels,
)
from svr_lightning.analysis.operating_point import Promise
from svr_lightning.core.stopping import Confident
from svr_lightning.errors import ConfigError
from tests.trajectories import record, turn_tables


def point(
    accepted: Any, wrong: Any, cluster: Any = None, *, threshold: float = 0.9, tokens: Any = 100.0
) -> Replayed:
    """Answers of which some are accepted, all of them before T_max, and some are wrong."""
    taken, failed = np.array(accepted, dtype=float), np.array(wrong, dtype=float)
    found = {"accepted": taken, "early": taken, "pse": taken * failed}
    found |= {"wrong_accepted": taken * failed, "wrong": failed, "turns": np.ones(len(taken))}
    found["tokens"] = np.full(len(taken), tokens)
    codes = np.arange(len(taken)) if cluster is None else np.array(cluster)
    return Replayed.of(Confident(threshold=threshold), found, codes)


# P-values


@pytest.mark.parametrize(("n", "p"), [(0, 0.3), (1, 0.5), (12, 0.05), (1319, 0.1), (20_000, 0.9)])
def test_binomial_tails_are_those_of_scipy(n, p):
    for k in {-1, 0, 1, n // 20, n // 10, n // 2, n - 1, n}:
        assert binomial_cdf(k, n, p) == pytest.approx(
            stats.binom.cdf(k, n, p), rel=1e-8, abs=1e-300
        )


def test_what_cannot_be_broken_is_certain_and_what_was_not_seen_is_not():
    assert binomial_cdf(0, 0, 0.5) == binomial_cdf(0, 10, 0.0) == 1.0
    assert binomial_cdf(4, 5, 1.0) == 0.0
    assert mean_p_value(np.array([3.0, 4.0]), 5.0, 5.0) == 0.0
    assert mean_p_value(np.array([]), 4.0, 5.0) == 1.0
    assert mean_p_value(np.array([5.0] * 9), 4.0, 5.0) == 1.0
    with pytest.raises(ValueError, match=r"outside \[0, 10\]"):
        mean_p_value(np.array([11.0]), 5.0, 10.0)


def test_the_bet_on_a_mean_is_worked_out_by_hand():
    # m = 1/2: bets l = 0.1, 0.2 .. 2; both values 0 give (1 + l / 2) ** 2 each.
    capital = np.mean([(1 + k / 20) ** 2 for k in range(1, 21)])
    assert mean_p_value(np.array([0.0, 0.0]), 5.0, 10.0) == pytest.approx(1 / capital)


def test_the_risk_of_accepted_answers_is_tested_given_how_many_there_are():
    seen = point([1] * 20 + [0] * 80, [1] * 2 + [0] * 18 + [1] * 80)
    promise = Promise(name="wrong_accepted", limit=0.3)
    assert seen.p_value(promise) == pytest.approx(stats.binom.cdf(2, 20, 0.3))
    assert seen.p_value(Promise(name="pse", limit=0.3)) == pytest.approx(
        stats.binom.cdf(2, 100, 0.3)
    )
    assert point([0] * 50, [1] * 50).p_value(promise) == 1.0  # nothing accepted, nothing known


def test_a_promise_that_nothing_could_break_is_empty():
    rows = [record(str(k), (False, "C", 1.0, 10), (True, "C", 1.0, 10)) for k in range(9)]
    rules = [Confident(threshold=0.5)]
    one, two = (replay_rules(turn_tables(rows), rules, turns)[0].rates for turns in (1, 2))
    assert (one["early"], two["early"]) == (0.0, 1.0)
    pse = Promise(name="pse", limit=0.05)
    assert (pse.can_be_broken(one), pse.can_be_broken(two)) == (False, True)
    assert Promise(name="wrong_accepted", limit=0.05).can_be_broken(one)
    doubted = replay_rules(turn_tables([record("x", (True, "U", 0.2, 1))]), rules, 1)[0].rates
    assert not Promise(name="wrong_accepted", limit=0.05).can_be_broken(doubted)
    assert Promise(name="wrong", limit=0.05).can_be_broken(doubted)
    assert not Promise(name="tokens", limit=99, bound=99).can_be_broken(one)


def test_thresholds_at_which_no_answer_can_break_a_promise_are_never_chosen():
    rows = [record(str(k), (False, "C", 0.6, 1), (False, "C", 1.0, 1)) for k in range(200)]
    (late,) = replay_rules(turn_tables(rows), [Confident(threshold=0.9)], 2)  # all wrong, at T_max
    promise = [Promise(name="pse", limit=0.1)]
    for one in (late, point([0] * 200, [0] * 200)):
        (alone,) = candidates_of([one], promise, 0.1)
        assert alone.certified
        assert cheapest([alone], promise) is None


def test_in_clusters_a_refused_answer_counts_as_the_limit():
    # Clusters: both right and accepted; one accepted and wrong, one refused; both refused.
    seen = point([1, 1, 1, 0, 0, 0], [0, 0, 1, 0, 1, 1], [0, 0, 1, 1, 2, 2])
    losses = seen.losses(Promise(name="wrong_accepted", limit=0.2))
    assert losses == pytest.approx([0.0, 0.5 + 0.1, 0.2])
    assert seen.losses(Promise(name="wrong", limit=0.2)) == pytest.approx([0.0, 0.5, 1.0])


def test_a_cluster_of_two_problems_is_no_single_problem_wherever_it_stands():
    assert point([1, 1, 1], [0, 0, 0]).single
    for cluster in ([0, 0, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0]):
        assert not point([1, 1, 1], [0, 0, 0], cluster).single
    # One pair of which one is wrong: half a failure, which the exact test would round away.
    seen = point([1] * 40, [1] + [0] * 39, [0, 0, *range(1, 39)])
    promise = Promise(name="pse", limit=0.1)
    assert seen.p_value(promise) == mean_p_value(np.array([0.5] + [0.0] * 38), 0.1)


def test_drift_is_found_where_new_problems_break_the_promise():
    promise = Promise(name="pse", limit=0.1)
    for cluster in (None, [k // 2 for k in range(200)]):
        good = point([1] * 200, [1] * 16 + [0] * 184, cluster)
        bad = point([1] * 200, [1] * 60 + [0] * 140, cluster)
        assert good.drift_p_value(promise) > 0.5
        assert bad.drift_p_value(promise) < 1e-5
    # P(Bin(200, 0.1) >= 30), by scipy
    seen = point([1] * 200, [1] * 30 + [0] * 170)
    assert seen.drift_p_value(promise) == pytest.approx(stats.binom.sf(29, 200, 0.1))


def test_delta_is_shared_among_evenly_spaced_starts():
    stops, cost = Promise(name="pse", limit=0.1), Promise(name="tokens", limit=1, bound=2)
    assert np.flatnonzero(start_levels([stops], 13, 0.1)).tolist() == [0, 3, 6, 9]
    assert start_levels([stops], 13, 0.1).sum() == pytest.approx(0.1)
    assert start_levels([stops], 2, 0.1).tolist() == [0.05, 0.05]
    assert start_levels([stops, cost], 13, 0.1) == pytest.approx([0.1 / 13] * 13)


def test_a_start_hands_on_what_it_keeps_and_a_failure_hands_on_nothing():
    levels = np.array([0.05, 0.0, 0.05, 0.0, 0.0])
    certified, tested = sequential_test([0.05, 0.04, 0.1, 0.2, 0.0], levels)
    assert tested.tolist() == [0.05, 0.05, 0.1, 0.1, 0.0]
    assert certified.tolist() == [True, True, True, False, False]  # the last is never reached
    certified, tested = sequential_test([0.06, 0.0, 0.05, 0.05, 0.01], levels)
    assert tested.tolist() == [0.05, 0.0, 0.05, 0.05, 0.05]
    assert certified.tolist() == [False, False, True, True, True]


def test_of_certified_points_the_cheapest_is_chosen_then_the_more_accurate_one():
    right, all_right = [1] * 10 + [0] * 190, [0] * 200
    cheap = [
        point([1] * 200, right, threshold=0.9, tokens=50.0),
        point([1] * 200, all_right, threshold=0.8, tokens=50.0),
        point([1] * 200, all_right, threshold=0.7, tokens=90.0),
    ]
    promise = [Promise(name="pse", limit=0.2)]
    found = candidates_of(cheap, promise, 0.1)
    assert [row.certified for row in found] == [True] * 3
    less = point([1] * 100 + [0] * 100, all_right, threshold=0.9, tokens=50.0)
    equals = [less, replace(cheap[1], rule=Confident(threshold=0.85)), cheap[1]]
    for rows, best in ((cheap, 0.8), (equals, 0.85)):
        chosen = cheapest(candidates_of(rows, promise, 0.1), promise)
        assert (chosen and chosen.threshold) == best


@pytest.mark.parametrize(
    ("limit", "share", "delta"), [(0.1, 0.05, 0.1), (0.2, 0.0, 0.05), (0.05, 0.02, 0.1)]
)
def test_labels_needed_are_the_fewest_with_which_the_exact_test_has_its_power(limit, share, delta):
    found = labels_needed(limit, share, delta)

    def reached(n):
        most = int((stats.binom.cdf(np.arange(n), n, limit) <= delta).sum()) - 1
        return float(stats.binom.cdf(most, n, share))

    assert reached(found) >= 0.9
    assert all(reached(n) < 0.9 for n in range(1, found))


def test_no_number_of_labels_certifies_a_limit_that_is_not_kept():
    with pytest.raises(ValueError, match="never certifies"):
        labels_needed(0.1, 0.1, 0.1)


def test_labels_are_counted_for_a_limit_however_small():
    # Without a failure n labels certify it if (1 - 1e-9) ** n <= 0.1: n >= ln 10 * 1e9 - ln 10 / 2.
    assert labels_needed(1e-9, 0.0, 0.1) == 2_302_585_092
    with pytest.raises(ConfigError, match="1e-300 needs more labels than can be counted"):
        labels_needed(1e-300, 0.0, 0.1)


# The guarantee, in simulated calibrations of 400 clusters: there the truth is known

CLUSTERS, LIMIT, DELTA = 400, 0.12, 0.1
SCORES = np.arange(0.5, 1.0, 0.05)
"""The scores that simulated problems have, equally often, and the thresholds."""
WORLDS = {
    # P(wrong) at each score.
    "monotone": (0.6, 0.5, 0.4, 0.3, 0.2, 0.05, 0.03, 0.02, 0.01, 0.01),
    "non-monotone": (0.4, 0.4, 0.4, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.25),
    # Every threshold breaks the promise on accepted answers, by next to nothing.
    "adversarial": (LIMIT + 1e-4,) * 10,
}
PROMISES = {
    "wrong accepted and tokens": (
        Promise(name="wrong_accepted", limit=LIMIT),
        Promise(name="tokens", limit=180.0, bound=200.0),
    ),
    "stopped and wrong": (Promise(name="pse", limit=LIMIT * 0.6),),
}


def simulated(world: str, variants: int, generator: np.random.Generator) -> list[Replayed]:
    """Points of clusters whose variants have one score and a label that is mostly shared."""
    chance = np.array(WORLDS[world])
    score = np.repeat(generator.integers(10, size=(CLUSTERS, 1)), variants, 1)
    shared = generator.random((CLUSTERS, 1)) < chance[score[:, :1]]
    own = generator.random((CLUSTERS, variants)) < chance[score]
    same = generator.random((CLUSTERS, variants)) < 0.7
    wrong = np.where(same, shared, own).ravel()
    cluster = np.repeat(np.arange(CLUSTERS), variants)
    points = []
    for level in SCORES.tolist():
        accepted = SCORES[score.ravel()] >= level
        tokens = 200 - 100 * accepted
        points.append(point(accepted, wrong, cluster, threshold=level, tokens=tokens))
    return points


def truth(world: str, name: str, threshold: float) -> float:
    """The loss of a threshold in the limit of many problems."""
    accepted = threshold <= SCORES
    wrong = np.array(WORLDS[world])
    losses = {
        "pse": (accepted * wrong).mean(),
        "wrong_accepted": (accepted * wrong).sum() / accepted.sum(),
        "tokens": (200 - 100 * accepted).mean(),
    }
    return float(losses[name])


@pytest.mark.parametrize("promised", PROMISES)
@pytest.mark.parametrize("variants", [1, 3])
@pytest.mark.parametrize("world", WORLDS)
def test_certified_thresholds_break_a_promise_no_more_often_than_was_said(
    world, variants, promised
):
    """No certified threshold may break any promise, in all but a share delta of calibrations."""
    draws, promises, generator = 100, PROMISES[promised], np.random.default_rng(7)
    bad = {
        level
        for level in SCORES.tolist()
        if any(truth(world, one.name, level) > one.limit for one in promises)
    }
    broken = found = 0
    for _ in range(draws):
        points = simulated(world, variants, generator)
        kept = {row.threshold for row in candidates_of(points, promises, DELTA) if row.certified}
        broken += bool(kept & bad)
        found += bool(kept)
    assert broken <= stats.binom.ppf(0.999, draws, DELTA)
    if len(bad) < len(SCORES):
        assert found > 0.8 * draws  # some threshold does keep the promise
