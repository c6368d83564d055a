"""Local files of rows: formats, places, and what is refused."""

import bz2
import gzip
import json
import lzma
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import Table, feather
from pyarrow.parquet import write_table

from svr_lightning.row_files import file_rows

ROWS = [{"id": "a", "p": "0.5"}, {"id": "b", "p": "1"}]
LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS)


def rows(path: Path) -> list[Any]:
    return [row for _, row in file_rows(path)]


def places(path: Path) -> list[str]:
    return [place for place, _ in file_rows(path)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.csv", b"id,p\na,0.5\nb,1\n"),
        ("log.CSV", b"\xef\xbb\xbfid,p\r\na,0.5\r\nb,1\r\n"),
        ("log.csv", b"id, p \na,0.5\nb,1"),
        ("log.csv", b"id;p\na;0.5\nb;1\n"),
        ("log.csv", b"sep=;\nid;p\na;0.5\nb;1\n"),
        ("log.csv", b"\n  \r\nid;p\na;0.5\nb;1\n"),
        ("log.tsv", b"id\tp\na\t0.5\nb\t1\n"),
        ("log.txt", b"id|p\na|0.5\nb|1\n"),
        ("log.dat", b"id\tp\n\na\t0.5\nb\t1\n"),
        ("log", b'\xef\xbb\xbf{"id": "a", "p": "0.5"}\n{"id": "b", "p": "1"}'),
        ("log.csv", "id\tp\na\t0.5\nb\t1\n".encode("utf-16")),
        ("log.ndjson", LINES.encode()),
        ("log.json", json.dumps(ROWS).encode()),
        ("log.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)),
        ("log.jsonl", gzip.compress(LINES.encode(), mtime=0)),
        ("log.csv.bz2", bz2.compress(b"id,p\na,0.5\nb,1\n")),
        ("log.json.xz", lzma.compress(json.dumps(ROWS).encode())),
    ],
)
def test_a_table_is_read_whatever_its_delimiter_or_compression_is(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert rows(tmp_path / name) == ROWS


@pytest.mark.parametrize("name", ["log.parquet", "log.parq", "log.pq", "log"])
def test_parquet_is_known_by_its_content(tmp_path, name):
    write_table(Table.from_pylist(ROWS), tmp_path / name)
    assert rows(tmp_path / name) == ROWS


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("encode", [False, True])
def test_numbers_of_a_narrow_column_are_the_decimals_that_were_stored_and_empty_cells_nothing(
    tmp_path, kind, encode
):
    stated = [0.9, 0.85, 0.05, 1.0, 0.333, None]
    column = Table.from_pydict({"p": np.array(stated[:-1], dtype=kind)})["p"]
    column = Table.from_pydict({"p": [*column, None]})["p"]
    if encode and kind is not np.float16:  # pandas' categories
        column = column.dictionary_encode()
    write_table(Table.from_arrays([column], names=["p"]), tmp_path / "log.parquet")
    assert [row["p"] for row in rows(tmp_path / "log.parquet")] == stated


def test_all_lines_before_the_header_count_among_the_lines(tmp_path):
    (tmp_path / "log.csv").write_text("\nsep=,\nid,p\na,0.5\n")
    assert places(tmp_path / "log.csv") == [":4"]


def test_line_breaks_within_quotes_show_in_the_place(tmp_path):
    (tmp_path / "log.csv").write_text('id,note\na,"two\nlines"\nb,one\n\nc,"x\ny\nz"\n')
    assert places(tmp_path / "log.csv") == [":2-3", ":4", ":6-8"]


@pytest.mark.parametrize(
    "text",
    ['id,note\na,"open\nb,x\n', 'id,note\na,"open\nb,"x"\n', 'id,note\na,"5" wide\n'],
)
def test_a_quote_that_is_left_open_is_refused_where_it_cannot_be_closed(tmp_path, text):
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(ValueError, match=r"cannot read log.csv: .*after line 1; close or remove"):
        rows(tmp_path / "log.csv")


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", "{}")


def write_database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("create table log (id)")


def write_feather(path: Path) -> None:
    feather.write_feather(Table.from_pylist(ROWS), path)


@pytest.mark.parametrize(
    ("name", "write", "kind"),
    [
        ("log.xlsx", write_zip, "an Excel workbook"),
        ("log.eval", write_zip, "a log of Inspect"),
        ("log.zip", write_zip, "a zip archive"),
        ("log.ods", write_zip, "a spreadsheet"),
        ("log.xls", lambda path: path.write_bytes(b"\xd0\xcf\x11\xe0" * 9), "an Excel workbook"),
        ("log.feather", write_feather, "an Arrow file"),
        ("log.db", write_database, "a database"),
        ("log.pkl", lambda path: path.write_bytes(b"\x80\x04\x95"), "a pickle"),
        ("log.jsonl.zst", lambda path: path.write_bytes(b"\x28\xb5\x2f\xfd!"), "compressed with"),
    ],
)
def test_a_format_that_is_not_read_is_named_with_what_is(tmp_path, name, write, kind):
    write(tmp_path / name)
    with pytest.raises(ValueError, match=f"it is {kind}.*; save its table as .csv, .jsonl or"):
        rows(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("log.csv", "id,p\nä,1\n".encode("latin-1"), "save it as UTF-8"),
        ("log.parquet", b"id,p\na,1\n", "does not begin as a Parquet file does"),
        ("log.parquet", b"PAR1 cut off", "cannot read log.parquet"),
        ("log.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)[:30], "cannot read log.jsonl.gz"),
        (
            "log.jsonl.gz",
            gzip.compress(b"", mtime=0)[:10] + b"\xff" * 8,
            "cannot read log.jsonl.gz",
        ),
        ("log.json.xz", lzma.compress(b"[]" * 9)[:30], "cannot read log.json.xz"),
        ("log.csv", b"id,id\na,1\n", "names 'id' twice"),
    ],
)
def test_a_file_that_is_broken_is_one_line(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        rows(tmp_path / name)
    assert str(caught.value).isprintable()
