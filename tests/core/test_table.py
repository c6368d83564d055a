"""Columns hold what records say, and their metrics are those of the records."""

import numpy as np

from svr_lightning.core.types import StopSignals, Verdict
from tests.trajectories import failed, record, turn_tables


def test_tokens_of_which_a_server_counted_one_kind_are_not_known():
    rows = [record("p", (True, "C", 0.9, 5)), record("q", (True, "C", 0.9, 5))]
    rows[1]["turns"][0]["prompt_tokens"] = 0
    table = turn_tables(rows)["toy"]
    np.testing.assert_equal(table.problems["total_tokens"], [105, np.nan])


def test_columns_are_the_records():
    one = record("p", (True, "C", 0.9, 5), (False, "U", 0.5, 7, True), early=True)
    one |= {"returned_turn": 1, "observed_turns": 2}
    for turn in one["turns"]:
        turn["answer_logprob"] = -1.5
    short = record("q", (False, "I", 0.1, 3))
    tables = turn_tables([one, failed("r", "other"), short])
    assert list(tables) == ["toy", "other"]
    table = tables["toy"]
    assert (table.ids, table.length.tolist()) == (("p", "q"), [2, 1])
    assert (table.returned.tolist(), table.observed.tolist()) == ([1, 1], [2, 1])
    assert table.signals(0)[1] == StopSignals(Verdict.UNSURE, 0.5, True, 1, None, -1.5, None)
