"""Stopping rules replayed on recorded trajectories."""

import copy
import math

import pytest

from svr_lightning.evaluation.replay import fixed_budget_curve, replay_adaptive, replay_fixed
from svr_lightning.evaluation.results import summarize
from tests.trajectories import EXPECTED, adaptive, failed, record, same, uncensored


def _returned(threshold: float, max_turns: int = 3) -> list[tuple[int, bool]]:
    rows = [replay_adaptive(row, threshold, max_turns) for row in uncensored()]
    assert all(len(row["turns"]) == row["returned_turn"] for row in rows)
    return [(row["returned_turn"], row["stopped_early"]) for row in rows]


def test_replaying_the_threshold_gives_what_adaptive_inference_records() -> None:
    rows = [replay_adaptive(row, 0.85, 3) for row in uncensored()]
    assert rows == adaptive()
    values = summarize(rows)["datasets"]["toy"]
    values.pop("accuracy_ci95")
    assert same(values, EXPECTED)


def test_a_lower_threshold_stops_where_its_gate_first_opens() -> None:
    # At .80 e and f open at turn 1 (C .80 each); c1 is truncated; d says C at turn 3 only.
    assert _returned(0.80) == [(1, True), (1, True), (2, True), (3, False), (1, True), (1, True)]


def test_a_higher_threshold_stops_later_and_one_above_certainty_never() -> None:
    # At .96: a says C at .95 and .90 only; b C .99 at turn 2; c1 is truncated; d C .99 at T_max.
    assert _returned(0.96) == [(3, False), (2, True), *[(3, False)] * 4]
    assert _returned(1.01) == [(3, False)] * 6


def test_a_gate_that_opens_at_the_last_allowed_turn_is_no_early_stop() -> None:
    # With T_max = 2 c still returns turn 2, now as the last; d, e and f run out of turns.
    assert _returned(0.85, 2) == [(1, True), (1, True), *[(2, False)] * 4]
    assert _returned(0.85, 1) == [(1, False)] * 6


def test_a_fixed_budget_returns_its_own_turn() -> None:
    rows = [replay_fixed(row, 2) for row in uncensored()]
    assert {(row["returned_turn"], len(row["turns"]), row["stopped_early"]) for row in rows} == {
        (2, 2, False)
    }


def test_the_curve_over_budgets_is_worked_out_by_hand() -> None:
    curve = fixed_budget_curve(uncensored(), [1, 2, 3])
    assert [point["budget"] for point in curve] == [1, 2, 3]
    # Turn 1 is right for a, e; turn 2 for b, c, f; turn 3 for b, d.
    assert [point["accuracy"] for point in curve] == [2 / 6, 3 / 6, 2 / 6]
    # Right so far: a, e; and b, c, f; and d.
    assert [point["any_turn_accuracy"] for point in curve] == [2 / 6, 5 / 6, 1.0]
    assert [point["turns"] for point in curve] == [1.0, 2.0, 3.0]
    assert [point["avg_prompt_tokens"] for point in curve] == [100.0, 300.0, 600.0]
    assert [point["esr"] for point in curve] == [point["pse"] for point in curve] == [0.0] * 3
    assert curve[0]["verdict_accuracy"] == 3 / 6  # a, e say C and are right; d says I of a wrong


def test_a_curve_over_several_data_sets_is_their_macro_average() -> None:
    other = [record("x", (True, "C", 0.9, 1), dataset="other")]
    (point,) = fixed_budget_curve([*uncensored(), *other], [1])
    assert math.isclose(point["accuracy"], (2 / 6 + 1.0) / 2)
    assert point["n_datasets"]["auroc"] == 1  # "other" has one class


def test_replaying_changes_neither_the_record_nor_one_that_could_not_be_run() -> None:
    rows = uncensored()
    before = copy.deepcopy(rows)
    for row in rows:
        replay_adaptive(row, 0.5, 3)["turns"].clear()
        replay_fixed(row, 1)["turns"].clear()
    assert rows == before
    assert replay_adaptive(failed("g"), 0.85, 3) == failed("g")
    assert replay_fixed(failed("g"), 3) == failed("g")


def test_turns_that_were_never_recorded_are_not_made_up() -> None:
    censored = adaptive()[0]
    assert replay_adaptive(censored, 0.5, 10)["returned_turn"] == 1
    with pytest.raises(ValueError, match="'a' of 'toy': no turn stopped and only 1 of 10"):
        replay_adaptive(censored, 0.99, 10)
    with pytest.raises(ValueError, match="'a' of 'toy': a budget of 2 turns, and only 1"):
        replay_fixed(censored, 2)
    with pytest.raises(ValueError, match="max_turns=0"):
        replay_adaptive(censored, 0.85, 0)
    with pytest.raises(ValueError, match="budget=0"):
        replay_fixed(censored, 0)
