"""Rows of local files: JSON, JSON lines, delimited text and Parquet, compressed or not.

JSON is not read by a library of tables, which names no line of a faulty file and wants all values
of a column to be of one type. Tested in tests/integration/test_row_files.py.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Any

import numpy as np

from svr_lightning.errors import one_line
from svr_lightning.files import LFS_POINTER, is_lfs_pointer

SUFFIXES = (".json", ".jsonl", ".parquet", ".csv")
_LONGEST_CELL = 2**31 - 1
_COMPRESSED: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
"""First bytes of compressed files, and what reads them."""
_FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"\xd0\xcf\x11\xe0": "an Excel workbook",
    b"ARROW1": "an Arrow file",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"SQLite": "a database",
    b"\x80": "a pickle or another binary file",
    b"%PDF": "a PDF",
}
"""First bytes of files that are not read, and what they are."""
_ZIPPED = {
    ".xlsx": "an Excel workbook",
    ".ods": "a spreadsheet",
    ".eval": "a log of Inspect",
    ".npz": "an archive of NumPy",
}
_JSON = re.compile(rb"(\xef\xbb\xbf)?\s*[{\[]")
_LINES = (".jsonl", ".ndjson")
_TEXT = (".csv", ".tsv", ".tab", ".txt")
_DELIMITERS = ",;\t|"
_NARROW = {"halffloat": np.float16, "float": np.float32}
Rows = Iterator[tuple[str, Any]]
"""Each row with its place in the file."""


def file_rows(path: Path) -> Rows:
    """The rows of a file.

    A place is ``:LINE`` from 1, ``:FIRST-LAST`` if there are line breaks within quotes, or `` row
    NUMBER`` from 0. Parquet and compression are known by a file's first bytes, other formats by its
    name, and without such a name JSON lines by their first brace.

    Cells of delimited text are text. Numbers of a narrow type are read as their shortest decimals:
    0.9 is 0.9, and not 0.8999999762, the closest to it in single precision. In place of a row that
    cannot be read comes a ValueError that says why.

    Raises:
        ValueError: if the file cannot be read.
    """
    if is_lfs_pointer(path):
        raise ValueError(LFS_POINTER.format(file=path.name))
    try:
        yield from _rows(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot read {path.name}: {error}; save it as UTF-8") from error
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        reason = one_line(getattr(error, "strerror", None) or error)
        raise ValueError(f"cannot read {path.name}: {reason}") from error


def _rows(path: Path) -> Rows:
    with path.open("rb") as file:
        start = file.read(16)
    opener: Callable[..., Any] = open
    suffixes = ["", *(suffix.lower() for suffix in path.suffixes)]
    for magic, decompressed in _COMPRESSED.items():
        if start.startswith(magic):
            opener = decompressed
            suffixes = suffixes[:-1] or [""]
    suffix = suffixes[-1]
    with opener(path, "rb") as stream:
        start = stream.read(16)
        stream.seek(0)
        for magic, kind in _FOREIGN.items():
            if start.startswith(magic):
                kind = _ZIPPED.get(suffix, kind)
                raise ValueError(f"it is {kind}; save its table as .csv, .jsonl or .parquet")
        if start.startswith(b"PAR1"):
            yield from _parquet(stream)
        elif suffix == ".parquet":
            raise ValueError("it does not begin as a Parquet file does; write it again")
        elif suffix == ".json":
            yield from _json_list(stream)
        elif suffix in _LINES or (suffix not in _TEXT and _JSON.match(start)):
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield f":{number}", _parsed(line.rstrip())
        else:
            yield from _delimited(stream, start)


def _parsed(raw: bytes) -> Any:
    """The JSON value of some bytes, or a ValueError that says where it breaks off."""
    try:
        return json.loads(raw.decode("utf-8-sig"), object_pairs_hook=distinct_keys)
    except (ValueError, RecursionError) as error:
        return ValueError(f"invalid JSON: {one_line(error)}".replace("line 1 ", ""))


def distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ; of one that comes twice, JSON would keep the last value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        _refuse_twice([name for name, _ in pairs], "an object")
    return found


def _refuse_twice(names: list[str], what: str) -> None:
    for name, count in Counter(names).items():
        if name and count > 1:
            raise ValueError(f"{what} names {name!r} twice; rename one of them")


def _json_list(stream: IO[bytes]) -> Rows:
    value = _parsed(stream.read())
    if isinstance(value, ValueError):
        raise ValueError(f"{value}. With one object a line it is a .jsonl file")
    if not isinstance(value, list):
        raise ValueError(f"expected a list of objects, found {type(value).__name__}")
    yield from ((f" row {number}", row) for number, row in enumerate(value))


def _delimited(stream: IO[bytes], start: bytes) -> Rows:
    """Rows below a header. Quotes are read strictly, since one left open would swallow rows."""
    csv.field_size_limit(_LONGEST_CELL)
    encoding = "utf-16" if start.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    text = io.TextIOWrapper(stream, encoding=encoding, newline="")
    skipped = 0
    while (head := text.readline()).isspace():
        skipped += 1
    if declared := re.match(r"sep=(.)\s*$", head):  # Excel's first line
        delimiter = declared[1]
        skipped += 1
        head = text.readline()
    else:
        delimiter = max(_DELIMITERS, key=head.count)
    rows = csv.reader(chain([head], text), delimiter=delimiter, strict=True)
    last = 0
    try:
        header = [name.strip() for name in next(rows, [])]
        last = rows.line_num + skipped
        _refuse_twice(header, "its header")
        for cells in rows:
            first = last + 1
            last = rows.line_num + skipped
            if not cells:
                continue
            place = f":{last}" if first == last else f":{first}-{last}"
            if len(cells) > len(header):
                reason = "it has more cells than the header; quote cells with a delimiter"
                yield place, ValueError(reason)
            else:
                yield place, dict(zip_longest(header, cells))
    except csv.Error as error:
        raise ValueError(f"{error}, after line {last}; close or remove the quote") from error


def _parquet(stream: IO[bytes]) -> Rows:
    from pyarrow import BufferReader, types  # comes with datasets
    from pyarrow.parquet import read_table

    table = read_table(BufferReader(stream.read()))
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type.value_type if types.is_dictionary(column.type) else column.type
        values = column.to_pylist()
        if narrow := _NARROW.get(str(kind)):
            values = [None if value is None else float(str(narrow(value))) for value in values]
        columns[name] = values
    for number, cells in enumerate(zip(*columns.values(), strict=True)):
        yield f" row {number}", dict(zip(columns, cells, strict=True))
