"""The logs of other programs, which certify reads."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pyarrow import Table
from pyarrow.parquet import write_table

from svr_lightning.__main__ import main
from svr_lightning.analysis.logs import load_log
from svr_lightning.errors import ConfigError


def log_rows(size: int = 300) -> list[dict[str, Any]]:
    """One turn each, right where the confidence is high."""
    return [
        {"question": k, "p": 0.9 if k % 3 else 0.4, "y": int(k % 3 > 0), "cost": 7, "twin": k // 2}
        for k in range(size)
    ]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_the_log_of_another_program_is_certified(tmp_path: Path, suffix: str) -> None:
    log = tmp_path / f"log.{suffix}"
    if suffix == "jsonl":
        log.write_text("".join(json.dumps(row) + "\n" for row in log_rows()))
    elif suffix == "csv":
        lines = [",".join(map(str, row.values())) for row in log_rows()]
        log.write_text("\n".join([",".join(log_rows(1)[0]), *lines]))
    else:
        write_table(Table.from_pylist(log_rows()), log)
    names = ["id=question", "confidence=p", "correct=y", "tokens=cost", "cluster=twin"]
    command = ["certify", str(log), "--calibrate-on", "1", "--columns", *names]
    assert main([*command, "--max-wrong-accepted", "0.1"]) == 0
    content = json.loads((tmp_path / "certify" / "certificate.json").read_text())
    rates = content["certified"]["rates"]
    assert content["certified"]["threshold"] == 0.9
    assert rates["accepted"] == pytest.approx(2 / 3)
    assert (rates["wrong_accepted"], rates["tokens"], content["max_turns"]) == (0.0, 7.0, 1)
    assert content["rule"]["needs_correct"] is False  # a log has no verdicts
    assert content["data"]["clusters"] == 150
    assert content["data"]["datasets"] == {"log": 300}


def test_the_example_log_is_certified_by_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = str(Path(__file__).parents[2] / "examples" / "log.csv")
    command = ["certify", log, "--max-wrong-accepted", "0.2", "--out", str(tmp_path)]
    assert main(command) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "threshold 0.55: wrong_accepted at most 0.2, with confidence 0.9" in shown
    assert main([*command[:3], "0.05", *command[4:]]) == 1


@pytest.mark.parametrize(
    ("row", "columns", "said"),
    [
        (
            {"id": 1, "p": 85, "correct": 1},
            ["confidence=p"],
            "log.jsonl, row 1: p=85: Expected a number in [0, 1]",
        ),
        ({"id": 1, "confidence": [0.5], "correct": 1}, [], "confidence=[0.5]: Expected `float`"),
        (
            {"id": 1, "confidence": 0.5, "correct": "yes"},
            [],
            "correct='yes': Expected `bool`",
        ),
        (
            {"id": 1, "confidence": 0.5},
            [],
            "log.jsonl, row 1: no correct; the row has id, confidence",
        ),
        ({"id": "", "confidence": 0.5, "correct": 1}, [], "row 1: id is empty; fill it in"),
        ({"id": 1, "confidence": math.nan, "correct": 1}, [], "row 1: confidence is empty"),
        ({"id": 1, "confidence": None, "correct": 1}, [], "confidence is empty; fill it in, or"),
        ({"id": 1, "confidence": 0.5, "correct": 1, "turn": 2}, [], "numbered from 1; found 2"),
        ({"id": 1, "confidence": 0.5, "correct": 1, "turn": -1}, [], "turn=-1: Expected `int` >="),
        (
            {"id": 1, "confidence": 0.5, "correct": 1, "tokens": "x"},
            [],
            "tokens='x': Expected `int`",
        ),
        (
            {"id": 1, "confidence": 0.5, "correct": 1, "tokens": 1.5},
            [],
            "tokens=1.5: Expected `int`",
        ),
        ([1], [], "log.jsonl, row 1: the row is no object"),
        ({}, ["score=p"], "--columns score=p: give NAME=COLUMN"),
    ],
)
def test_a_log_that_cannot_be_used_is_one_line(
    row: Any, columns: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(row) + "\n")
    names = columns or ["id=id"]
    assert main(["certify", str(log), "--max-pse", "0.1", "--columns", *names]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_of_two_logs_with_one_name_none_is_lost_silently(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = [tmp_path / name / "log.jsonl" for name in ("a", "b")]
    for log in logs:
        log.parent.mkdir()
        log.write_text("".join(f"{json.dumps(row)}\n" for row in log_rows(5)))
    columns = ["--columns", "id=question", "confidence=p", "correct=y"]
    given = [*map(str, logs), "--max-pse", "0.1", *columns]
    assert main(["certify", *given]) == 2
    assert "b/log.jsonl: data set 'log' is in another of the files" in capsys.readouterr().err


@pytest.mark.parametrize("yes", [True, 1, 1.0, "True"])
def test_a_table_made_by_pandas_is_read(tmp_path: Path, yes: Any) -> None:
    """It writes floats, and NaN where there is nothing."""
    row = {"id": 1, "turn": 1.0, "confidence": 0.5, "correct": yes, "tokens": 7.0}
    last = {**row, "turn": 2.0, "tokens": math.nan, "cluster": math.nan}
    log = tmp_path / "log.jsonl"
    log.write_text(f"{json.dumps(row)}\n{json.dumps(last)}\n")
    table = load_log(log)
    assert table.length.tolist() == [2]
    assert table.correct.tolist() == [[True, True]]
    assert table.ids == ("1",)


def test_samples_of_another_program_are_told_of_the_option_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(log_rows(1)[0]))
    assert main(["certify", str(log), "--max-pse", "0.1"]) == 2
    assert "another program's log needs --columns" in capsys.readouterr().err


@pytest.mark.parametrize(("counted", "said"), [(0, "9 of 9 turns"), (1, "8 of 9 turns")])
def test_tokens_are_promised_only_where_all_were_counted(
    counted: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": k, "confidence": 0.9, "correct": 1} for k in range(9)]
    rows = [{**row, "tokens": 5} if k < counted else row for k, row in enumerate(rows)]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    limits = ["--max-tokens", "9", "--token-bound", "99", "--calibrate-on", "1"]
    assert main(["certify", str(log), "--columns", "id=id", *limits]) == 2
    assert f"{said} have no tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "clusters"), [(["a", "", "a"], 1), (["", "a", ""], 1), (["", "", ""], 2)]
)
def test_a_cluster_may_be_named_once_for_all_turns_of_a_problem(
    said: list[str], clusters: int, tmp_path: Path
) -> None:
    turns = [{"id": k, "confidence": 0.9, "correct": 1, "cluster": c} for k in "pq" for c in said]
    turns = [{**row, "turn": place % 3 + 1} for place, row in enumerate(turns)]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in turns))
    assert len(set(load_log(log).cluster.tolist())) == clusters


def test_two_clusters_of_one_problem_are_refused(tmp_path: Path) -> None:
    turns = [{"id": "p", "confidence": 0.9, "correct": 1, "cluster": c} for c in "ab"]
    turns = [{**row, "turn": place} for place, row in enumerate(turns, start=1)]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in turns))
    with pytest.raises(
        ConfigError, match=r"log\.jsonl, row 2: problem 'p' has the clusters 'a' and 'b'"
    ):
        load_log(log)


def test_rows_of_one_id_are_turns_only_by_a_column_of_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    twice = [{**row, "n": n} for row in log_rows(300) for n in (1, 2)]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in twice))
    names = ["id=question", "confidence=p", "correct=y"]
    command = ["certify", str(log), "--max-wrong-accepted", "0.2", "--columns", *names]
    assert main(command) == 2
    assert (
        "row 2: question '0' is there twice; if its rows are turns, name their column with --"
        in (capsys.readouterr().err)
    )
    assert main([*command, "turn=n"]) == 0
    assert "calibration: 150 problems, T_max = 2" in capsys.readouterr().out


def test_a_promise_on_early_stops_is_refused_of_a_log_with_one_turn_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"id": k, "confidence": 1.0, "correct": 0} for k in range(300)]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main(["certify", str(log), "--max-pse", "0.05", "--columns", "id=id"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no answer could break the promise pse at most 0.05 with T_max = 1" in line


def test_turns_may_be_numbered_from_zero(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"id": "a", "turn": turn, "confidence": 0.5, "correct": turn} for turn in (0, 1)]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert load_log(log).correct.tolist() == [[False, True]]


def test_a_pointer_of_git_lfs_is_no_log(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(ConfigError, match=r"log\.csv is a pointer of git-lfs.*git lfs pull"):
        load_log(log)


def test_a_confidence_that_rounding_puts_above_one_is_one(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(f"id,confidence,correct,note\na,1.0000000000000002,1,{'x' * 200_000}\n")
    assert load_log(log).confidence.tolist() == [[1.0]]
