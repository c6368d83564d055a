"""Data sets as a configuration names them, read into validated problems.

A source is a hub data set, a local file or folder, the embedded set or a generator. Whatever it
is, every row goes through its task's ``from_row``, and whatever is wrong with it becomes one
:class:`ConfigError` that says where. Text files are not read by ``datasets``: it names no line of
a faulty file and refuses a column whose values differ in type.
"""

import csv
import gzip
import hashlib
import json
import logging
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from lightning.pytorch.utilities import rank_zero_only

from svr_lightning.core.types import Problem
from svr_lightning.errors import ConfigError, one_line, require, typed_line
from svr_lightning.tasks import Task, resolve_task
from svr_lightning.tasks.countdown_problems import (
    CountdownGenerator,
    CountdownSplit,
    countdown_split,
    generate_rows,
)

OnBadRow = Literal["error", "skip"]

MAX_CHARACTERS = 100_000
"""Longest question or reference; a longer one is a file in the wrong column, not a problem."""
COUNTDOWN_TINY, ARITHMETIC_TINY = "embedded:countdown-tiny", "embedded:arithmetic-tiny"
_SHOWN = 5
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_SPLITS = {"train", "test", "validation", "valid", "val", "dev"}
_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
_WHOLE_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)")

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """One data set: where it lies, which rows of it, and the task that reads and grades them."""

    name: str
    """What logs, results and folders call it; the problems without an id become NAME/NUMBER."""
    task: dict[str, Any] | str
    """``countdown``, ``gsm8k``, ``math``, an entry point of group ``svr_lightning.tasks``, or a
    task of your own: its class path, or ``{class_path: ..., init_args: {...}}``."""
    path: str | None = None
    """Hub id; or a .json, .jsonl, .jsonl.gz, .csv or .parquet file or a folder of such files; or
    ``embedded:countdown-tiny`` or ``embedded:arithmetic-tiny``. None with ``generate``."""
    generate: CountdownGenerator | None = None
    """Countdown problems made on the spot, instead of ``path``."""
    split: str = "train"
    """Split on the hub or of the embedded set. In a folder, the files named for it; a single file
    is read whole."""
    subset: str | None = None
    """The hub's configuration name (``main`` of openai/gsm8k), or a folder's sub-folder."""
    revision: str | None = None
    """Hub revision to pin."""
    select: CountdownSplit | None = None
    """The paper's Countdown split: 50,000 rows to train on, or 1,000 others to evaluate."""
    limit: int | None = None
    """Only the first rows, after ``select``."""
    orders: int = 2
    """Of the embedded Countdown: in how many orders of its numbers each problem is asked."""
    columns: dict[str, str] | None = None
    """For columns that the task expects and the data set names otherwise: the task's name, then
    the data set's, as in ``{question: problem_text}``."""
    max_completion_tokens: int | None = None
    """Completion limit when this set is evaluated; None takes the task's."""

    def check(self) -> None:
        """Raise ConfigError for settings that no data could satisfy, before anything is read.

        Not done on construction: in an optional field, the configuration parser would bury the
        message in its own.
        """
        limit, tokens = self.limit, self.max_completion_tokens
        for fits, otherwise in (
            (_NAME.fullmatch(self.name), "a name is made of letters, digits, '_', '.' and '-'"),
            ((self.path is None) != (self.generate is None), "give either path or generate"),
            (limit is None or limit >= 1, f"limit={limit} must be positive"),
            (1 <= self.orders <= 6, f"orders={self.orders} must be between 1 and 6"),
            (tokens is None or tokens >= 1, f"max_completion_tokens={tokens} must be positive"),
        ):
            require(bool(fits), f"data source {self.name!r}: {otherwise}")
        if self.generate is not None:
            self.generate.check()

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"data source {self.name!r} ({self.path or 'generated'})"


def load_problems(source: DataSource, on_bad_row: OnBadRow = "error") -> list[Problem]:
    """Read and validate a source: its problems in their order, their ids unique.

    Raises:
        ConfigError: one line that names the source, what was tried or which rows are bad, and
            how to fix it.
    """
    source.check()
    try:
        task = resolve_task(source.task)
        rows = _read(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source.label}: {error}") from error
    require(bool(rows), f"{source.label}: there are no rows in it")
    problems, bad, repeated = [], [], []
    places: dict[str, str] = {}
    for row in rows:
        try:
            problem = _problem(row, source, task)
        except ValueError as error:
            bad.append(f"{row.where}: {one_line(error)}")
            continue
        first = places.setdefault(problem.id, row.where)
        if first != row.where:
            repeated.append(f"{row.where} has the id {one_line(problem.id)!r} of {first}")
        problems.append(problem)
    require(
        not repeated,
        f"{source.label}: {len(repeated)} rows repeat an id: {_listed(repeated)}. Make the "
        "ids unique or remove that column",
    )
    if bad:
        found = f"{source.label}: {len(bad)} of {len(rows)} rows cannot be used: {_listed(bad)}"
        require(
            on_bad_row == "skip",
            f"{found}. Mend them, or leave them out with data.on_bad_row: skip",
        )
        require(bool(problems), f"{found}. No row is left: check the task and the columns")
        rank_zero_only(log.warning)(f"{found}. They are left out (data.on_bad_row: skip)")
    return problems


def _listed(faults: list[str]) -> str:
    more = len(faults) - _SHOWN
    return "; ".join(faults[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def problems_digest(problems: Iterable[Problem]) -> str:
    """A sha256 over every field of every problem in order: equal if and only if the data are."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(json.dumps(astuple(problem)).encode() + b"\n")
    return digest.hexdigest()


def check_text(text: str, name: str) -> None:
    """Refuse a text that a tokenizer cannot read or that is no problem's.

    Raises:
        ValueError: if it is longer than :data:`MAX_CHARACTERS` or holds half a surrogate pair.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the {name} has {len(text)} characters, the limit is {MAX_CHARACTERS}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the {name} is not valid Unicode") from None


class RawRow(NamedTuple):
    """A row as it was read."""

    number: int
    """Position in the whole data set, from 0."""
    where: str
    """For messages: ``file:line``, counted from 1 as editors do, or ``row NUMBER``."""
    value: Any
    """What was read; the ValueError that reading raised, where it did."""


def _read(source: DataSource) -> list[RawRow]:
    """All rows that ``select`` and ``limit`` leave. Raises ValueError, without the label."""

    def choose(pool: int) -> Sequence[int]:
        indices = countdown_split(pool, source.select) if source.select else range(pool)
        return indices[: source.limit]

    path = source.path
    if path is None or path.startswith("embedded:"):
        values = generate_rows(source.generate) if source.generate else _embedded(source)
        rows = [RawRow(number, f"row {number}", value) for number, value in enumerate(values)]
    elif (local := Path(path).expanduser()).exists():
        rows = local_rows(local, split=source.split, subset=source.subset)
    else:
        return _hub_rows(source, path, choose)
    return [rows[index] for index in choose(len(rows))]


def _embedded(source: DataSource) -> list[dict[str, Any]]:
    from svr_lightning.tiny import problems, word_problems

    if source.path == ARITHMETIC_TINY:
        return word_problems.generate(cast(word_problems.Split, source.split))
    if source.path == COUNTDOWN_TINY:
        return problems.generate(cast(problems.Split, source.split), source.orders)
    raise ValueError(f"the embedded data sets are {COUNTDOWN_TINY} and {ARITHMETIC_TINY}")


def _problem(row: RawRow, source: DataSource, task: Task) -> Problem:
    """One validated problem with an id. Raises ValueError with the reason."""
    if isinstance(row.value, ValueError):
        raise row.value
    if not isinstance(row.value, Mapping):
        raise ValueError(f"expected an object, found {type(row.value).__name__}")
    value = _renamed(row.value, source.columns or {})
    absent = [name for name, cell in value.items() if isinstance(cell, float) and math.isnan(cell)]
    try:
        # Tables made by pandas write NaN for "nothing here", in columns nobody asks for too.
        problem = task.from_row({**value, **dict.fromkeys(absent)})
    except ValueError as error:
        if absent:
            raise ValueError(f"{error} (NaN in {', '.join(map(repr, absent))})") from None
        raise
    cluster = value.get("cluster", problem.cluster)
    problem = replace(
        problem,
        id=problem.id or f"{source.name}/{row.number}",
        cluster=None if cluster is None else str(cluster),
    )
    for name in ("question", "reference", "id", "cluster"):
        if isinstance(text := getattr(problem, name), str):
            check_text(text, name)
    return problem


def _renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """A row under the task's column names. Raises ValueError for a column that is not there."""
    for wanted, name in columns.items():
        if name not in row:
            raise ValueError(
                f"missing column {name!r}, which columns.{wanted} names; the row has "
                f"{sorted(map(str, row))}"
            )
    return {**row, **{wanted: row[name] for wanted, name in columns.items()}}


def _hub_rows(
    source: DataSource, path: str, choose: Callable[[int], Sequence[int]]
) -> list[RawRow]:
    """Rows of a hub data set, or of the hub's cache. Never runs a data set's own code."""
    if not is_hub_id(path):
        raise ValueError(f"there is no such file or folder (looked from {Path.cwd()}); fix path")
    import datasets

    where = {"name": source.subset, "split": source.split, "revision": source.revision}
    try:
        table = datasets.load_dataset(path, **where)
    except Exception as error:
        # Whatever goes wrong between here and the hub has an exception class of its own.
        asked = ", ".join([repr(path), *(f"{name}={value!r}" for name, value in where.items())])
        raise ValueError(
            f"no such file or folder, and the hub did not deliver: load_dataset({asked}) raised "
            f"{typed_line(error)}. Check path, subset, split and the network, or point path at a "
            "local copy"
        ) from error
    indices = choose(len(table))
    picked = table.select(indices)
    return [RawRow(i, f"row {i}", row) for i, row in zip(indices, picked, strict=True)]


def is_hub_id(path: str) -> bool:
    """Whether a path can be the name of a hub data set: ``owner/name`` and no file's."""
    return bool(_HUB_ID.fullmatch(path)) and not path.lower().endswith(tuple(_READERS))


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
        read = next((r for suffix, r in _READERS.items() if name.lower().endswith(suffix)), None)
        if read is None:
            raise ValueError(f"{name} is none of {', '.join(_READERS)}")
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
        and file.name.lower().endswith(tuple(_READERS))
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    if not names:
        raise ValueError(f"the folder holds no {', '.join(_READERS)} file")
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
    """Rows under a header line. Whole numbers, JSON lists and JSON objects are read as such."""
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
    if _WHOLE_NUMBER.fullmatch(text.strip()) or text.lstrip().startswith(("[", "{")):
        value = _parsed(text.encode())
        return text if isinstance(value, ValueError) else value
    return text


_READERS: dict[str, Callable[[Path], _Placed]] = {
    ".json": _json_list,
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".parquet": _parquet,
    ".csv": _csv,
}
