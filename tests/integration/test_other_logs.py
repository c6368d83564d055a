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

NAMES = ["--columns", "id=question", "confidence=p", "correct=y"]
PLAIN = {"id": 1, "confidence": 0.5, "correct": 1}


def log_rows(size: int = 300) -> list[dict[str, Any]]:
    """One turn each, right where the confidence is high."""
    return [
        {"question": k, "p": 0.9 if k % 3 else 0.4, "y": int(k % 3 > 0), "cost": 7, "twin": k // 2}
        for k in range(size)
    ]


def written(folder: Path, rows: list[Any]) -> Path:
    """A log of JSON lines."""
    folder.mkdir(exist_ok=True)
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder / "log.jsonl"


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["certify", *map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_the_log_of_another_program_is_certified(tmp_path, suffix):
    log = written(tmp_path, log_rows()).with_suffix(f".{suffix}")
    if suffix == "csv":
        lines = [",".join(map(str, row.values())) for row in log_rows()]
        log.write_text("\n".join([",".join(log_rows(1)[0]), *lines]))
    elif suffix == "parquet":
        write_table(Table.from_pylist(log_rows()), log)
    command = ["certify", str(log), "--calibrate-on", "1", *NAMES, "tokens=cost", "cluster=twin"]
    assert main([*command, "--max-wrong-accepted", "0.1"]) == 0
    content = json.loads((tmp_path / "certify" / "certificate.json").read_text())
    rates = content["certified"]["rates"]
    assert content["certified"]["threshold"] == 0.9
    assert rates["accepted"] == pytest.approx(2 / 3)
    assert (rates["wrong_accepted"], rates["tokens"], content["max_turns"]) == (0.0, 7.0, 1)
    assert content["rule"]["needs_correct"] is False  # a log has no verdicts
    assert content["data"]["clusters"] == 150
    assert content["data"]["datasets"] == {"log": 300}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**PLAIN, "confidence": 85}, "log.jsonl:1: confidence=85: Expected a number in [0,"),
        ({**PLAIN, "confidence": [0.5]}, "confidence=[0.5]: Expected `float`"),
        ({**PLAIN, "correct": "yes"}, "correct='yes': Expected `bool`"),
        ({"id": 1, "confidence": 0.5}, "log.jsonl:1: no correct; the row has id, confidence"),
        ({**PLAIN, "id": ""}, ":1: id is empty; fill it in"),
        ({**PLAIN, "confidence": math.nan}, ":1: confidence is empty"),
        ({**PLAIN, "turn": 2}, "numbered from 1; found 2"),
        ({**PLAIN, "turn": -1}, "turn=-1: Expected `int` >="),
        ({**PLAIN, "tokens": 1.5}, "tokens=1.5: Expected `int`"),
        ([1], "log.jsonl:1: the row is no object"),
    ],
)
def test_a_log_that_cannot_be_used_is_one_line(row, said, tmp_path, capsys):
    log = written(tmp_path, [row])
    assert said in refusal(capsys, log, "--max-pse", 0.1, "--columns", "id=id")


def test_options_that_do_not_fit_a_log_are_named(tmp_path, capsys):
    log = written(tmp_path, log_rows(5))
    promise = ("--max-pse", 0.1)
    assert "log.jsonl:1: no id; the row has question, p, y" in refusal(capsys, log, *promise)
    assert "no file; --columns names" in refusal(capsys, tmp_path, *promise, *NAMES)
    wrong = refusal(capsys, log, *promise, "--columns", "score=p")
    assert "--columns score=p: give NAME=COLUMN" in wrong
    for pair, said in (("confidence=y", "this column is confidence, too"), ("id=p", " each once")):
        assert said in refusal(capsys, log, *promise, *NAMES[:2], "correct=y", pair)
    assert "cluster=twins: no row has" in refusal(capsys, log, *promise, *NAMES, "cluster=twins")
    assert "give the folder of an evaluation" in refusal(capsys, *promise)


@pytest.mark.parametrize("yes", [True, 1, 1.0, "True"])
def test_a_table_made_by_pandas_is_read(tmp_path, yes):
    """It writes floats, and NaN where there is nothing; others write .5 and NA."""
    row = {**PLAIN, "turn": 1.0, "correct": yes, "tokens": 7.0, "confidence": ".5"}
    last = {**row, "turn": 2.0, "tokens": math.nan, "cluster": "NA"}
    table = load_log(written(tmp_path, [row, last]))
    assert table.length.tolist() == [2]
    assert table.correct.tolist() == [[True, True]]
    assert table.ids == ("1",)


@pytest.mark.parametrize(("counted", "said"), [(0, "9 of 9 turns"), (1, "8 of 9 turns")])
def test_tokens_are_promised_only_where_all_were_counted(counted, said, tmp_path, capsys):
    rows = [{**PLAIN, "id": k, **({"tokens": 5} if k < counted else {})} for k in range(9)]
    limits = ("--max-tokens", 9, "--token-bound", 99, "--calibrate-on", 1)
    line = refusal(capsys, written(tmp_path, rows), "--columns", "id=id", *limits)
    assert f"{said} have no tokens" in line


@pytest.mark.parametrize(
    ("said", "clusters"), [(["a", "", "a"], 1), (["", "a", ""], 1), (["", "", ""], 2)]
)
def test_a_cluster_may_be_named_once_for_all_turns_of_a_problem(said, clusters, tmp_path):
    turns = [
        {**PLAIN, "id": name, "turn": place, "cluster": cluster}
        for name in "pq"
        for place, cluster in enumerate(said, start=1)
    ]
    assert len(set(load_log(written(tmp_path, turns)).cluster.tolist())) == clusters


def test_two_clusters_of_one_problem_are_refused(tmp_path):
    turns = [{**PLAIN, "turn": place, "cluster": c} for place, c in enumerate("ab", start=1)]
    with pytest.raises(ConfigError, match=r"log.jsonl:2: problem '1' has the clusters 'a' and 'b'"):
        load_log(written(tmp_path, turns))


def test_rows_of_one_id_are_turns_only_by_a_column_of_turns(tmp_path, capsys):
    log = written(tmp_path, [{**row, "n": n} for row in log_rows(300) for n in (1, 2)])
    given = [str(log), "--max-wrong-accepted", "0.2", *NAMES]
    assert ":2: question '0' is there twice; if its rows are turns" in refusal(capsys, *given)
    assert main(["certify", *given, "turn=n"]) == 0
    assert "calibration: 150 problems, T_max = 2" in capsys.readouterr().out


def test_a_promise_on_early_stops_is_refused_of_a_log_with_one_turn_each(tmp_path, capsys):
    log = written(tmp_path, [{**PLAIN, "id": k, "confidence": 1.0} for k in range(300)])
    line = refusal(capsys, log, "--max-pse", 0.05, "--columns", "id=id")
    assert "T_max = 1, so it says nothing; make another one, such as --max-wrong-accepted" in line


def test_turns_may_be_numbered_from_zero_and_stand_in_any_order(tmp_path):
    rows = [{**PLAIN, "turn": turn, "correct": turn} for turn in (1, 0)]
    assert load_log(written(tmp_path, rows)).correct.tolist() == [[False, True]]


def test_a_confidence_that_rounding_puts_above_one_is_one(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text(f"id,confidence,correct,note\na,1.0000000000000002,1,{'x' * 200_000}\n")
    assert load_log(log).confidence.tolist() == [[1.0]]
