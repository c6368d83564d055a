"""What a self-check is worth, worked out by hand on two recordings of four problems."""

from typing import Any

import pytest

from svr_lightning.analysis.check_value import FIRST, FREE, FRESH, REFINING, VOTE, check_value
from svr_lightning.analysis.table import TurnTable
from tests.trajectories import record, turn_tables


def recording(*turns: tuple[bool, str, float, int]) -> TurnTable:
    """Eight problems with the same turns, of 10 tokens each."""
    rows: list[dict[str, Any]] = []
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


def test_each_way_spends_at_most_the_tokens_of_three_first_answers() -> None:
    wrong, right = (False, "I", 0.1, 1), (True, "C", 0.9, 1)
    # Refining never gets it right. Of fresh turns the third is right, and the check knows.
    found = check_value(
        recording(wrong, wrong, wrong, wrong), recording(wrong, wrong, right, wrong)
    )
    assert found["budget"] == 30.0
    accuracy = {row["name"]: row["accuracy"] for row in found["rows"]}
    assert accuracy[FIRST] == accuracy[REFINING] == accuracy[VOTE] == 0.0
    assert accuracy[FRESH] == 1.0
    # Three turns, whatever they say, return the third too: it costs no more.
    assert accuracy[FREE] == 1.0
    assert found["gap"] == 0.0


def test_a_way_that_is_over_the_budget_has_no_accuracy() -> None:
    wrong, right = (False, "I", 0.1, 1), (True, "C", 0.9, 1)
    found = check_value(recording(right, wrong), recording(right, wrong), answers=1)
    rows = {row["name"]: row for row in found["rows"]}
    assert rows[FRESH]["tokens"] == 10.0
    assert rows[FIRST]["accuracy"] == pytest.approx(1.0)
