"""What a self-check is worth: ways to spend the same tokens, on turns worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from svr_lightning.analysis import check_value as ways
from svr_lightning.analysis.check_value import Samples, check_value
from svr_lightning.analysis.table import TurnTable
from svr_lightning.tiny.traces import trace_agrees
from tests.trajectories import record, turn_tables

WRONG = (False, "I", 0.1, 1)
RIGHT = (True, "C", 0.9, 1)


def recording(*turns: tuple[bool, str, float, int]) -> TurnTable:
    """Eight problems with the same turns, of 10 tokens each."""
    rows = []
    for number in range(8):
        row = record(f"p{number}", *turns)
        for turn in row["turns"]:
            turn |= {
                "answer_group": 1 + turn["correct"],
                "prompt_tokens": 4,
                "completion_tokens": 6,
            }
        rows.append(row)
    return turn_tables(rows)["toy"]


def rows_of(found: dict[str, Any]) -> dict[str, Any]:
    return {row["name"]: row for row in found["rows"]}


def test_each_way_spends_at_most_the_tokens_of_three_first_answers():
    # Refining never gets it right. Of fresh turns the third is right, and the check knows.
    fresh = recording(WRONG, WRONG, RIGHT, WRONG)
    found = check_value(recording(WRONG, WRONG, WRONG, WRONG), Samples(fresh))
    assert found["budget"] == 30.0
    accuracy = {name: row["accuracy"] for name, row in rows_of(found).items()}
    assert accuracy[ways.FIRST] == accuracy[ways.REFINING] == accuracy[ways.VOTE] == 0.0
    assert accuracy[ways.STATED] == accuracy[ways.PAPER] == accuracy[ways.PROGRAM] == 1.0
    # Three turns, whatever they say, return the third too: it costs no more.
    assert accuracy[ways.FREE] == 1.0
    assert found["gap"] == 0.0
    assert ways.TRACE not in accuracy


def test_the_policy_before_training_is_a_rival_of_its_own():
    fresh = recording(WRONG, RIGHT)
    found = check_value(recording(WRONG, WRONG), Samples(fresh), Samples(recording(WRONG, WRONG)))
    stated = rows_of(found)[ways.STATED]
    assert (stated["accuracy"], stated["before"]["accuracy"]) == (1.0, 0.0)
    assert rows_of(found)[ways.REFINING]["before"] is None
    assert found["gain"] == found["probable_gain"] == 1.0
    assert found["gain_ci95"][0] > 0.9


def test_a_way_that_is_over_the_budget_has_no_accuracy():
    found = check_value(recording(RIGHT, WRONG), Samples(recording(RIGHT, WRONG)), answers=1)
    assert rows_of(found)[ways.STATED]["tokens"] == 10.0
    assert rows_of(found)[ways.FIRST]["accuracy"] == pytest.approx(1.0)


def test_what_is_stated_and_the_verdicts_probability_are_families_of_their_own():
    """Every turn states the same; only the probability of the verdict tells the right ones."""
    fresh = recording((False, "C", 0.9, 1), (True, "C", 0.9, 1))
    columns = {
        "verdict_probability": np.tile([0.6, 0.9], (len(fresh.ids), 1)),
        "completion_logprob": np.tile([-1.0, -0.1], (len(fresh.ids), 1)),
    }
    known = ways.ways_of(Samples(replace(fresh, **columns)))
    probable = [name for name in known[ways.PROBABLE].names if "probability" in name]
    assert probable
    assert not any("probability of the verdict" in name for name in known[ways.STATED].names)
    # The mean over all tokens contains the self-check's: it is in neither free nor stated rules.
    for way in (ways.FREE, ways.STATED):
        assert not any("of the completion" in name for name in known[way].names)
    assert max(map(len, known)) <= 35  # else the columns beside them do not fit into 80


def test_reading_the_trace_takes_the_first_turn_whose_two_strings_are_equal():
    fresh = recording(WRONG, WRONG, RIGHT)
    agrees = np.tile([False, False, True], (8, 1))
    found = rows_of(check_value(recording(WRONG), Samples(fresh, agrees), answers=3))
    assert (found[ways.TRACE]["accuracy"], found[ways.TRACE]["tokens"]) == (1.0, 30.0)
    # A trace may agree although the answer is wrong: it is no program that evaluates.
    misled = np.tile([True, False, False], (8, 1))
    found = rows_of(check_value(recording(WRONG), Samples(fresh, misled), answers=3))
    assert found[ways.TRACE]["accuracy"] == 0.0
    assert found[ways.PROGRAM]["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("text", "agrees"),
    [
        ("<think>1*3=3,3-1=2? 2</think>\n<answer>(1*3)-1</answer>", True),
        ("<think>6/2=3,3+11=14? 15</think>\n<answer>(6/2)+11</answer>", False),
        ("<think>3-1=2 ? 2 </think>", True),
        ("<think>3-1=2? 20</think>", False),
        ("<think>we think</think>\n<answer>2</answer>", None),
        ("3-1=2? 2", None),
        ("<think>3-1=2? 2", None),
        ("", None),
    ],
)
def test_a_trace_is_read_as_text_alone(text, agrees):
    assert trace_agrees(text) is agrees
