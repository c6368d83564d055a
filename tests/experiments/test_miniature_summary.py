"""Values of seeds and resamples, comparisons and claims, on cases worked out by hand."""

import math

import numpy as np
import pytest

from experiments.miniature import claims, summary
from experiments.miniature.claims import Claim, claim_entries, decided, normal_p_value
from experiments.miniature.results import FREE, pairs_of
from experiments.miniature.rows import BY_NAME
from experiments.miniature.summary import Judged
from svr_lightning.analysis.choice import Draws, draw
from svr_lightning.analysis.replay import replay
from svr_lightning.core.metrics import DEFINITIONS
from svr_lightning.core.stopping import Confident
from tests.trajectories import EXPECTED, record, turn_tables, uncensored


def test_every_metric_is_that_of_the_table_worked_out_by_hand():
    six = turn_tables(uncensored())["toy"]
    drawn = draw(np.arange(6))
    found = summary.metrics([replay(six, Confident(), 3)], drawn)
    # All six are right at one of their three turns; 3328 tokens for three right answers.
    expected = {**EXPECTED, "any_turn_accuracy": 1.0, "tokens_per_correct": 3328 / 3}
    for name, values in found.items():
        entry = summary.entry(values, drawn)
        assert math.isclose(entry["mean"], expected[name], rel_tol=1e-12), name
        assert entry["ci95"][0] <= entry["mean"] <= entry["ci95"][1]


def test_every_resample_is_what_measuring_it_on_its_own_gives():
    table = replay(turn_tables(uncensored())["toy"], Confident(), 3)
    drawn = draw(table.cluster, resamples=40)
    found = summary.metrics([table], drawn)
    for number, row in enumerate(drawn.counts.astype(int)):
        alone = table.select(np.repeat(np.arange(6), row))
        for name in found.keys() & DEFINITIONS.keys() - {"any_turn_accuracy"}:
            expected = pytest.approx(alone.value(name), nan_ok=True)
            assert found[name][0, number] == expected, name


def test_seeds_are_resampled_as_well_as_problems():
    """Two seeds, one always right and one always wrong: a resample has 0, 1/2 or 1."""
    column = np.ones(50)
    drawn = draw(np.arange(50), 2)
    ratios = {"accuracy": ([column, 0 * column], [column, column])}
    entry = summary.entry(summary.values(ratios, drawn)["accuracy"], drawn)
    assert entry == {"mean": 0.5, "ci95": [0.0, 1.0], "seeds": [1.0, 0.0]}


def test_a_seed_without_a_value_is_left_out_of_the_mean():
    counts, seeds = np.ones((3, 2)), np.array([[1.0, 1], [1, 1], [0, 2]])
    drawn = Draws(counts=counts, seeds=seeds, halves=np.ones((1, 2), dtype=bool), size=2)
    entry = summary.entry(np.array([[0.4] * 3, [math.nan] * 3]), drawn)
    assert entry == {"mean": 0.4, "ci95": [0.4, 0.4], "seeds": [0.4, None]}


def test_problems_of_one_set_of_numbers_are_drawn_together():
    def of(*names: str) -> list[int]:
        rows = [{**record(name, (True, "C", 0.9, 1)), "cluster": "same"} for name in names]
        return [*map(int, summary.clusters(turn_tables(rows)["toy"]))]

    assert of("test-1-2-3-7-0", "test-1-2-4-8-0", "test-1-2-3-9-1") == [0, 1, 0]
    assert of("test-0-shop", "test-1-shop") == [0, 0]  # the clusters of the data set


def judged(name: str, turns: list[tuple[bool, str, float, int]], seeds: int = 2) -> Judged:
    """A row whose ten problems all have the same turns, greedily and sampled, with every seed."""
    rows = [record(f"p{number}", *turns) for number in range(10)]
    tables = dict.fromkeys(("greedy", "sampled"), (turn_tables(rows)["toy"],) * seeds)
    return Judged(row=BY_NAME[name], seeds=tuple(range(42, 42 + seeds)), turns=tables)


RIGHT, WRONG = (True, "C", 0.9, 10), (False, "I", 0.1, 10)


def test_the_gap_to_the_best_rival_is_measured_within_each_budget():
    """Ours is right at its second turn, for 320 tokens; one rival at its first, for 110."""
    svr = judged("svr", [WRONG, RIGHT])
    rivals = [judged("grpo", [RIGHT]), judged("grpo_mt", [WRONG, WRONG])]
    pairs = pairs_of(svr, [svr, *rivals], FREE)
    assert pairs["seeds"] == [42, 43]
    points = {point["budget"]: point for point in pairs["points"]}
    assert 70 not in points  # no row is as cheap
    assert points[140]["pair"]["options"] == ["GRPO, 1 turn, at most 1 turns"]
    assert points[140]["gap"] == {"difference": -1.0, "ci95": [-1.0, -1.0]}
    assert points[400]["ours"]["accuracy"] == 1.0
    assert points[400]["gap"]["difference"] == 0.0


def test_a_difference_is_above_or_below_zero_or_not_decided():
    spread = np.linspace(-1, 1, 101)
    labels = [decided(np.array([mean, *(mean + spread)])) for mean in (1.0, 0.9, -0.9, -1.0)]
    assert labels == ["above", "not decided", "not decided", "below"]
    # An estimate of 1.96 standard errors.
    values = np.array([1.96, *np.repeat([0.96, 2.96], 50)])
    assert normal_p_value(values) == pytest.approx(0.05, abs=1e-4)
    assert normal_p_value(np.zeros(9)) == 1.0


def test_claims_begin_with_adaptive_inference_against_its_fixed_budgets(monkeypatch):
    every = [judged("svr", [WRONG, RIGHT]), judged("svr_plus", [RIGHT, WRONG])]
    first, *others = claim_entries(every)
    assert first["claim"] == "SVR, adaptive minus its best fixed number of turns"
    assert (first["difference"], first["label"], first["corrected"]) == (0.0, "not decided", None)
    # Here SVR+ is right at once; SVR needs 320 tokens for it.
    found = {(one["claim"], one["turns"]): one for one in others}
    within = found["SVR+ minus SVR", "within 140 tokens"]
    assert (within["difference"], within["label"], within["corrected"]) == (1.0, "above", "above")
    assert found["SVR+ minus SVR", "within 400 tokens"]["label"] == "not decided"
    assert not any("warm start" in claim for claim, _ in found)  # there is none
    monkeypatch.setattr(claims, "CLAIMS", (Claim("svr_plus", "svr", "pse"),))
    assert claim_entries(every)[0]["difference"] == 0.0
