"""Stopping rules of many families at equal tokens."""

from typing import Any

import pytest

from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.stops import ORACLE, compare_stops, families, options_of
from svr_lightning.core.stopping import Confident
from tests.trajectories import record, turn_tables

FOUR = {
    # letters of turns 1 to 4, and the right one; every turn costs 10 tokens
    "p": ("aaaa", "a"),
    "q": ("abbb", "b"),
    "r": ("abab", "c"),
    "s": ("abcc", "c"),
}


def four() -> list[dict[str, Any]]:
    rows = []
    for name, (letters, right) in FOUR.items():
        row = record(name, *[(one == right, "U", 0.5, 5) for one in letters])
        for turn, one in zip(row["turns"], letters, strict=True):
            turn |= {"prompt_tokens": 5, "answer": one, "answer_group": "abc".index(one) + 1}
        rows.append(row)
    return rows


def test_rules_are_compared_at_equal_tokens_on_problems_that_did_not_choose_them():
    tables = turn_tables(four())
    found = compare_stops(tables, Confident(), 4, 30.0)
    rows = {row["name"]: row for row in found["rows"]}
    assert found["budget"] == 30.0
    # No row of the table has log-probabilities; the policy is never sure.
    assert list(rows) == [
        "fixed turns",
        "repeated answer",
        "equal answers",
        "majority",
        "votes and confidences",
        "verdict and confidence",
        "confidence",
        "oracle (reads labels)",
    ]
    assert found["winner"] != ORACLE
    winner = rows[found["winner"]]
    assert (winner["gap"], winner["gap_ci95"]) == (0.0, [0.0, 0.0])
    for row in rows.values():
        assert row["tokens"] <= 40
        assert row["gap"] == pytest.approx(row["accuracy"] - winner["accuracy"])
        low, high = row["ci95"]
        assert low <= row["accuracy"] <= high
    # Without a budget it is what the given rule takes: all four turns, as nobody is sure.
    assert compare_stops(tables, Confident(), 4)["budget"] == 40.0


def test_a_sure_incorrect_stops_no_rule_that_reads_the_verdict():
    """Only its probability is high: the right answer comes with the CORRECT behind it."""
    rows = []
    for name in "abcd":
        row = record(name, (False, "I", 0.9, 5), (True, "C", 0.9, 5), (False, "U", 0.9, 5))
        for turn, probability in zip(row["turns"], (0.99, 0.9, 0.4), strict=True):
            turn["verdict_probability"] = probability
        rows.append(row)
    found = {row["name"]: row for row in compare_stops(turn_tables(rows), Confident(), 3)["rows"]}
    assert found["verdict's probability"]["accuracy"] == 1.0
    assert found["verdict and confidence"]["accuracy"] == 1.0
    assert found["confidence"]["accuracy"] == 0.0


def test_an_option_is_right_and_costs_what_a_replay_of_its_rule_says():
    (table,) = turn_tables(four()).values()
    for rules in families(table, 4).values():
        options = options_of([table], rules)
        for index, (rule, turns) in enumerate(rules):
            expected = replay(table, rule, turns).problems
            assert (options.right[index, 0] == expected["final_correct"]).all(), rule
            assert (options.tokens[index, 0] == expected["total_tokens"]).all(), rule


def test_every_data_set_counts_the_same_as_in_all_averages():
    """Of two problems none is right, for 105 tokens each; of six all are, for 115."""
    rows = [
        record(str(k), (k > 1, "C", 0.9, 15 if k > 1 else 5), dataset="ab"[k > 1]) for k in range(8)
    ]
    found = compare_stops(turn_tables(rows), Confident(), 1)
    assert (found["budget"], found["rows"][0]["tokens"]) == (110, 110)
    assert found["rows"][0]["accuracy"] == 0.5


def test_a_family_over_budget_has_no_accuracy():
    found = compare_stops(turn_tables(four()), Confident(), 4, 9.0)
    assert found["winner"] is None
    assert {row["accuracy"] for row in found["rows"]} == {None}
