"""Stopping rules replayed on recorded trajectories."""

from typing import Any

import pytest

from svr_lightning.analysis.metrics import measure
from svr_lightning.analysis.replay import THRESHOLDS, curves, replay
from svr_lightning.analysis.table import TurnTable
from svr_lightning.analysis.table import turn_tables as tables_of
from svr_lightning.core.stopping import Confident, Posterior
from tests.trajectories import (
    adaptive,
    record,
    records_of,
    turn_tables,
    uncensored,
)

NATS = Confident(score="answer_logprob", threshold=-0.1)


def _table(records: list[dict[str, Any]]) -> TurnTable:
    (table,) = turn_tables(records).values()
    return table


def _returned(threshold: float, max_turns: int = 3) -> list[tuple[int, bool]]:
    outcome = replay(_table(uncensored()), Confident(threshold=threshold), max_turns)
    return list(zip(outcome.returned.tolist(), outcome.stopped_early.tolist(), strict=True))


def test_replaying_the_threshold_gives_what_adaptive_inference_records():
    recorded = [(row["returned_turn"], row["stopped_early"]) for row in adaptive()]
    assert _returned(0.85) == recorded


def test_a_higher_threshold_stops_later_and_one_that_no_turn_reaches_never():
    # At .96: a says C at .95 and .90 only; b C .99 at turn 2; c1 is truncated; d C .99 at T_max.
    assert _returned(0.96) == [(3, False), (2, True), *[(3, False)] * 4]
    assert _returned(1.0) == [(3, False)] * 6


def test_a_gate_that_opens_at_the_last_allowed_turn_is_no_early_stop():
    # With T_max = 2 c still returns turn 2, now as the last; d, e and f run out of turns.
    assert _returned(0.85, 2) == [(1, True), (1, True), *[(2, False)] * 4]
    assert _returned(0.85, 1) == [(1, False)] * 6


def test_trajectories_that_differ_only_in_a_cut_turn_are_judged_apart():
    """A truncated answer does not vote, whatever confidence it states."""
    sure = ("C", 0.9, 10)
    rows = [record(name, (True, *sure, name == "cut"), (True, *sure)) for name in ("whole", "cut")]
    assert replay(_table(rows), Posterior(), 2).returned.tolist() == [1, 2]


def test_an_outcome_carries_its_rule_and_whether_its_last_turn_is_accepted():
    table = _table(uncensored())
    assert (table.rule, table.max_turns) == (None, 3)
    outcome = replay(table, Confident(), 3)
    assert (outcome.rule, outcome.max_turns) == (Confident(), 3)
    # a, b and c early; d and f say CORRECT at .99 and .90 at T_max itself; e does not.
    assert outcome.accepted.tolist() == [True, True, True, True, False, True]
    assert not replay(table, None, 3).accepted.any()
    # With T_max = 2 c is accepted at its last turn, and d, e and f are not.
    assert replay(table, Confident(), 2).accepted.tolist() == [True, True, True, *[False] * 3]


def test_a_recording_without_accepted_has_what_its_rule_says():
    rows = [{name: row[name] for name in row if name != "accepted"} for row in adaptive()]
    told = tables_of(records_of(rows), Confident(), 3)["toy"]
    assert told.accepted.tolist() == [True, True, True, True, False, True]
    # Without a rule only what stopped early is known.
    assert turn_tables(rows)["toy"].accepted.tolist() == [True] * 3 + [False] * 3
    stated = [{**row, "accepted": row["id"] == "e"} for row in rows]
    told = tables_of(records_of(stated), Confident(), 3)["toy"]
    assert told.accepted.tolist() == [False] * 4 + [True, False]


def test_the_curve_over_budgets_is_worked_out_by_hand():
    table = _table(uncensored())
    curve = [measure(replay(table, None, budget)) for budget in (1, 2, 3)]
    # Turn 1 is right for a, e; turn 2 for b, c, f; turn 3 for b, d.
    assert [point["accuracy"] for point in curve] == [2 / 6, 3 / 6, 2 / 6]
    # Right so far: a, e; and b, c, f; and d.
    assert [point["any_turn_accuracy"] for point in curve] == [2 / 6, 5 / 6, 1.0]
    assert [point["turns"] for point in curve] == [1.0, 2.0, 3.0]
    assert [point["avg_prompt_tokens"] for point in curve] == [100.0, 300.0, 600.0]
    assert [point["esr"] for point in curve] == [point["pse"] for point in curve] == [0.0] * 3
    assert curve[0]["verdict_accuracy"] == 3 / 6  # a, e say C and are right; d says I of a wrong


def test_turns_that_were_never_recorded_are_not_made_up():
    censored = _table(adaptive()[:1])
    assert replay(censored, Confident(threshold=0.5), 10).returned.tolist() == [1]
    with pytest.raises(ValueError, match="'a' of 'toy': no turn stopped and only 1 of 10"):
        replay(censored, Confident(threshold=0.99), 10)
    with pytest.raises(ValueError, match="'a' of 'toy': no turn stopped and only 1 of 2"):
        replay(censored, None, 2)
    with pytest.raises(ValueError, match="max_turns=0"):
        replay(censored, Confident(), 0)


def test_curves_hold_every_budget_and_threshold():
    found = curves(turn_tables(uncensored()), Confident(), 3)
    assert [row["budget"] for row in found["fixed"]] == [1, 2, 3]
    points = [(row["max_turns"], row["threshold"]) for row in found["thresholds"]]
    assert points == [(3, threshold) for threshold in THRESHOLDS]
    # At .80: a1 right, b1 wrong, c2 right, d3 right (T_max), e1 right, f1 wrong.
    low = found["thresholds"][6]["datasets"]["toy"]
    assert (low["accuracy"], low["pse"], low["turns"]) == (4 / 6, 2 / 6, 9 / 6)
    assert found["operating_point"] == found["thresholds"][7]
    assert curves(turn_tables(uncensored()), NATS, 3)["thresholds"] == []
