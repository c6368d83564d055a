"""The logs of other programs, which certify reads."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import Table
from pyarrow.csv import write_csv
from pyarrow.parquet import write_table

from svr_lightning.__main__ import main
from svr_lightning.analysis.logs import read_recording
from svr_lightning.analysis.table import TurnTable
from svr_lightning.errors import ConfigError
from tests.commands import read_json, refused, screen, write_jsonl
from tests.trajectories import adaptive, save

NAMES = ["--columns", "id=question", "confidence=p", "correct=y"]
PLAIN = {"id": 1, "confidence": 0.5, "correct": 1}


def log_rows(size: int = 300) -> list[dict[str, Any]]:
    """One turn each, right where the confidence is high."""
    return [
        {"question": k, "p": 0.9 if k % 3 else 0.4, "y": int(k % 3 > 0), "cost": 7, "twin": k // 2}
        for k in range(size)
    ]


def written(folder: Path, rows: list[Any], suffix: str = "jsonl") -> Path:
    """A log of these rows."""
    folder.mkdir(exist_ok=True)
    log = folder / f"log.{suffix}"
    if suffix == "jsonl":
        return write_jsonl(log, rows)
    table = Table.from_pylist(rows)
    write_table(table, log) if suffix == "parquet" else write_csv(table, log)
    return log


def load_log(path: Path, *columns: str) -> TurnTable:
    """The one table of a log."""
    (table,) = read_recording(path, columns).tables.values()
    return table


def answers(texts: str, name: int = 0) -> list[dict[str, Any]]:
    """The turns of a problem, a letter for each answer; r is right, a space cannot be read."""
    turns = enumerate(texts)
    return [{"id": name, "turn": t, "answer": a, "correct": int(a == "r")} for t, a in turns]


def test_answers_without_confidences_are_certified_by_how_many_are_equal(tmp_path):
    rows = [row for k in range(300) for row in answers("rrr" if k % 10 > 2 else "xxy", k)]
    log = written(tmp_path, rows)
    assert main(["certify", str(log), "--calibrate-on", "1", "--max-wrong-accepted", "0.1"]) == 0
    chosen = read_json(tmp_path / "certify" / "certificate.json")["certified"]
    assert (chosen["threshold"], chosen["rates"]["accepted"]) == (3.0, 0.7)
    assert load_log(written(tmp_path / "other", answers("a b  a"))).answer.tolist() == [
        [1, 0, 3, 0, 0, 1]
    ]


def test_answers_without_confidences_are_replayed_by_the_rules_that_read_answers(tmp_path):
    rows = [row for k in range(20) for row in answers("rrx", k)]
    log = written(tmp_path, [{**row, "cost": 5} for row in rows])
    assert main(["replay", str(log), "--compare-stops", "--columns", "tokens=cost"]) == 0
    found = read_json(tmp_path / "replay" / "replay.json")
    (stops,) = found["stops"].values()
    names = {row["name"] for row in stops["rows"]}
    by_answers = {"fixed turns", "repeated answer", "equal answers", "majority"}
    assert names == {*by_answers, "oracle (reads labels)"}
    assert found["thresholds"] == []  # of no confidence


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_the_log_of_another_program_is_certified(tmp_path, suffix, capsys):
    log = written(tmp_path, log_rows(), suffix)
    command = ["certify", str(log), "--calibrate-on", "1", *NAMES, "tokens=cost", "cluster=twin"]
    assert main([*command, "--max-wrong-accepted", "0.1"]) == 0
    assert "pse" not in screen(capsys).lower()  # of one turn none stops early
    content = read_json(tmp_path / "certify" / "certificate.json")
    rates = content["certified"]["rates"]
    assert content["certified"]["threshold"] == 0.9
    assert rates["accepted"] == pytest.approx(2 / 3)
    assert (rates["wrong_accepted"], rates["tokens"], content["max_turns"]) == (0.0, 7.0, 1)
    assert content["rule"]["init_args"]["needs_correct"] is False  # a log has no verdicts
    assert content["data"]["clusters"] == 150
    assert content["data"]["datasets"] == {"log": 300}


def test_sixty_copies_of_three_problems_are_three_observations(tmp_path):
    # None is wrong: sixty would have p = .9^60 = .002, and three have .9^3 = .73.
    for clusters, code in ((60, 0), (3, 1)):
        rows = [{**PLAIN, "id": k, "cluster": f"c{k % clusters}"} for k in range(60)]
        command = ["certify", str(written(tmp_path, rows)), "--calibrate-on", "1"]
        assert main([*command, "--max-wrong-accepted", "0.1", "--thresholds", "0.5"]) == code


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**PLAIN, "confidence": 85}, "log.jsonl:1: confidence=85: give a number in [0, 1], or"),
        ({**PLAIN, "confidence": [0.5]}, "confidence=[0.5]: this is not a number"),
        ({**PLAIN, "confidence": "120%"}, "confidence='120%': give a number in [0, 1], or a"),
        ({**PLAIN, "correct": "maybe"}, "correct='maybe': give 1 or 0, true or false, yes or no"),
        (
            {"id": 1, "confidence": 0.5},
            "log.jsonl:1: no column 'correct'; the row has id, confidence",
        ),
        ({**PLAIN, "id": ""}, ":1: id is empty; fill it in"),
        ({**PLAIN, "confidence": math.nan}, ":1: confidence is empty"),
        ({**PLAIN, "turn": 2}, "numbered from 1; found 2"),
        ({**PLAIN, "turn": -1}, "turn=-1: give a whole number from 0"),
        ({**PLAIN, "tokens": 1.5}, "tokens=1.5: give a whole number from 0"),
        ({**PLAIN, "tokens": "1,234"}, "tokens='1,234': write whole numbers without a mark"),
        ({**PLAIN, "tokens": "NA"}, "tokens='NA': this is not a number"),
        ({**PLAIN, "tokens": "1e400"}, "tokens='1e400': give a whole number from 0"),
        ({**PLAIN, "turn": "9" * 99}, "9': give a whole number from 0"),
        ([1], "log.jsonl:1: the row is not an object"),
    ],
)
def test_a_log_that_cannot_be_used_is_one_line(row, said, tmp_path, capsys):
    log = written(tmp_path, [row])
    assert said in refused(capsys, "certify", log, "--max-pse", 0.1, "--columns", "id=id")


def test_options_that_do_not_fit_a_log_are_named(tmp_path, capsys):
    log = written(tmp_path, log_rows(5))
    promise = ("--max-pse", 0.1)
    assert "log.jsonl:1: no column 'id'; the row has question, p, y" in refused(
        capsys, "certify", log, *promise
    )
    assert "is no file; leave out --columns" in refused(
        capsys, "certify", tmp_path, *promise, *NAMES
    )
    wrong = refused(capsys, "certify", log, *promise, "--columns", "score=p")
    assert "--columns score=p: give NAME=COLUMN" in wrong
    for pair, said in (
        ("confidence=y", "this is the column of confidence, too"),
        ("id=p", " each once"),
    ):
        assert said in refused(capsys, "certify", log, *promise, *NAMES[:2], "correct=y", pair)
    assert "cluster=twins: no row has" in refused(
        capsys, "certify", log, *promise, *NAMES, "cluster=twins"
    )
    assert "give the folder of an evaluation" in refused(capsys, "certify", *promise)


@pytest.mark.parametrize("yes", [True, 1, 1.0, "True"])
def test_a_table_made_by_pandas_is_read(tmp_path, yes):
    """It writes floats, and NaN where there is nothing; others write .5."""
    row = {**PLAIN, "turn": 1.0, "correct": yes, "tokens": 7.0, "confidence": ".5"}
    last = {**row, "turn": 2.0, "tokens": math.nan, "cluster": math.nan}
    table = load_log(written(tmp_path, [row, last]))
    assert table.length.tolist() == [2]
    assert table.correct.tolist() == [[True, True]]
    assert table.ids == ("1",)


def test_tokens_are_promised_only_where_all_were_counted(tmp_path, capsys):
    log = written(tmp_path, [{**PLAIN, "id": k, "tokens": 5 * (k == 0)} for k in range(9)])
    limits = ("--max-tokens", 9, "--token-bound", 99, "--calibrate-on", 1)
    assert "8 of 9 turns have no tokens" in refused(capsys, "certify", log, *limits)


def test_rules_are_compared_by_what_a_log_has_and_only_where_all_tokens_were_counted(
    tmp_path, capsys
):
    rows = [{**PLAIN, "id": k, "tokens": 5} for k in range(9)]
    assert main(["replay", str(written(tmp_path, rows)), "--compare-stops"]) == 0
    found = read_json(tmp_path / "replay" / "replay.json")["stops"]["log"]["rows"]
    names = [row["name"] for row in found]
    assert names == ["fixed turns", "confidence", "oracle (reads labels)"]
    del rows[0]["tokens"]
    log = written(tmp_path, rows)
    line = refused(capsys, "replay", log, "--compare-stops")
    assert "a comparison at equal tokens: 1 of 9 turns have no tokens" in line
    # What a log does not say is unknown, and not zero.
    assert main(["replay", str(log)]) == 0
    point = read_json(tmp_path / "replay" / "replay.json")["operating_point"]["datasets"]["log"]
    assert point["overconfidence"] is point["avg_total_tokens"] is None
    assert main(["certify", str(log), "--max-wrong-accepted", "0.5", "--calibrate-on", "1"]) == 0
    chosen = read_json(tmp_path / "certify" / "certificate.json")["certified"]
    assert chosen["rates"]["tokens"] is None


def test_a_cluster_and_a_question_count_wherever_they_stand_among_the_rows_of_a_problem(tmp_path):
    turns = [
        {**PLAIN, "id": name, "turn": place, "cluster": cluster, "question": question}
        for name in "xy"
        for place, cluster, question in ((3, "", ""), (1, "a", ""), (2, "", "why?"))
    ]
    recorded = read_recording(written(tmp_path, turns))
    assert recorded.tables["log"].cluster.tolist() == [0, 0]
    assert set(recorded.questions.values()) == {"why?"}


def test_two_clusters_of_one_problem_are_refused(tmp_path):
    turns = [{**PLAIN, "turn": place, "cluster": c} for place, c in enumerate("ab", start=1)]
    with pytest.raises(ConfigError, match=r"log.jsonl: problem '1' has the clusters 'a' and 'b'"):
        load_log(written(tmp_path, turns))


def test_rows_of_one_id_are_turns_only_by_a_column_of_turns(tmp_path, capsys):
    log = written(tmp_path, [{**row, "n": n} for row in log_rows() for n in (1, 2)])
    given = [str(log), "--max-wrong-accepted", "0.2", *NAMES]
    assert ":2: question '0' occurs twice; if its rows are turns" in refused(
        capsys, "certify", *given
    )
    assert main(["certify", *given, "turn=n"]) == 0
    assert "calibration: 150 problems, T_max = 2" in capsys.readouterr().out


def test_turns_that_some_problems_number_from_zero_and_others_from_one_are_refused(tmp_path):
    turns = [{**PLAIN, "id": name, "turn": turn} for name, turn in (("a", 0), ("b", 1))]
    with pytest.raises(ConfigError, match="'b': its turns must be numbered from 0; found 1"):
        load_log(written(tmp_path, turns))


def test_turns_may_be_numbered_from_zero_and_stand_in_any_order(tmp_path):
    rows = [{**PLAIN, "turn": turn, "correct": turn} for turn in (1, 0)]
    assert load_log(written(tmp_path, rows)).correct.tolist() == [[False, True]]


def test_a_confidence_that_rounding_puts_above_one_is_one(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text(f"id,confidence,correct,note\na,1.0000000000000002,1,{'x' * 200_000}\n")
    assert load_log(log).confidence.tolist() == [[1.0]]


# What cells mean


def cell(folder: Path, column: str, value: str) -> TurnTable:
    """The table of a csv with one row, one of whose cells is given."""
    row = {"id": "a", "confidence": "0.5", "correct": "1", "tokens": "7", column: value}
    folder.mkdir(exist_ok=True)
    quoted = [f'"{text}"' for text in row.values()]
    (folder / "log.csv").write_text(f"{','.join(row)}\n{','.join(quoted)}\n")
    return load_log(folder / "log.csv")


@pytest.mark.parametrize(
    "pair",
    [
        "1 0",
        "1.0 0.0",
        "true False",
        "T f",
        "yes NO",
        "Y n",
        "on off",
        "C I",
        "PASS FAIL",
        "passed failed",
        "correct Incorrect",
        "right wrong",
    ],
)
def test_words_for_right_and_wrong_are_read(tmp_path, pair):
    yes, no = pair.split()
    assert cell(tmp_path, "correct", yes).correct.tolist() == [[True]]
    assert cell(tmp_path, "correct", no).correct.tolist() == [[False]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("67%", 0.67),
        ("66.7 %", 0.667),
        ("0,95", 0.95),
        (",5", 0.5),
        ("1e-3", 0.001),
        ("1.", 1.0),
        ("100%", 1.0),
        ("66,7%", 0.667),
        ("+.25", 0.25),
    ],
)
def test_percentages_and_decimal_commas_are_numbers(tmp_path, text, value):
    assert cell(tmp_path, "confidence", text).confidence.tolist() == [[value]]


def test_confidences_have_a_percent_sign_or_have_none(tmp_path):
    """A 1 beside 95% is certainty, or one percent."""
    log = tmp_path / "log.csv"
    log.write_text("id,confidence,correct\na,95%,1\nb,0,0\nc,1,1\n")
    with pytest.raises(ConfigError, match=":4: confidences with % and without"):
        load_log(log)


def test_a_log_of_a_spreadsheet_in_another_language_is_read(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("ID ; Confidence; CORRECT;Tokens\na;0,95;ja\n")
    with pytest.raises(ConfigError, match=r"log.csv:2: CORRECT='ja': give 1 or 0"):
        load_log(log)
    log.write_text("ID ; Confidence; CORRECT;Tokens\na;0,95;1;66,0\nb;,95;0;66\n")
    table = load_log(log)
    assert table.ids == ("a", "b")
    assert table.confidence.tolist() == [[0.95], [0.95]]
    assert table.completion_tokens.tolist() == [[66], [66]]


def test_a_mapped_column_is_read_even_if_another_has_the_name(tmp_path):
    row = {"id": 1, "question": "one", "confidence": 0.1, "p": 0.9, "correct": 1, "Correct": 0}
    log = written(tmp_path, [row])
    assert load_log(log).confidence.tolist() == [[0.1]]
    assert load_log(log, "confidence=p").confidence.tolist() == [[0.9]]
    assert load_log(log, "correct=Correct").correct.tolist() == [[False]]
    assert load_log(log, "id=question").ids == ("one",)


def test_two_columns_that_differ_in_case_alone_are_not_confused(tmp_path):
    log = written(tmp_path, [{"ID": 1, "Id": 2, "confidence": 0.1, "correct": 1}])
    with pytest.raises(ConfigError, match="no column 'id'; the row has ID, Id"):
        load_log(log)


def codes(folder: Path, clusters: list[Any]) -> list[int]:
    """The clusters of a log's rows as numbers."""
    rows = [{**PLAIN, "id": k, "cluster": cluster} for k, cluster in enumerate(clusters)]
    return load_log(written(folder, rows)).cluster.tolist()


@pytest.mark.parametrize("name", ["NA", "None", "null", "nan", "N/A", "<NA>"])
def test_a_cluster_or_an_id_may_have_any_name(tmp_path, name):
    assert codes(tmp_path, [name] * 3) == [0, 0, 0]
    assert load_log(written(tmp_path, [{**PLAIN, "id": name}])).ids == (name,)


def test_a_name_that_is_a_number_is_one_name_whether_whole_or_with_a_point(tmp_path):
    # pandas writes the whole numbers of a column with an empty cell as 7.0
    assert codes(tmp_path, [7, 7.0, "7", 7.5]) == [0, 0, 0, 1]


@pytest.mark.parametrize("nothing", [None, math.nan, "", "  "])
def test_null_nan_and_an_empty_cell_are_no_cluster(tmp_path, nothing):
    assert codes(tmp_path, [nothing] * 3) == [0, 1, 2]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_confidences_of_a_narrow_type_are_the_decimals_that_were_stated(tmp_path, suffix):
    for stated, narrow in (
        ([0.9, 0.85, 0.123, 1.0, 0.5], np.float32),
        ([0.9, 0.05, 1.0], np.float16),
    ):
        values = [float(narrow(value)) for value in stated]
        rows = [{**PLAIN, "id": k, "confidence": value} for k, value in enumerate(values)]
        log = written(tmp_path, rows, suffix)
        assert load_log(log).confidence[:, 0].tolist() == stated


@pytest.mark.parametrize("values", [[115 / 128, 3 / 64], [0.8999999761581421, 0.9], [1.0, 0.0]])
def test_confidences_that_only_look_like_single_precision_stay(tmp_path, values):
    rows = [{**PLAIN, "id": k, "confidence": value} for k, value in enumerate(values)]
    assert load_log(written(tmp_path, rows)).confidence[:, 0].tolist() == values


def test_rows_that_a_quote_may_have_swallowed_are_counted(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("id,confidence,correct,note\n" + '1,0.9,1,"\n2,0.4,0,"\n' + "3,0.5,1,x\n")
    (note,) = read_recording(log).notes
    assert "log.csv: 2 rows of 4 lines: line breaks within quotes, first in :2-3" in note
    log.write_text("id,confidence,correct,note\n1,0.9,1,x\n")
    assert read_recording(log).notes == ()


def test_the_packages_own_samples_are_no_log(tmp_path):
    folder = save(tmp_path / "eval", adaptive())
    samples = folder / "samples.jsonl"
    by_folder, by_file = read_recording(folder), read_recording(samples)
    records = list(by_folder.records)
    assert list(by_file.records) == records
    assert not by_file.is_log
    copied = samples.rename(tmp_path / "copied.jsonl")
    assert list(read_recording(copied).records) == records


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("lgo.jsonl", "lgo.jsonl: no such file or folder; did you mean "),
        ("nowhere/log.jsonl", "no such file or folder; give a folder with"),
        ("", "no evaluation; give a folder with a samples.jsonl"),
    ],
)
def test_a_name_of_nothing_is_said_to_be_one(tmp_path, capsys, given, said):
    written(tmp_path, log_rows(3))
    assert said in refused(capsys, "certify", tmp_path / given, "--max-pse", 0.1)
    known = refused(capsys, "certify", "embedded:lgo", "--max-pse", 0.1)
    assert "did you mean embedded:log?" in known


def test_columns_and_a_fault_of_a_file_of_samples_are_refused_in_one_line_that_names_it_once(
    tmp_path,
):
    samples = save(tmp_path, adaptive()) / "samples.jsonl"
    with pytest.raises(ConfigError, match=r"samples\.jsonl:1: this is no log but a sample; leave"):
        read_recording(samples, ["id=question"])
    samples.write_text(samples.read_text().replace('"CORRECT"', '"maybe"', 1))
    with pytest.raises(ConfigError) as fault:
        read_recording(samples)
    assert str(fault.value).count("samples.jsonl") == 1


def test_a_name_in_a_log_cannot_write_control_characters_to_the_screen(tmp_path, capsys):
    rows = [{**row, "dataset": "a\x1b[31m", "twin": row["question"] // 2} for row in log_rows()]
    columns = [*NAMES, "question=twin"]
    log = written(tmp_path, rows)
    assert main(["certify", str(log), "--max-wrong-accepted", "0.1", *columns]) == 0
    out = screen(capsys)
    assert "problems have the question of another one" in out
    assert "\x1b" not in out
