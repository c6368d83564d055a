"""``python -m svr_lightning vote``: from a file of pools to a table and a file of numbers."""

import json
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.__main__ import main
from svr_lightning.analysis.results import read_pools
from svr_lightning.errors import ConfigError
from tests.trajectories import pool


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_table_is_printed_and_every_number_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    hostile = "[red]\x1b[31m\n" + "long" * 20
    votes = write(
        tmp_path / "votes.jsonl",
        pool("x", "aab", dataset="math500"),
        pool("y", "bba", dataset=hostile),
    )
    options = ["--k", "3", "1", "3", "--resamples", "20", "--out", str(tmp_path / "new" / "out")]
    assert main(["vote", "--votes", str(votes), *options]) == 0
    shown = capsys.readouterr().out
    assert "\x1b[31m" not in shown
    assert "[red]" in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert "average, all (2 sets)" in shown
    stored = json.loads((tmp_path / "new" / "out" / "votes.json").read_text())
    assert stored["datasets"]["math500"]["maj@3"] == 1.0
    assert stored["datasets"][hostile]["maj@3"] == 0.0
    assert stored["macro"]["all"]["maj@3"] == 0.5
    assert stored["config"] == {
        "votes": str(votes),
        "k": [1, 3],
        "resamples": 20,
        "seed": 0,
        "equality": "paper",
    }
    assert stored["versions"]["python"]


def _line(**changes: Any) -> str:
    return json.dumps({**pool("x", "ab"), **changes})


def _sample(**changes: Any) -> str:
    record = pool("x", "ab")
    record["samples"][1].update(changes)
    return json.dumps(record)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "no JSON"),
        ("[1]", "the record is no JSON object"),
        (_line(task=["math"]), "'task' of the record must be a string"),
        (_line(samples={}), "'samples' of the record must be a list"),
        (_line(samples=[]), "either samples or an 'error'"),
        (_line(error="failed"), "either samples or an 'error'"),
        (_line(id=3), "'id' of the record must be a string"),
        (_sample(answer=4), "'answer' of sample 2 must be a string or null"),
        (_sample(correct=1), "'correct' of sample 2 must be true or false or null"),
        (_sample(completion_tokens=1.5), "'completion_tokens' of sample 2"),
        (json.dumps(pool("first", "ab")), "repeats toy/first of line 1"),
    ],
)
def test_a_line_that_is_no_pool_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "votes.jsonl"
    path.write_text(f"{json.dumps(pool('first', 'ab'))}\n\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_pools(path)
    assert f"{path}, line 3: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--k", "4"], "has 2 samples and k=4; ask for at most k=2"),
        (["--k", "0"], "--k 0: must be at least 1"),
        (["--k", "1", "--resamples", "0"], "--resamples 0: must be at least 1"),
        (["--k", "1", "--seed", "-1"], "--seed -1: must not be negative"),
    ],
)
def test_a_fault_of_the_options_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    votes = write(tmp_path / "votes.jsonl", pool("x", "ab"))
    assert main(["vote", "--votes", str(votes), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["votes.jsonl"]


def test_pools_of_an_unknown_task_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    votes = write(tmp_path / "votes.jsonl", {**pool("x", "ab"), "task": "chess"})
    assert main(["vote", "--votes", str(votes), "--k", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "chess" in line


def test_an_empty_or_missing_file_of_pools_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for votes, message in (
        (write(tmp_path / "a"), "holds no problem"),
        (tmp_path / "b", "No such"),
    ):
        assert main(["vote", "--votes", str(votes)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert str(votes) in error
