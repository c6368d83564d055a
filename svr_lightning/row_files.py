"""Rows of local files: JSON, JSON lines, CSV and Parquet.

JSON is not read by a library of tables, which names no line of a faulty file and wants all values
of a column to be of one type.
"""

import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from svr_lightning.errors import one_line
from svr_lightning.files import LFS_POINTER, is_lfs_pointer

SUFFIXES = (".json", ".jsonl", ".parquet", ".csv")
_LONGEST_CELL = 2**31 - 1


def file_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a file, each with its place: ``:LINE`` from 1, or `` row NUMBER`` from 0.

    A file of another name than :data:`SUFFIXES` has lines of JSON. Cells of CSV are text. Of a row
    that cannot be read the value is the ValueError that says why.

    Raises:
        ValueError: if the file cannot be read.
    """
    if is_lfs_pointer(path):
        raise ValueError(LFS_POINTER.format(file=path.name))
    read = {".json": _json_list, ".csv": _csv, ".parquet": _parquet}
    try:
        yield from read.get(path.suffix.lower(), _json_lines)(path)
    except (OSError, ValueError, csv.Error) as error:
        reason = one_line(getattr(error, "strerror", None) or error)
        raise ValueError(f"cannot read {path.name}: {reason}") from error


def _parsed(raw: bytes) -> Any:
    """The JSON value of some bytes, or a ValueError that says where it breaks off."""
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        return ValueError(f"invalid JSON: {one_line(error)}".replace("line 1 ", ""))


def _json_lines(file: Path) -> Iterator[tuple[str, Any]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f":{number}", _parsed(line.rstrip())


def _json_list(file: Path) -> Iterator[tuple[str, Any]]:
    value = _parsed(file.read_bytes())
    if isinstance(value, ValueError):
        raise ValueError(f"{value}. With one object a line it is a .jsonl file")
    if not isinstance(value, list):
        raise ValueError(f"expected a list of objects, found {type(value).__name__}")
    yield from ((f" row {number}", row) for number, row in enumerate(value))


def _csv(file: Path) -> Iterator[tuple[str, Any]]:
    csv.field_size_limit(_LONGEST_CELL)
    more = ValueError("it has more cells than the header; quote cells with a comma")
    with file.open(newline="", encoding="utf-8-sig") as stream:
        rows = csv.DictReader(stream)
        if twice := [name for name, n in Counter(rows.fieldnames or ()).items() if name and n > 1]:
            raise ValueError(f"its header names {twice[0]!r} twice; rename one of the columns")
        for row in rows:
            yield f":{rows.line_num}", more if None in row else row


def _parquet(file: Path) -> Iterator[tuple[str, Any]]:
    from pyarrow.parquet import read_table  # comes with datasets

    yield from ((f" row {number}", row) for number, row in enumerate(read_table(file).to_pylist()))
