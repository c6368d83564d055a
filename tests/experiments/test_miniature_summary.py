"""Comparisons and claims, on cases worked out by hand."""

import numpy as np
import pytest

from experiments.miniature import claims, summary
from experiments.miniature.claims import Claim, claim_entries, decided, normal_p_value
from experiments.miniature.results import FREE, pairs_of
from experiments.miniature.rows import BY_NAME
from experiments.miniature.summary import Judged
from tests.trajectories import record, turn_tables


def test_problems_of_one_set_of_numbers_are_drawn_together():
    def of(*names):
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
    assert points[140]["pair"]["options"] == ["GRPO, 1 turn, at most 1 turn"]
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
