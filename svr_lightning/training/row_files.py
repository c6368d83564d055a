"""Rows of local files: JSON, JSON lines, CSV and Parquet.

Text files are not read by ``datasets``: it names no line of a faulty file and refuses a column
whose values differ in type.
"""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from svr_lightning.errors import one_line

_SPLITS = {"train", "test", "validation", "valid", "val", "dev"}
_WHOLE_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)")
_STRUCTURE = re.compile(r'\s*[\[{]\s*"')
"""The beginning of a JSON object or of a list of texts."""


class RawRow(NamedTuple):
    """A row as it was read."""

    number: int
    """Position in the whole data set, from 0."""
    where: str
    """For messages: ``file:line``, counted from 1 as editors do, or ``row NUMBER``."""
    value: Any
    """What was read; the ValueError that reading raised, where it did."""


def local_rows(path: Path, *, split: str, subset: str | None) -> list[RawRow]:
    """The rows of a file, or of those files of a folder that belong to a split, in order of name.

    Raises:
        ValueError: if there is no file to read or one cannot be read.
    """
    files, folder = [path], path.parent
    if path.is_dir():
        folder = path / subset if subset else path
        if not folder.is_dir():
            raise ValueError(f"the folder has no sub-folder {subset!r}, which subset asks for")
        files = _files_of(folder, split)
    rows: list[RawRow] = []
    for file in files:
        name = file.relative_to(folder).as_posix()
        read = next((r for suffix, r in READERS.items() if name.lower().endswith(suffix)), None)
        if read is None:
            raise ValueError(f"{name} is none of {', '.join(READERS)}")
        try:
            for place, value in read(file):
                rows.append(RawRow(len(rows), f"{name}{place}", value))
        except (OSError, EOFError, ValueError, NotImplementedError, zlib.error, csv.Error) as error:
            reason = one_line(getattr(error, "strerror", None) or error)
            raise ValueError(f"cannot read {name}: {reason}") from error
    return rows


def _files_of(folder: Path, split: str) -> list[Path]:
    """Files named for ``split``; all files where none is named for any split."""
    names = sorted(
        file.relative_to(folder)
        for file in folder.rglob("*")
        if file.is_file()
        and file.name.lower().endswith(tuple(READERS))
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    if not names:
        raise ValueError(f"the folder holds no {', '.join(READERS)} file")
    words = {name: set(re.split(r"[^a-z0-9]+", name.as_posix().lower())) for name in names}
    if all(words[name].isdisjoint({*_SPLITS, split.lower()}) for name in names):
        return [folder / name for name in names]
    named = [folder / name for name in names if split.lower() in words[name]]
    if not named:
        found = ", ".join(name.as_posix() for name in names[:5])
        raise ValueError(f"the folder has no file named for split {split!r}, only {found}")
    return named


def _parsed(raw: bytes) -> Any:
    """The JSON value of some bytes, or the ValueError that says where it breaks off."""
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        reason = error.msg.removesuffix(" starting at")
        return ValueError(f"invalid JSON at {line}column {error.colno}: {reason}")
    except UnicodeDecodeError as error:
        return ValueError(f"not UTF-8: {error}")
    except (ValueError, RecursionError) as error:
        return ValueError(f"invalid JSON: {one_line(error)}")


_Placed = Iterator[tuple[str, Any]]
"""What follows the file's name in messages, and a row's value."""


def _json_lines(file: Path) -> _Placed:
    with gzip.open(file) if file.name.lower().endswith(".gz") else file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f":{number}", _parsed(line.rstrip())


def _json_list(file: Path) -> _Placed:
    value = _parsed(file.read_bytes())
    if isinstance(value, ValueError):
        raise ValueError(f"{value}. With one object a line it is a .jsonl file")
    if not isinstance(value, list):
        raise ValueError(f"expected a list of objects, found {type(value).__name__}")
    yield from ((f" row {number}", row) for number, row in enumerate(value))


def _parquet(file: Path) -> _Placed:
    from pyarrow import parquet  # comes with datasets, which would copy the file to its cache

    rows = parquet.read_table(file).to_pylist()
    yield from ((f" row {number}", row) for number, row in enumerate(rows))


def _csv(file: Path) -> _Placed:
    """Rows under a header line.

    Whole numbers, JSON objects and JSON lists of texts are read as such. Other lists stay text:
    ``[1, 2]`` may be an interval.
    """
    with file.open(newline="", encoding="utf-8-sig") as stream:
        table = csv.DictReader(stream)
        header = table.fieldnames or []
        if twice := sorted({name for name in header if header.count(name) > 1}):
            raise ValueError(f"the header names {twice[0]!r} twice; rename one of the columns")
        for cells in table:
            value: Any = {key: _cell(text) for key, text in cells.items() if key is not None}
            if None in cells or None in cells.values():
                value = ValueError(f"another number of cells than the header's {len(value)}")
            yield f":{table.line_num}", value


def _cell(text: str | None) -> Any:
    if not text or not text.strip():
        return None
    if _WHOLE_NUMBER.fullmatch(text.strip()) or _STRUCTURE.match(text):
        value = _parsed(text.encode())
        return text if isinstance(value, ValueError) else value
    return text


READERS: dict[str, Callable[[Path], _Placed]] = {
    ".json": _json_list,
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".parquet": _parquet,
    ".csv": _csv,
}
