"""Columns hold what records say, and their metrics are those of the records."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svr_lightning.analysis.metrics import measure
from svr_lightning.core.metrics import VERDICT_CODES
from tests.trajectories import adaptive, failed, record, turn_tables

SCORES = ("verdict_probability", "answer_logprob", "completion_logprob")
PLAIN = ("correct", "truncated", "confidence", "prompt_tokens", "completion_tokens")


def random_records(rng: random.Random) -> list[dict[str, Any]]:
    """Trajectories of every kind on two data sets, some with more turns than were observed."""
    rows = []
    for name in range(rng.randrange(1, 9)):
        dataset = rng.choice(["math500", "gsm8k"])
        if rng.random() < 0.15:
            rows.append(failed(str(name), dataset))
            continue
        turns = [
            (rng.random() < 0.5, rng.choice("CIU"), rng.randrange(5) / 4, rng.randrange(99))
            for _ in range(rng.randrange(1, 5))
        ]
        cut = [(*turn, rng.random() < 0.2) for turn in turns]
        row = record(str(name), *cut, dataset=dataset, early=rng.random() < 0.5)
        row["returned_turn"] = rng.randrange(1, len(turns) + 1)
        if rng.random() < 0.5:
            row["observed_turns"] = rng.randrange(row["returned_turn"], len(turns) + 1)
        for turn in row["turns"]:
            turn["answer"] = rng.choice(["7", "7 ", "8", None])
            turn["verdict_probability"] = rng.choice([None, 0.25, 1.0])
            turn["answer_logprob"] = rng.choice([None, 0.0, -1.5])
            turn["completion_logprob"] = rng.choice([None, -0.25])
        rows.append(row)
    return rows


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_columns_are_the_records(rng: random.Random) -> None:
    rows = random_records(rng)
    tables = turn_tables(rows)
    assert list(tables) == list(dict.fromkeys(row["dataset"] for row in rows))
    for name, table in tables.items():
        mine = [row for row in rows if row["dataset"] == name]
        assert table.ids == tuple(row["id"] for row in mine)
        assert table.correct.shape == (len(mine), max(len(row["turns"]) for row in mine))
        for index, row in enumerate(mine):
            assert table.length[index] == len(row["turns"])
            assert table.outcome.returned[index] == row["returned_turn"]
            observed = row.get("observed_turns", row["returned_turn"])
            assert table.outcome.observed[index] == observed
            assert table.outcome.stopped_early[index] == row["stopped_early"]
            for place, turn in enumerate(row["turns"]):
                for column in PLAIN:
                    assert getattr(table, column)[index, place] == turn[column]
                assert table.verdict[index, place] == VERDICT_CODES[turn["verdict"]]
                signals = table.signals[index][place]
                for name in (*("verdict", "confidence", "truncated"), *SCORES):
                    assert getattr(signals, name) == turn[name]
                for other in table.signals[index][:place]:
                    written = row["turns"][table.signals[index].index(other)]["answer"]
                    same = None not in (written, turn["answer"]) and (
                        written.strip() == turn["answer"].strip()
                    )
                    assert (other.answer == signals.answer != 0) == same


def test_a_problem_that_could_not_be_run_has_no_turn_and_counts_as_wrong() -> None:
    table = turn_tables([failed("x"), *adaptive(), failed("y")])["toy"]
    assert table.length.tolist() == [0, 1, 1, 2, 3, 3, 3, 0]
    assert table.at(table.correct, table.outcome.returned).tolist() == [
        *(False, True, False, True, True, False, False, False)
    ]
    values = measure(table)
    assert values["accuracy"] == 3 / 8
    assert values["turns"] == 13 / 8
    assert values["brier"] == pytest.approx(4.1151 / 13)
    alone = turn_tables([failed("x")])["toy"]
    values = measure(alone)
    assert (values["n"], values["accuracy"], values["turns"], values["auroc"]) == (1, 0, 0, None)
    assert values["brier"] is None


def test_a_repeated_record_counts_once_and_an_unlabelled_turn_is_named() -> None:
    rows = adaptive()
    assert turn_tables([*rows, rows[0]])["toy"].ids == tuple("abcdef")
    with pytest.raises(ValueError, match="'mine' of 'toy' has no label at turn 1"):
        turn_tables([record("mine", (None, "C", 0.9, 10))])
    with pytest.raises(ValueError, match="returns turn 2 of 1"):
        turn_tables([{**record("mine", (True, "C", 0.9, 10)), "returned_turn": 2}])
    assert turn_tables([]) == {}
