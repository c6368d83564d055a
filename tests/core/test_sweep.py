"""All curves from one recording, and the command that leaves them."""

import csv
import json
from pathlib import Path

import pytest

from svr_lightning.__main__ import main
from svr_lightning.core.stopping import StopRule
from svr_lightning.evaluation.sweep import sweep, transitions
from svr_lightning.files import to_json
from tests.trajectories import adaptive, failed, record, turn_tables, uncensored


def test_a_sweep_holds_every_budget_threshold_gate_and_horizon() -> None:
    curves = sweep(turn_tables(uncensored()), StopRule(), 3, (0.8, 0.85))
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
    names = [row["name"] for row in curves["options"]]
    assert names[0] == "most confident turn at T_max"
    assert not any("probability" in name for name in names)  # none is recorded


def test_the_verdicts_probability_is_offered_where_it_was_recorded() -> None:
    row = record("x", (True, "C", 0.9, 1), (True, "C", 0.9, 1))
    row["turns"][0]["verdict_probability"] = 0.6
    curves = sweep(turn_tables([row]), StopRule(), 2, (0.85,))
    returned = {r["name"]: r["datasets"]["toy"]["turns"] for r in curves["options"]}
    # .6 and .9 x .6 stay under .85; turn 2 has no probability and its stated .9 counts.
    assert returned["verdict's probability"] == 2.0
    assert returned["stated number x verdict's probability"] == 2.0
    assert curves["operating_point"]["datasets"]["toy"]["turns"] == 1.0


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
    gate = ("--gate", "verdict")
    assert main(["sweep", "--samples", str(path), "--max-turns", "3", *gate]) == 0
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
