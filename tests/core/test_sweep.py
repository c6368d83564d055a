"""All curves from one recording, and the command that leaves them."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svr_lightning.__main__ import main
from svr_lightning.analysis.intervals import split_clusters
from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.sweep import (
    ORACLE,
    _outcomes,
    best_option,
    compare_stops,
    families,
    sweep,
    transitions,
)
from svr_lightning.core.stopping import Confident
from svr_lightning.files import to_json
from tests.trajectories import adaptive, failed, record, turn_tables, uncensored


def test_a_sweep_holds_every_budget_threshold_gate_and_horizon() -> None:
    curves = sweep(turn_tables(uncensored()), Confident(), 3, (0.8, 0.85))
    assert [row["budget"] for row in curves["fixed"]] == [1, 2, 3]
    points = [(row["max_turns"], row["threshold"]) for row in curves["max_turns"]]
    assert points == [(t, gamma) for t in (1, 2, 3) for gamma in (0.8, 0.85)]
    # With one turn, nothing stops early and turn 1 is right for a and e.
    alone = curves["max_turns"][0]["datasets"]["toy"]
    assert (alone["accuracy"], alone["esr"], alone["turns"]) == (2 / 6, 0.0, 1.0)
    # At .80: a1 right, b1 wrong, c2 right, d3 right (T_max), e1 right, f1 wrong.
    low = curves["thresholds"][0]["datasets"]["toy"]
    assert (low["accuracy"], low["pse"], low["turns"]) == (4 / 6, 2 / 6, 9 / 6)
    assert curves["operating_point"] == curves["thresholds"][1]
    # The verdict alone stops where .80 does: no CORRECT of theirs is less confident.
    assert curves["verdict_only"]["datasets"] == curves["thresholds"][0]["datasets"]


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


def test_rules_are_compared_at_equal_tokens_on_problems_that_did_not_choose_them() -> None:
    tables = turn_tables(four())
    found = compare_stops(tables, Confident(), 4, 30.0)
    rows = {row["name"]: row for row in found["rows"]}
    assert found["budget"] == 30.0
    # No row of the table has log-probabilities; the policy is never sure.
    assert list(rows) == [
        *("fixed turns", "repeated answer", "equal answers", "majority", "votes and confidences"),
        *("verdict and confidence", "confidence", "oracle (reads labels)"),
    ]
    # On all problems: fixed turns cost 10 each; p, then q, then s become right.
    assert rows["fixed turns"]["points"] == [
        {"setting": "1 turn, at most 1 turns", "tokens": 10.0, "accuracy": 0.25},
        {"setting": "2 turns, at most 2 turns", "tokens": 20.0, "accuracy": 0.5},
        {"setting": "3 turns, at most 3 turns", "tokens": 30.0, "accuracy": 0.75},
    ]
    # p stops at 2, q at 3, r never, s at 4: 13 turns of 4 problems, three of them right.
    assert rows["repeated answer"]["points"][-1] == {
        "setting": "an answer given 2 times in a row, at most 3 turns",
        "tokens": 27.5,
        "accuracy": 0.75,
    }
    # The oracle stops at 1, 2, 3 and at the end.
    assert rows[ORACLE]["points"][-1]["accuracy"] == 0.75
    assert rows[ORACLE]["points"][-1]["tokens"] == pytest.approx((10 + 20 + 30 + 30) / 4)
    assert rows[ORACLE]["reads_labels"]
    checked = {name for name, row in rows.items() if row["self_check"]}
    assert checked == rows.keys() & {
        "votes and confidences",
        "verdict and confidence",
        "confidence",
        "verdict's probability",
    }
    assert {"verdict and confidence", "confidence"} <= checked
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


def test_a_sure_incorrect_stops_no_rule_that_reads_the_verdict() -> None:
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


def test_a_setting_is_measured_where_it_was_not_chosen() -> None:
    """One turn is right on one half alone, and two turns are on the other."""
    half = split_clusters(np.arange(40), 0.5, 3)
    assert half.sum() == 20
    rows = [
        record(str(number), (bool(here), "U", 0.5, 5), (not here, "U", 0.5, 5))
        for number, here in enumerate(half)
    ]
    found = compare_stops(turn_tables(rows), Confident(), 2, 1000.0, seed=3)
    row = found["rows"][0]
    assert row["settings"] == ["1 turn, at most 1 turns", "2 turns, at most 2 turns"]
    assert row["accuracy"] == 0.0
    assert [point["accuracy"] for point in row["points"]] == [0.5]


def test_a_setting_is_what_a_replay_with_its_own_turns_gives() -> None:
    (table,) = turn_tables(four()).values()
    for rules in families(table, 4).values():
        for (rule, turns), outcome in zip(rules, _outcomes(table, rules, 4), strict=True):
            expected = replay(table, rule, turns)
            for column in ("returned", "observed", "stopped_early"):
                assert (getattr(outcome, column) == getattr(expected, column)).all(), rule


def test_a_family_that_is_too_dear_is_said_to_be() -> None:
    found = compare_stops(turn_tables(four()), Confident(), 4, 9.0)
    assert found["winner"] is None
    assert {row["accuracy"] for row in found["rows"]} == {None}


def test_the_best_option_is_within_the_budget_and_the_cheaper_of_equals() -> None:
    right = np.array([[0.0, 1], [1, 1], [1, 1], [1, 1]])
    tokens = np.array([[1.0, 1], [4, 4], [3, 3], [9, 9]])
    assert best_option(right, tokens, np.array([4.0, 4.0])) == 2
    assert best_option(right, tokens, np.array([1.0, 2.0])) == 0
    assert best_option(right, tokens, np.array([0.5, 0.5])) is None
    assert best_option(right[:, :0], tokens[:, :0], np.zeros(0)) is None


def test_the_command_compares_stops_and_names_the_winner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _samples(tmp_path, four())
    assert main(["sweep", "--samples", str(path), "--budget", "30"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "stopping rules within 30 tokens per problem" in shown
    assert "winner" in shown
    assert "measured on the other" in shown
    stops = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["stops"]
    assert stops == json.loads(to_json(compare_stops(turn_tables(four()), Confident(), 4, 30.0)))
    assert main(["sweep", "--samples", str(path), "--compare-stops"]) == 0
    assert "within 40 tokens" in capsys.readouterr().out
    assert main(["sweep", "--samples", str(path), "--budget", "5"]) == 0
    assert "too dear" in capsys.readouterr().out
    assert main(["sweep", "--samples", str(path), "--budget", "0"]) == 2


def test_transitions_count_what_a_turn_fixed_and_what_it_broke() -> None:
    (table,) = turn_tables([*uncensored(), failed("g")]).values()
    # Turn 1 to 2: a breaks, b, c, f are fixed, d stays wrong, e breaks.
    # Turn 2 to 3: b stays right, c and f break, d is fixed, a and e stay wrong.
    assert transitions(table) == [[[1, 3], [2, 0]], [[2, 1], [2, 1]]]


def _samples(folder: Path, records: list) -> Path:
    path = folder / "samples.jsonl"
    path.write_text("".join(f"{to_json(row)}\n" for row in records))
    return path


def test_the_command_leaves_json_and_csv_and_prints_within_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = record("x", *[(True, "C", 0.9, 1)] * 3, dataset="=1+1[red]")
    path = _samples(tmp_path, [*uncensored(), hostile])
    assert main(["sweep", "--samples", str(path), "--max-turns", "3"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "=1+1[red]" in shown
    curves = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert curves["fixed"][1]["datasets"]["toy"]["accuracy"] == 3 / 6
    with (tmp_path / "sweep" / "sweep.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    (second,) = [r for r in rows if (r["budget"], r["dataset"]) == ("2", "toy")]
    assert float(second["accuracy"]) == 0.5
    assert {row["dataset"] for row in rows} >= {"toy", "'=1+1[red]", "macro/all"}
    verdict = ("--threshold", "0")
    assert main(["sweep", "--samples", str(path), "--max-turns", "3", *verdict]) == 0
    curves = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert curves["operating_point"] == curves["verdict_only"]


@pytest.mark.parametrize(
    ("beside", "marked"),
    [
        (None, False),
        ({"config": None}, False),
        ({"config": {"protocol": {"privileged": False}}}, False),
        ({"config": {"protocol": {"privileged": True}}}, True),
    ],
)
def test_the_command_says_where_prompts_showed_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], beside: object, *, marked: bool
) -> None:
    path = _samples(tmp_path, uncensored())
    if beside is not None:
        (tmp_path / "results.json").write_text(to_json(beside))
    assert main(["sweep", "--samples", str(path), "--max-turns", "3"]) == 0
    assert ("privileged: labels in prompts" in capsys.readouterr().out) is marked
    curves = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert curves["privileged"] is marked


def test_a_censored_recording_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _samples(tmp_path, adaptive())
    assert main(["sweep", "--samples", str(path), "--max-turns", "3"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "evaluation.adaptive false" in line
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--threshold", "85"], "threshold 85 must lie in [0, 1]"),
        (["--thresholds", "0.5", "-1"], "threshold -1 must lie in [0, 1]"),
        (["--max-turns", "0"], "--max-turns 0 must be at least 1"),
    ],
)
def test_a_setting_out_of_range_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    path = _samples(tmp_path, uncensored())
    assert main(["sweep", "--samples", str(path), "--max-turns", "3", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _samples(tmp_path, uncensored())
    (tmp_path / "file").touch()
    words = ["sweep", "--samples", str(path), "--max-turns", "3", "--out", str(tmp_path / "file")]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "file") in line


def test_files_that_cannot_be_used_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _samples(tmp_path, uncensored())
    (tmp_path / "none.jsonl").write_text("")
    for files, said in (
        ([tmp_path / "absent.jsonl"], "cannot be read"),
        ([tmp_path / "none.jsonl"], "no samples"),
        ([path, path], "'toy' is in another"),
    ):
        assert main(["sweep", "--samples", *map(str, files), "--max-turns", "3"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
