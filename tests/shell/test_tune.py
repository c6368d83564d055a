"""The command that chooses a threshold, from samples file to operating point."""

import json
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.__main__ import main
from svr_lightning.evaluation.operating_point import read_operating_point
from tests.trajectories import adaptive, record, write_samples

RECORD = "record with --model.evaluation.adaptive false"


def problems(dataset: str = "toy", size: int = 300) -> list[dict[str, Any]]:
    """Of ten problems two are stopped wrongly below .80, and one more below .60."""
    right, later = (True, "C", 0.99, 10), (True, "C", 0.99, 10)
    first = {0: (False, "C", 0.7, 10), 1: (False, "C", 0.7, 10), 2: (False, "C", 0.55, 10)}
    return [
        record(f"{dataset}-{k}", first.get(k % 10, right), later, later, dataset=dataset)
        for k in range(size)
    ]


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    write_samples(tmp_path, problems())
    return tmp_path / "samples.jsonl"


def tune(samples: Path, *arguments: str, max_pse: str = "0.10") -> int:
    promise = ["--max-pse", max_pse] if max_pse else []
    command = ["tune", "--samples", str(samples), *promise, "--max-turns", "3", "--resamples", "20"]
    if not {"--calibrate-on", "--report-on"} & {*arguments}:
        command += ["--calibrate-on", "1"]
    return main([*command, *arguments])


def report(samples: Path) -> dict[str, Any]:
    return dict(json.loads((samples.parent / "tune" / "tune.json").read_text()))


def test_the_cheapest_threshold_that_keeps_the_promise_is_written_where_predict_reads_it(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    assert tune(samples, "--write", str(policy)) == 0
    # .75 to .99 return the same answers; of equals the strictest is taken.
    chosen = report(samples)["choice"]
    assert (chosen["pse"], chosen["accuracy"], chosen["threshold"]) == (0.0, 1.0, 0.99)
    assert read_operating_point(policy) == 0.99
    written = json.loads((policy / "operating_point.json").read_text())
    assert written["promises"]["max_pse"] == 0.1
    assert written["confidence"] == 0.9
    assert written["rule"]["gate"] == "joint"
    assert written["datasets"] == {"toy": 300}
    rows = {row["threshold"]: row for row in report(samples)["candidates"]}
    assert rows[0.65]["pse"] == 0.2
    assert rows[0.65]["broken"] == ["max_pse"]
    assert rows[0.5]["pse"] == pytest.approx(0.3)
    assert not rows[0.5]["certified"]
    found = json.loads((samples.parent / "tune" / "diagnostics.json").read_text())
    assert (found["threshold"], found["datasets"]) == (0.99, {})  # every problem calibrated
    shown = capsys.readouterr().out
    assert "threshold 0.99: PSE at most 0.1 on new problems" in shown
    assert "no: PSE" in shown
    assert max(map(len, shown.split("tune.json")[0].splitlines()[:-1])) <= 80


def test_a_promise_that_none_can_keep_is_said_with_the_one_that_could_be_kept(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    lax = ("--thresholds", "0.6", "0.7", "--write", str(policy))
    assert tune(samples, *lax) == 1
    assert read_operating_point(policy) is None
    shown = capsys.readouterr().out
    assert "no threshold can keep the promise: PSE at most 0.1" in shown
    smallest = report(samples)["smallest_pse"]
    assert 0.2 < smallest < 0.26  # 60 of 300 were seen to stop too early
    assert tune(samples, *lax, max_pse=f"{smallest + 1e-6:.9f}") == 0
    assert tune(samples, *lax, max_pse=f"{smallest - 1e-6:.9f}") == 1


def test_every_promise_has_to_hold(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bound = ("--token-bound", "1000")
    # One turn of 110 tokens; at .75 to .99 three problems in ten take a second one, of 210.
    assert tune(samples, "--max-tokens", "220", *bound, "--min-accuracy", "0.95") == 0
    chosen = report(samples)["choice"]
    assert chosen["tokens_bound"] <= 220
    assert chosen["accuracy_bound"] >= 0.95
    assert tune(samples, "--max-tokens", "120", *bound) == 1
    shown = capsys.readouterr().out
    assert "no PSE would help" in shown
    rows = {row["threshold"]: row["broken"] for row in report(samples)["candidates"]}
    assert rows[1.0] == ["max_tokens"]  # stops nowhere: PSE 0, 630 tokens


def test_a_promise_is_about_all_data_sets_together_unless_one_is_named(tmp_path: Path) -> None:
    good = [record(f"g{k}", (True, "C", 0.7, 1), dataset="good") for k in range(300)]
    write_samples(tmp_path, [*problems("bad", 100), *good])
    samples = tmp_path / "samples.jsonl"
    grid = ("--thresholds", "0.7")
    assert tune(samples, *grid) == 0  # 20 of 400
    assert report(samples)["choice"]["pse"] == 0.05
    assert tune(samples, *grid, "--dataset", "bad") == 1
    assert tune(samples, *grid, "--dataset", "good") == 0
    assert report(samples)["datasets"] == {"good": 300}


def test_another_rule_is_tested_as_it_would_stop(samples: Path) -> None:
    assert tune(samples, "--gate", "verdict", max_pse="0.4") == 0
    (row,) = report(samples)["candidates"]
    assert row["pse"] == pytest.approx(0.3)
    assert tune(samples, "--fallback", "most_confident", "--thresholds", "1.0") == 0
    assert report(samples)["rule"]["fallback"] == "most_confident"


@pytest.mark.parametrize("method", ["isotonic", "beta"])
def test_thresholds_on_a_recalibrated_scale_come_out_as_stated_ones(
    method: str, samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(samples, "--recalibrate", method, "--thresholds", "0.3", "0.8", "0.9") == 0
    found = report(samples)
    assert found["problems"] == 150
    assert found["recalibration"]["fitted_on"] == 150
    stated = found["recalibration"]["stated_thresholds"]
    assert found["choice"]["threshold"] in stated.values()
    assert 0.7 < stated["0.8"] <= 0.99  # what is said at .70 is always wrong
    before, after = (found["recalibration"][k]["datasets"]["toy"] for k in ("before", "after"))
    assert before["metrics"]["pse"] == after["metrics"]["pse"]
    brier = [part["calibration"]["recorded"]["brier"]["value"] for part in (before, after)]
    assert brier[1] < brier[0] / 2
    assert "recalibrated" in capsys.readouterr().out


def test_promises_that_only_the_middle_of_the_grid_can_keep_are_found_there(samples: Path) -> None:
    # 1 stops nowhere and takes 630 tokens; .70 and below stop two in ten wrongly; between, 173.
    between = ("--max-tokens", "220", "--token-bound", "2000")
    assert tune(samples, *between, max_pse="0.05") == 0
    certified = [row["threshold"] for row in report(samples)["candidates"] if row["certified"]]
    assert certified == [0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.75]


def test_samples_that_end_at_their_stop_are_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_samples(tmp_path, adaptive())
    assert tune(tmp_path / "samples.jsonl") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert RECORD in line
    assert "record 'a' of 'toy'" in line


def test_the_choice_is_measured_on_problems_that_had_no_part_in_it(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(samples, "--calibrate-on", "0.6") == 0
    assert report(samples)["datasets"] == {"toy": 180}
    assert report(samples)["measured_on"]["datasets"] == {"toy": 120}
    found = json.loads((samples.parent / "tune" / "diagnostics.json").read_text())
    assert found["datasets"]["toy"]["n"] == 120
    assert found["datasets"]["toy"]["stopping"]["halting_precision"]["value"] == 1.0
    assert "measured on problems that had no part in the choice" in capsys.readouterr().out
    write_samples(tmp_path / "other", problems("toy", 40))
    other = tmp_path / "other" / "samples.jsonl"
    assert tune(samples, "--report-on", str(other)) == 2  # some problems are in both
    assert "toy/toy-0 is in --samples too" in capsys.readouterr().err
    renamed = [{**row, "id": f"new-{row['id']}"} for row in problems("toy", 40)]
    write_samples(tmp_path / "other", renamed)
    assert tune(samples, "--report-on", str(other)) == 0
    assert report(samples)["datasets"] == {"toy": 300}
    assert report(samples)["measured_on"] == {"samples": [str(other)], "datasets": {"toy": 40}}


def test_variants_of_one_problem_are_one_observation_on_one_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = problems(size=100)
    twins = [{**row, "id": f"{row['id']}-{k}", "cluster": row["id"]} for row in rows for k in "ab"]
    write_samples(tmp_path, twins)
    samples = tmp_path / "samples.jsonl"
    assert tune(samples, "--thresholds", "0.99", max_pse="0.2") == 0
    assert (report(samples)["problems"], report(samples)["clusters"]) == (200, 100)
    assert "200 problems, which count as 100 (variants of one problem are one)" in " ".join(
        capsys.readouterr().out.split()
    )
    assert tune(samples, "--thresholds", "0.99", "--calibrate-on", "0.5", max_pse="0.2") == 0
    assert (report(samples)["problems"], report(samples)["clusters"]) == (100, 50)


def test_a_choice_that_never_stops_says_so_and_equal_thresholds_are_one_row(
    samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(samples, "--thresholds", "0.55", "1.0", max_pse="0.01") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "this never stops: every problem takes all its 3 turns" in shown
    assert tune(samples) == 0
    shown = capsys.readouterr().out
    assert "this never stops" not in shown
    assert "0.75-0.99" in shown  # all of them return the same
    assert "0.85" not in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--calibrate-on", "0"], "--calibrate-on 0 must be above 0 and at most 1"),
        (["--calibrate-on", "0.001"], "--calibrate-on 0.001: no problem is left"),
        (["--calibrate-on", "0.5", "--report-on", "x"], "leave it out with --report-on"),
        (["--max-pse", "1.5"], "--max-pse 1.5 must lie between 0 and 1"),
        (["--confidence", "1"], "--confidence 1 must lie between 0 and 1"),
        (["--confidence", "nan"], "--confidence nan must lie between 0 and 1"),
        (["--thresholds", "85"], "threshold 85 must lie in [0, 1]"),
        (["--max-turns", "0"], "--max-turns 0 must be at least 1"),
        (["--resamples", "0"], "--resamples 0 must be at least 1"),
        (["--max-tokens", "900"], "--max-tokens needs --token-bound"),
        (["--max-tokens", "9", "--token-bound", "99"], "a value lies outside"),
        (["--dataset", "gsm8k"], "not in the samples, which hold toy"),
        (["--evidence", "product"], "hold no 'verdict_probability'"),
        (["--recalibrate", "beta", "--gate", "verdict"], "--recalibrate maps"),
    ],
)
def test_a_wrong_promise_or_option_is_one_line(
    arguments: list[str], said: str, samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(samples, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_no_promise_at_all_is_refused(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(samples, max_pse="") == 2
    assert "no promise was given" in capsys.readouterr().err
