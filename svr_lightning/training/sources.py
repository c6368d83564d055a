"""Data sets as a configuration names them, read into validated problems.

A source is a hub data set, a local file or folder, the embedded set or a generator. Whatever it
is, every row goes through its task's ``from_row``, and whatever is wrong with it becomes one
:class:`ConfigError` that says where. :mod:`svr_lightning.training.readers` reads the bytes.
"""

import hashlib
import json
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from lightning.pytorch.utilities import rank_zero_only

from svr_lightning.core.types import Problem
from svr_lightning.errors import ConfigError, one_line
from svr_lightning.tasks import Task, resolve_task
from svr_lightning.tasks.countdown_problems import CountdownGenerator, generate_rows
from svr_lightning.training import readers

OnBadRow = Literal["error", "skip"]
Select = Literal["countdown_train", "countdown_eval"]

MAX_CHARACTERS = 100_000
"""Longest question or reference; a longer one is a file in the wrong column, not a problem."""
COUNTDOWN_TRAIN = 50_000
COUNTDOWN_EVAL = 1_000
COUNTDOWN_TINY, ARITHMETIC_TINY = "embedded:countdown-tiny", "embedded:arithmetic-tiny"
_SHOWN = 5
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")

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
    select: Select | None = None
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
        problem = ""
        if not _NAME.fullmatch(self.name):
            problem = "a name is made of letters, digits, '_', '.' and '-'"
        elif (self.path is None) == (self.generate is None):
            problem = "give either path or generate"
        elif self.limit is not None and self.limit < 1:
            problem = f"limit={self.limit} must be positive"
        elif not 1 <= self.orders <= 6:
            problem = f"orders={self.orders} must be between 1 and 6"
        elif self.max_completion_tokens is not None and self.max_completion_tokens < 1:
            problem = f"max_completion_tokens={self.max_completion_tokens} must be positive"
        if problem:
            raise ConfigError(f"data source {self.name!r}: {problem}")
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
            how to mend it.
    """
    source.check()
    try:
        task = resolve_task(source.task)
        rows = _read(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source.label}: {error}") from error
    if not rows:
        raise ConfigError(f"{source.label}: there are no rows in it")
    problems, bad, repeated = _validated(rows, source, task)
    if repeated:
        raise ConfigError(
            f"{source.label}: {len(repeated)} rows repeat an id: {_listed(repeated)}. Make the "
            "ids unique or remove that column"
        )
    if bad:
        _report_bad_rows(source, bad, len(rows), on_bad_row)
    return problems


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


def countdown_split(pool: int, part: Select) -> list[int]:
    """Row indices of the paper's Countdown split.

    Training rows are the first 50,000 of ``numpy.random.default_rng(42).permutation(pool)``,
    evaluation rows the first 1,000 of ``default_rng(0).permutation`` of the others in ascending
    order. On the hub's rows this equals ``shuffle(seed=42)`` and ``shuffle(seed=0)`` of the
    ``datasets`` package.

    Raises:
        ValueError: if the pool has fewer than 51,000 rows.
    """
    if pool < COUNTDOWN_TRAIN + COUNTDOWN_EVAL:
        raise ValueError(
            f"select: {part} draws from at least {COUNTDOWN_TRAIN + COUNTDOWN_EVAL} rows and "
            f"there are {pool}; point path at the whole data set, or remove select and use limit"
        )
    order = np.random.default_rng(42).permutation(pool)
    if part == "countdown_train":
        return [int(index) for index in order[:COUNTDOWN_TRAIN]]
    rest = np.sort(order[COUNTDOWN_TRAIN:])
    drawn = np.random.default_rng(0).permutation(len(rest))[:COUNTDOWN_EVAL]
    return [int(index) for index in rest[drawn]]


def _read(source: DataSource) -> list[readers.RawRow]:
    """All rows that ``select`` and ``limit`` leave. Raises ValueError, without the label."""

    def choose(pool: int) -> Sequence[int]:
        indices = countdown_split(pool, source.select) if source.select else range(pool)
        return indices[: source.limit]

    if source.generate is not None:
        rows = readers.numbered(generate_rows(source.generate))
    elif source.path is None or source.path.startswith("embedded:"):
        rows = readers.numbered(_embedded(source))
    elif (path := Path(source.path).expanduser()).exists():
        rows = readers.local_rows(path, split=source.split, subset=source.subset)
    else:
        return readers.hub_rows(
            source.path,
            split=source.split,
            subset=source.subset,
            revision=source.revision,
            choose=choose,
        )
    return [rows[index] for index in choose(len(rows))]


def _embedded(source: DataSource) -> list[dict[str, Any]]:
    from svr_lightning.tiny import problems, word_problems

    if source.path == ARITHMETIC_TINY:
        return word_problems.generate(cast(word_problems.Split, source.split))
    if source.path == COUNTDOWN_TINY:
        return problems.generate(cast(problems.Split, source.split), source.orders)
    raise ValueError(f"the embedded data sets are {COUNTDOWN_TINY} and {ARITHMETIC_TINY}")


def _problem(row: readers.RawRow, source: DataSource, task: Task) -> Problem:
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
    check_text(problem.question, "question")
    if isinstance(problem.reference, str):
        check_text(problem.reference, "reference")
    check_text(problem.id, "id")
    cluster = value.get("cluster", problem.cluster)
    if cluster is not None:
        check_text(str(cluster), "cluster")
        problem = replace(problem, cluster=str(cluster))
    return problem if problem.id else replace(problem, id=f"{source.name}/{row.number}")


def _renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """A row under the task's column names. Raises ValueError for a column that is not there."""
    for wanted, name in columns.items():
        if name not in row:
            raise ValueError(
                f"missing column {name!r}, which columns.{wanted} names; the row has "
                f"{sorted(map(str, row))}"
            )
    return {**row, **{wanted: row[name] for wanted, name in columns.items()}}


def _validated(
    rows: list[readers.RawRow], source: DataSource, task: Task
) -> tuple[list[Problem], list[str], list[str]]:
    """The problems, what is wrong with the bad rows, and which rows repeat an id."""
    problems, bad, repeated = [], [], []
    places: dict[str, str] = {}
    for row in rows:
        try:
            problem = _problem(row, source, task)
        except ValueError as error:
            bad.append(f"{row.where}: {one_line(error)}")
            continue
        if problem.id in places:
            id_ = one_line(problem.id)
            repeated.append(f"{row.where} has the id {id_!r} of {places[problem.id]}")
        places.setdefault(problem.id, row.where)
        problems.append(problem)
    return problems, bad, repeated


def _report_bad_rows(source: DataSource, bad: list[str], total: int, on_bad_row: OnBadRow) -> None:
    found = f"{source.label}: {len(bad)} of {total} rows cannot be used: {_listed(bad)}"
    if on_bad_row == "error":
        raise ConfigError(f"{found}. Mend them, or leave them out with data.on_bad_row: skip")
    if len(bad) == total:
        raise ConfigError(f"{found}. No row is left: check the task and the columns")
    rank_zero_only(log.warning)(f"{found}. They are left out (data.on_bad_row: skip)")


def _listed(faults: list[str]) -> str:
    more = len(faults) - _SHOWN
    return "; ".join(faults[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
