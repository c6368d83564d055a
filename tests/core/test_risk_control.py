"""Promises: p-values by other libraries, the procedure by hand, the guarantee by simulation."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from svr_lightning.core.stopping import StopRule
from svr_lightning.evaluation.replay import replay
from svr_lightning.evaluation.table import TurnTable
from svr_lightning.evaluation.thresholds import (
    RiskConstraints,
    binomial_tails,
    bounded_p_value,
    bounded_upper_bound,
    certify,
    cheapest,
    mean_p_value,
    mean_upper_bound,
    share_p_value,
    share_upper_bound,
    start_levels,
    tune,
)
from tests.trajectories import failed, record, turn_tables

DRAWS = 1000


# P-values


@pytest.mark.parametrize(("n", "p"), [(0, 0.3), (1, 0.5), (12, 0.05), (1319, 0.1), (20_000, 0.9)])
def test_binomial_tails_are_those_of_scipy(n: int, p: float) -> None:
    assert binomial_tails(n, p) == pytest.approx(stats.binom.cdf(np.arange(n + 1), n, p), rel=1e-8)


@pytest.mark.parametrize(("failures", "n"), [(0, 30), (3, 30), (29, 30), (30, 30), (97, 1319)])
def test_the_bound_of_a_share_is_that_of_clopper_and_pearson(failures: int, n: int) -> None:
    expected = stats.binomtest(failures, n).proportion_ci(0.8, "exact").high  # 90 % on one side
    bound = share_upper_bound(failures, n, 0.1)
    assert bound == pytest.approx(expected)
    if bound < 1:
        assert share_p_value(failures, n, bound + 1e-9) <= 0.1
        assert share_p_value(failures, n, bound - 1e-9) > 0.1


def test_what_cannot_be_broken_is_certain_and_what_was_not_seen_is_not() -> None:
    assert share_p_value(5, 5, 1.0) == 0.0
    assert share_p_value(0, 0, 0.5) == 1.0
    assert share_p_value(0, 10, 0.0) == 1.0
    assert mean_p_value(np.array([3.0, 4.0]), 5.0, 5.0) == 0.0
    assert mean_p_value(np.array([]), 4.0, 5.0) == 1.0
    assert mean_p_value(np.array([5.0] * 9), 4.0, 5.0) == 1.0


def test_the_bet_on_a_mean_is_worked_out_by_hand() -> None:
    # m = 1/2: bets l = 0.1, 0.2 .. 2; both values 0 give (1 + l / 2) ** 2 each.
    capital = np.mean([(1 + k / 20) ** 2 for k in range(1, 21)])
    assert mean_p_value(np.array([0.0, 0.0]), 5.0, 10.0) == pytest.approx(1 / capital)
    with pytest.raises(ValueError, match="outside"):
        mean_p_value(np.array([11.0]), 5.0, 10.0)


def test_the_bound_of_a_mean_is_where_its_p_value_crosses_and_near_the_least_possible() -> None:
    tokens = np.random.default_rng(0).gamma(1.5, 500, 1000)
    bound = mean_upper_bound(tokens, 81920, 0.1)
    assert mean_p_value(tokens, bound + 1e-6, 81920) <= 0.1 < mean_p_value(tokens, bound - 1, 81920)
    least = 81920 * math.log(10) / 1000  # what an unseen problem of 81920 tokens may hide
    assert least < bound - tokens.mean() < 2 * least


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_the_p_value_of_a_mean_that_breaks_its_promise_is_rarely_small(share: float) -> None:
    # Values 0 or the bound: the hardest ones. The mean is exactly the promise.
    generator = np.random.default_rng(1)
    values = (generator.random((DRAWS, 150)) < share).astype(float)
    small = [mean_p_value(row, share, 1.0) <= 0.1 for row in values]
    assert 0 < sum(small) <= stats.binom.ppf(0.999, DRAWS, 0.1)


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_the_p_value_of_means_of_clusters_is_rarely_small_if_the_promise_is_broken(
    share: float,
) -> None:
    # Two problems per cluster that agree in half of the clusters: 0, 1/2 or 1.
    generator = np.random.default_rng(2)
    both = generator.random((DRAWS, 120)) < 0.5
    one, other = generator.random((2, DRAWS, 120)) < share
    means = np.where(both, one, (one * 1.0 + other) / 2)
    small = sum(bounded_p_value(row, share) <= 0.1 for row in means)
    assert 0 < small <= stats.binom.ppf(0.999, DRAWS, 0.1)


def test_a_bounded_mean_is_tested_by_relative_entropy_or_by_a_binomial_tail() -> None:
    values = np.array([0.5] * 10 + [0.0] * 90)  # mean 0.05
    entropy = 0.05 * math.log(0.05 / 0.2) + 0.95 * math.log(0.95 / 0.8)
    tail = math.e * stats.binom.cdf(5, 100, 0.2)
    assert bounded_p_value(values, 0.2) == pytest.approx(min(math.exp(-100 * entropy), tail))
    assert bounded_p_value(values, 0.05) == 1.0
    assert bounded_p_value(values, 1.0) == 0.0
    assert bounded_p_value(np.zeros(20), 0.5) == pytest.approx(0.5**20)
    bound = bounded_upper_bound(values, 0.1)
    assert bounded_p_value(values, bound + 1e-6) <= 0.1 < bounded_p_value(values, bound - 1e-6)


def test_variants_of_one_problem_certify_no_more_than_the_problem_alone() -> None:
    found = []
    for copies in (1, 2, 5):
        chosen = table().select(np.repeat([0, 0, 0, 4], 40 * copies))
        cluster = np.repeat(np.arange(160), copies)
        problems = replace(chosen, cluster=cluster)
        promises = RiskConstraints(max_pse=0.1, max_tokens=700, token_bound=2000)
        found.append(tune([problems], StopRule(), (0.9,), promises, max_turns=3, delta=0.1))
    assert [(one.n, one.clusters) for one in found] == [(160, 160), (320, 160), (800, 160)]
    bounds = [one.candidates[0].pse_bound for one in found]
    assert bounds[0] <= bounds[1] == bounds[2]  # exact for single problems, else a bound on means
    tokens = [one.candidates[0].tokens_bound for one in found]
    assert tokens[0] == pytest.approx(tokens[1]) == pytest.approx(tokens[2])


# The procedure


def test_delta_is_shared_among_evenly_spaced_starts() -> None:
    assert np.flatnonzero(start_levels(13, 0.1)).tolist() == [0, 3, 6, 9]
    assert start_levels(13, 0.1).sum() == pytest.approx(0.1)
    assert start_levels(2, 0.1).tolist() == [0.05, 0.05]
    assert start_levels(5, 0.1, 1).tolist() == [0.1, 0, 0, 0, 0]


def test_a_start_hands_on_what_it_keeps_and_a_failure_hands_on_nothing() -> None:
    levels = np.array([0.05, 0.0, 0.05, 0.0, 0.0])
    certified, tested = certify(np.array([0.05, 0.04, 0.1, 0.2, 0.0]), levels)
    assert tested.tolist() == [0.05, 0.05, 0.1, 0.1, 0.0]
    assert certified.tolist() == [True, True, True, False, False]  # the last is never reached
    certified, tested = certify(np.array([0.06, 0.0, 0.05, 0.05, 0.01]), levels)
    assert tested.tolist() == [0.05, 0.0, 0.05, 0.05, 0.05]
    assert certified.tolist() == [False, False, True, True, True]


def test_of_certified_thresholds_the_cheapest_is_chosen_then_the_more_accurate_one() -> None:
    tokens, accuracy = np.array([9.0, 5.0, 5.0, 1.0]), np.array([0.9, 0.7, 0.8, 0.9])
    assert cheapest([True, True, True, False], tokens, accuracy) == 2
    assert cheapest([True, True, False, False], tokens, accuracy) == 1
    assert cheapest([True, True, True, False], tokens, np.zeros(4)) == 1
    assert cheapest([False] * 4, tokens, accuracy) is None


# The guarantee

THRESHOLDS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
KINDS = [
    # Right at any threshold; wrong when it stops at .95; wrong below .9 and right after.
    record("safe", (True, "C", 0.99, 10), (True, "C", 0.99, 10), (True, "C", 0.99, 10)),
    record("sure", (False, "C", 0.96, 10), (False, "C", 0.96, 10), (True, "C", 0.99, 10)),
    record("85", (False, "C", 0.86, 10), (True, "C", 0.99, 10), (True, "C", 0.99, 10)),
    record("75", (False, "C", 0.76, 10), (True, "C", 0.99, 10), (True, "C", 0.99, 10)),
    # Right if it stops at .90, and worn down to a confident mistake if it may not.
    record("worn", (True, "C", 0.91, 10), (False, "C", 0.97, 10), (True, "C", 0.99, 10)),
    failed("unfit"),
]
WORLDS = {
    # True PSE by threshold: .95: .04; .90: .04; .85: .105; .80: .105; .75 and below: .205
    "falls with the threshold": (0.74, 0.04, 0.065, 0.10, 0.0, 0.055),
    # .95: .12 and everything below: .04, .04 + .05 from .85 on, + .02 from .75 on.
    "does not": (0.75, 0.04, 0.05, 0.02, 0.08, 0.06),
}


def table() -> TurnTable:
    return turn_tables(KINDS)["toy"]


def failures_by_kind() -> tuple[np.ndarray, np.ndarray]:
    """[kinds, thresholds] whether it stops early and wrong, and its tokens."""
    columns = []
    for threshold in THRESHOLDS:
        outcome = replay(table(), StopRule(threshold=threshold), 3)
        wrong = ~table().at(table().correct, outcome.returned)
        tokens = (table().prompt_tokens + table().completion_tokens) * table().observed(outcome)
        columns.append((outcome.stopped_early & wrong, tokens.sum(1)))
    premature, tokens = zip(*columns, strict=True)
    return np.stack(premature, 1).astype(float), np.stack(tokens, 1).astype(float)


@pytest.mark.parametrize("world", WORLDS)
def test_a_chosen_threshold_breaks_its_promise_no_more_often_than_was_said(world: str) -> None:
    n, promise, delta = 500, 0.10, 0.1
    chances = np.array(WORLDS[world])
    premature, tokens = failures_by_kind()
    truth = chances @ premature
    assert (truth > promise).any()
    assert (truth <= promise).any()
    assert (np.diff(truth) < 0).any() == (world == "does not")
    drawn = np.random.default_rng(7).multinomial(n, chances, size=DRAWS)
    failures = (drawn @ premature).astype(int)
    p_values = binomial_tails(n, promise)[failures]
    certified, _ = certify(p_values, start_levels(len(THRESHOLDS), delta))
    spent, zeros = drawn @ tokens / n, np.zeros(len(THRESHOLDS))
    choices = [cheapest(row, cost, zeros) for row, cost in zip(certified, spent, strict=True)]
    broken = sum(choice is not None and truth[choice] > promise for choice in choices)
    allowed = stats.binom.ppf(0.999, DRAWS, delta)
    assert broken <= allowed
    # Not only of the chosen one: no threshold that breaks the promise is certified more often.
    assert (certified & (truth > promise)).any(1).sum() <= allowed
    assert sum(choice is not None for choice in choices) > 0.8 * DRAWS
    # Taking the cheapest threshold whose samples keep the promise breaks it much more often.
    naive = [
        cheapest(row <= n * promise, cost, zeros) for row, cost in zip(failures, spent, strict=True)
    ]
    if world == "falls with the threshold":
        assert sum(k is not None and truth[k] > promise for k in naive) > 2 * allowed


def test_tuning_recorded_problems_is_the_procedure_that_was_simulated() -> None:
    chances = np.array(WORLDS["does not"])
    premature, tokens = failures_by_kind()
    for seed in range(3):
        drawn = np.random.default_rng(seed).multinomial(300, chances)
        problems = table().select(np.repeat(np.arange(len(KINDS)), drawn))
        problems = replace(problems, cluster=np.arange(300))  # drawn one by one
        found = tune(
            [problems.select(np.arange(100)), problems.select(np.arange(100, 300))],
            StopRule(),
            THRESHOLDS[::-1],
            RiskConstraints(max_pse=0.1),
            max_turns=3,
            delta=0.1,
        )
        p_values = binomial_tails(300, 0.1)[(drawn @ premature).astype(int)]
        certified, tested = certify(p_values, start_levels(len(THRESHOLDS), 0.1))
        assert [row.threshold for row in found.candidates] == list(THRESHOLDS)
        assert [row.certified for row in found.candidates] == certified.tolist()
        assert [row.level for row in found.candidates] == tested.tolist()
        cost = (drawn @ tokens / 300).tolist()
        assert [row.tokens for row in found.candidates] == pytest.approx(cost)
        for row in found.candidates:
            if row.level > 0:
                assert (row.pse_bound <= 0.1) == row.certified
