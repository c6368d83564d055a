"""Rows of local files: JSON, JSON lines, CSV and Parquet.

JSON is not read by a library of tables, which names no line of a faulty file and wants all values
of a column to be of one type.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from svr_lightning.errors import one_line
from svr_lightning.files import LFS_POINTER, is_lfs_pointer

SUFFIXES = (".json", ".jsonl", ".parquet", ".csv")


class RawRow(NamedTuple):
    """A row as it was read."""

    number: int
    """Position in the whole data set, from 0."""
    where: str
    """For messages: ``file:line``, counted from 1 as editors do, or ``file row NUMBER``."""
    value: Any
    """What was read; the ValueError that reading raised, where it did."""


def file_rows(path: Path) -> list[RawRow]:
    """The rows of a file.

    Raises:
        ValueError: if the file cannot be read.
    """
    name = path.name.lower()
    if is_lfs_pointer(path):
        raise ValueError(LFS_POINTER.format(file=path.name))
    if not name.endswith(SUFFIXES):
        raise ValueError(f"{path.name} is none of {', '.join(SUFFIXES)}")
    read = _json_lines if ".jsonl" in name else _json_list if ".json" in name else _table
    try:
        return [RawRow(i, f"{path.name}{at}", row) for i, (at, row) in enumerate(read(path))]
    except (OSError, ValueError) as error:
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


def _table(file: Path) -> Iterator[tuple[str, Any]]:
    """Rows of Parquet, or of CSV under a header line."""
    from pyarrow import parquet  # like pandas, comes with datasets

    if file.name.lower().endswith(".parquet"):
        rows = parquet.read_table(file).to_pylist()
    else:
        import pandas

        table = pandas.read_csv(file, keep_default_na=False, na_values=[""], skip_blank_lines=True)
        if not isinstance(table.index, pandas.RangeIndex):  # it would take a cell for a label
            raise ValueError("rows have more cells than the header; quote cells with a comma")
        rows = table.to_dict(orient="records")
    yield from ((f" row {number}", row) for number, row in enumerate(rows))
