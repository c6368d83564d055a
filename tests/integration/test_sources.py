"""Every form a data set comes in, and every fault it may have."""

import csv
import json
import logging
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
from pyarrow import Table
from pyarrow.parquet import write_table

from svr_lightning.errors import ConfigError
from svr_lightning.training.sources import (
    DataSource,
    countdown_split,
    load_problems,
    problems_digest,
)

ROWS = [
    {"id": "a", "question": "What is 1 + 1?", "answer": "It is 2.\n#### 2"},
    {"question": "What is 2 + 2?", "answer": "#### 4"},
    {"question": "Is the sign \u2028 kept?", "answer": "#### 1,234"},
]
NAN = float("nan")


def gsm8k(path: Path | str, **settings: Any) -> DataSource:
    return DataSource(name="toy", task="gsm8k", path=str(path), **settings)


def write_lines(path: Path, rows: list[Any]) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_json(path: Path) -> Path:
    path.write_text(json.dumps(ROWS))
    return path


def write_parquet(path: Path) -> Path:
    write_table(Table.from_pylist(ROWS), path)
    return path


def error_of(source: DataSource, on_bad_row: Any = "error") -> str:
    with pytest.raises(ConfigError) as caught:
        load_problems(source, on_bad_row)
    message = str(caught.value)
    assert message.splitlines() == [message], "an error is one line"
    assert message.startswith(f"data source '{source.name}' (")
    return message


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.json", write_json),
        ("rows.JSONL", lambda path: write_lines(path, ["", *ROWS, "  "])),
        ("rows.parquet", write_parquet),
    ],
)
def test_every_file_format_gives_the_same_problems(tmp_path, name, write):
    problems = load_problems(gsm8k(write(tmp_path / name)))
    assert [problem.id for problem in problems] == ["a", "toy/1", "toy/2"]
    assert [problem.reference for problem in problems] == ["2", "4", "1,234"]
    assert problems[2].question == "Is the sign \u2028 kept?"
    assert {problem.task for problem in problems} == {"gsm8k"}


def test_csv_rows_are_under_a_header_and_faults_name_their_line(tmp_path):
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as stream:
        table = csv.DictWriter(stream, ["note", *ROWS[0]])
        table.writeheader()
        table.writerows({"note": "", **row} for row in ROWS)
    expected = load_problems(gsm8k(write_lines(tmp_path / "rows.jsonl", ROWS)))
    assert load_problems(gsm8k(path)) == expected
    (tmp_path / "numbers.csv").write_text('nums,target\n"[3, 5, 8]",16\n"[1, 2]",3,4\n"[1]",\n')
    source = DataSource(name="own", task="countdown", path=str(tmp_path / "numbers.csv"))
    assert "numbers.csv:3: it has more cells than the header; quote" in error_of(source)
    assert "numbers.csv:4: missing field 'target'" in error_of(source)
    (one,) = load_problems(source, "skip")
    assert (one.payload["nums"], one.reference) == ([3, 5, 8], "16")


def test_columns_may_have_names_of_their_own(tmp_path):
    rows = [{"problem_text": row["question"], "answer": row["answer"]} for row in ROWS]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    problems = load_problems(gsm8k(path, columns={"question": "problem_text"}))
    assert [p.question for p in problems] == [row["question"] for row in ROWS]
    message = error_of(gsm8k(path, columns={"question": "text"}))
    assert "rows.jsonl:1: missing column 'text', which columns.question names" in message
    message = error_of(gsm8k(path, columns={"qestion": "problem_text"}))
    assert "columns: gsm8k reads no 'qestion'; did you mean 'question'?" in message


def test_a_folder_gives_the_files_named_for_the_split_in_order_of_name(tmp_path):
    write_lines(tmp_path / "data" / "train-00001-of-00002.jsonl", ROWS[1:2])
    write_lines(tmp_path / "data" / "train-00000-of-00002.jsonl", ROWS[2:])
    write_lines(tmp_path / "data" / "test-00000-of-00001.jsonl", ROWS[1:2] * 3)
    write_lines(tmp_path / ".cache" / "train.jsonl", ["not for us"])
    (tmp_path / "README.md").write_text("train")
    train = load_problems(gsm8k(tmp_path))
    assert [(p.id, p.reference) for p in train] == [("toy/0", "1,234"), ("toy/1", "4")]
    assert len(load_problems(gsm8k(tmp_path, split="test"))) == 3
    assert len(load_problems(gsm8k(tmp_path, subset="data", split="test"))) == 3
    assert 'Unknown split "dev". Should be one of ' in error_of(gsm8k(tmp_path, split="dev"))


def test_the_embedded_problems_load_by_split():
    def source(split):
        where = {"path": "embedded:countdown-tiny", "split": split}
        return DataSource(name="tiny", task="countdown", **where)

    train, test = load_problems(source("train")), load_problems(source("test"))
    assert len(train) > len(test) > 100
    assert not {problem.id for problem in train} & {problem.id for problem in test}
    assert all(problem.id == f"test-{problem.cluster}-{problem.id[-1]}" for problem in test)
    once = load_problems(source("test_one_order"))
    assert once == [problem for problem in test if problem.id.endswith("-0")]
    known = "'validation' is not one of dev, dev_one_order, outside, test, test_one_order, train"
    assert known in error_of(source("validation"))
    other = DataSource(name="tiny", task="countdown", path="embedded:gsm8k")
    assert "the embedded data sets are embedded:countdown-tiny and" in error_of(other)


def test_a_hub_data_set_is_asked_for_by_name_split_and_revision(monkeypatch):
    """Tests cannot reach the hub: a table stands in for it."""
    asked = {}

    def load_dataset(path, **options):
        asked.update(path=path, **options)
        return datasets.Dataset.from_list([{**row, "id": None} for row in ROWS])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    where = {"path": "openai/gsm8k", "split": "test", "revision": "abc"}
    source = DataSource(name="gsm8k", task="gsm8k", subset="main", limit=2, **where)
    assert [problem.id for problem in load_problems(source)] == ["gsm8k/0", "gsm8k/1"]
    assert asked == {**where, "name": "main"}, "and never trust_remote_code"


@pytest.mark.parametrize("path", ["./missing", "data/missing.jsonl", "/a/b/c", "a/b/c", "x\0y"])
def test_a_path_that_can_be_no_hub_id_is_reported_without_asking_the_hub(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "there is no such file or folder (looked from " in error_of(gsm8k(path))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("rows.txt", b"question,answer\n", "rows.txt is not one of .json, .jsonl, .parquet, .csv"),
        ("rows.json", b"{}\n{}", "rows.json: invalid JSON: Extra data: line 2 column 1"),
        ("rows.json", b'{"rows": []}', "rows.json: expected a list of objects, found dict"),
        ("rows.json", b"[" * 100_000, "rows.json: invalid JSON: "),
        ("folder", None, "/folder doesn't contain any data files"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, text, reason):
    path = tmp_path / name
    path.mkdir() if text is None else path.write_bytes(text)
    assert reason in error_of(gsm8k(path))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"question": "cut off', "rows.jsonl:2: invalid JSON: Unterminated string starting at"),
        (
            '{"question": "2 + 3?", "answer": "5", "answer": "6"}',
            "an object names 'answer' twice; rename",
        ),
        ('["a", "list"]', "rows.jsonl:2: expected an object, found list"),
        ('{"question": "\\ud800?", "answer": "#### 1"}', "the question is not valid Unicode"),
        ({"answer": "#### 1"}, "rows.jsonl:2: missing field 'question'; the row has ['answer']"),
        (
            {"question": " \n", "answer": "#### 1"},
            "field 'question' must be text that is not blank",
        ),
        ({"question": "q", "answer": NAN}, "missing field 'answer'; the row has ['question']"),
        ({"question": "q" * 100_001, "answer": "#### 1"}, "the question has 100001 characters"),
        ({"question": "q", "answer": "#### \x1b[31mred"}, "control character U+001B; remove it"),
    ],
)
def test_a_bad_row_is_named_with_its_reason_or_left_out_with_a_warning(
    tmp_path, caplog, row, reason
):
    source = gsm8k(write_lines(tmp_path / "rows.jsonl", [ROWS[0], row, ROWS[1]]))
    message = error_of(source)
    assert reason in message
    assert "1 of 3 rows cannot be used: rows.jsonl:2: " in message
    assert message.endswith("or leave them out with data.on_bad_row: skip")
    assert message.isprintable()

    with caplog.at_level(logging.WARNING):
        problems = load_problems(source, "skip")
    # The second good row keeps the number it has in the file.
    assert [problem.id for problem in problems] == ["a", "toy/2"]
    assert len(caplog.messages) == 1
    assert reason in caplog.messages[0]
    assert "left out" in caplog.messages[0]


def test_references_that_no_grader_reads_are_counted_and_three_are_shown(tmp_path, caplog):
    rows = [{"problem": "q", "answer": answer} for answer in ("5", *"\u2460\u2461\u2462\u2463")]
    load_problems(replace(gsm8k(write_lines(tmp_path / "rows.jsonl", rows)), task="math"))
    (message,) = caplog.messages
    assert "4 of 5 references have digits" in message
    assert ("\u2462" in message, "\u2463" in message) == (True, False)


@pytest.mark.parametrize("column", ["answer", "cot"])
def test_a_reference_that_its_own_grader_calls_wrong_is_refused_with_its_row(tmp_path, column):
    row = {"question": "2+3?", "answer": "x" * 3000 if column == "answer" else "5", "cot": "}{"}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    source = DataSource(name="x", task="math", path=str(path), columns={"answer": column})
    assert "rows.jsonl:1: the reference " in (message := error_of(source))
    assert "does not equal itself" in message


def test_rows_that_all_lack_a_field_are_told_how_to_name_their_columns(tmp_path):
    for name, text in (
        ("rows.jsonl", '{"prompt": "1+1?", "gold": "#### 2"}\n' * 9),
        ("rows.csv", "prompt,gold\n1+1?,2\n"),
    ):
        (tmp_path / name).write_text(text)
        message = error_of(gsm8k(tmp_path / name))
        assert "missing field 'question'; the row has [" in message
        assert message.endswith("as in columns: {question: COLUMN, answer: COLUMN}")


def test_what_save_to_disk_wrote_is_read_by_split(tmp_path):
    table = datasets.Dataset.from_list(ROWS)
    table.save_to_disk(tmp_path / "one")
    assert len(load_problems(gsm8k(tmp_path / "one"))) == len(ROWS)
    datasets.DatasetDict(train=table, test=table.select([0])).save_to_disk(tmp_path / "two")
    assert len(load_problems(replace(gsm8k(tmp_path / "two"), split="test"))) == 1
    message = error_of(replace(gsm8k(tmp_path / "two"), split="dev"))
    assert message.endswith("split 'dev' is not one of train, test")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
def test_a_pointer_of_git_lfs_is_named_with_its_cure(tmp_path, name):
    file = tmp_path / "data" / name
    file.parent.mkdir()
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    for path in (file, file.parent):
        assert f"{name} is a pointer of git-lfs" in error_of(gsm8k(path))


@pytest.mark.parametrize("cluster", [NAN, None, "", "  "], ids=str)
def test_rows_without_a_cluster_are_not_one_cluster(tmp_path, cluster):
    rows = [{**row, "cluster": cluster} for row in ROWS]
    problems = load_problems(gsm8k(write_lines(tmp_path / "rows.jsonl", rows)))
    assert [problem.cluster for problem in problems] == [None, None, None]


def test_repeated_ids_are_an_error_even_where_bad_rows_are_skipped(tmp_path):
    path = write_lines(tmp_path / "rows.jsonl", [ROWS[0], ROWS[1], ROWS[0]])
    message = error_of(gsm8k(path), "skip")
    assert "1 rows repeat an id: rows.jsonl:3 has the id 'a' of rows.jsonl:1" in message
    assert "there are no rows in it" in error_of(gsm8k(write_lines(tmp_path / "a.jsonl", [])))


def test_the_countdown_split_is_what_the_datasets_package_draws():
    pool = 51_500
    table = datasets.Dataset.from_dict({"row": range(pool)})
    shuffled = table.shuffle(seed=42)["row"][:]
    rest = datasets.Dataset.from_dict({"row": sorted(shuffled[50_000:])})
    assert countdown_split(pool, "countdown_train") == shuffled[:50_000]
    drawn = rest.shuffle(seed=0)["row"]
    assert countdown_split(pool, "countdown_eval") == drawn[:1_000]
    with pytest.raises(ValueError, match="at least 52000 rows and there are 51500"):
        countdown_split(pool, "countdown_val")


def test_the_countdown_split_of_the_whole_hub_data_set_stays_what_it_is():
    train = countdown_split(490_364, "countdown_train")
    held_out = countdown_split(490_364, "countdown_eval")
    assert (len(set(train)), len(set(held_out))) == (50_000, 1_000)
    assert not set(train) & set(held_out)
    validation = set(countdown_split(490_364, "countdown_val"))
    assert len(validation) == 1_000
    assert not validation & {*train, *held_out}
    # Recorded once: a numpy that draws differently would silently change the training set.
    assert train[:5] == [413581, 34601, 99368, 4614, 369263]
    assert held_out[:5] == [148720, 207440, 460362, 154607, 398162]


def test_selected_rows_keep_their_number_and_order_and_a_limit_takes_the_first(tmp_path):
    path = tmp_path / "pool.jsonl"
    path.write_text("".join(f'{{"nums": [{i}, 1], "target": {i}}}\n' for i in range(51_000)))
    source = DataSource(
        name="cd", task="countdown", path=str(path), select="countdown_train", limit=3
    )
    problems = load_problems(source)
    assert [problem.id for problem in problems] == [f"cd/{p.reference}" for p in problems]
    first = countdown_split(51_000, "countdown_train")[:3]
    assert [int(problem.reference) for problem in problems] == first != sorted(first)
    path.write_text('{"nums": [1, 2], "target": 3}\n' * 2)
    with pytest.raises(ConfigError, match="at least 51000 rows and there are 2; point path at"):
        load_problems(source)


def test_the_fingerprint_follows_content_and_order(tmp_path):
    problems = load_problems(gsm8k(write_lines(tmp_path / "rows.jsonl", ROWS)))
    digest = problems_digest(problems)
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert digest == problems_digest(load_problems(gsm8k(write_json(tmp_path / "r.json"))))
    assert digest != problems_digest(problems[::-1])
    assert digest != problems_digest(problems[:2])


def test_rows_that_are_held_out_of_training_are_all_others(tmp_path):
    path = write_lines(
        tmp_path / "pool.jsonl", [{"question": f"{k}?", "answer": f"#### {k}"} for k in range(700)]
    )
    parts = {}
    for select in ("held_out", "all_but_held_out"):
        source = gsm8k(path, select=select)
        parts[select] = [int(problem.reference) for problem in load_problems(source)]
    assert (len(parts["held_out"]), len(parts["all_but_held_out"])) == (500, 200)
    assert sorted([*parts["held_out"], *parts["all_but_held_out"]]) == list(range(700))
    assert parts["held_out"] == sorted(parts["held_out"])
    assert parts["held_out"] != list(range(500))
    write_lines(path, [{"question": "1?", "answer": "#### 1"}] * 500)
    with pytest.raises(ConfigError, match="held_out needs more than 500 rows, there are 500"):
        load_problems(source)


def test_a_mapped_column_wins_over_every_other_name_of_its_field(tmp_path):
    row = {"problem": "Not this?", "question": "Nor this?", "text": "This?", "answer": "2"}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    for field in ("question", "problem"):
        source = DataSource(name="x", task="math", path=str(path), columns={field: "text"})
        assert [p.question for p in load_problems(source)] == ["This?"]
