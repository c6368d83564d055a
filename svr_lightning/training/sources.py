"""Data sets as a configuration names them, read into validated problems.

A source is a hub data set, a local file or folder, or an embedded set. Whatever it is, every row
goes through its task's ``from_row``, and whatever is wrong with it becomes one
:class:`ConfigError` that says where.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from lightning.pytorch.utilities import rank_zero_only

from svr_lightning.core.ranges import Count, check_fields, require_field
from svr_lightning.core.types import Problem
from svr_lightning.display import join_first
from svr_lightning.errors import ConfigError, did_you_mean, format_exception, one_line, require
from svr_lightning.files import LFS_POINTER, is_lfs_pointer
from svr_lightning.row_files import SUFFIXES, file_rows
from svr_lightning.tasks import Task, get_task
from svr_lightning.tasks.grading import check_reference, unread_references
from svr_lightning.tiny import EMBEDDED

OnBadRow = Literal["error", "skip"]
CountdownSplit = Literal["countdown_train", "countdown_eval", "countdown_val"]
Selection = CountdownSplit | Literal["held_out", "all_but_held_out"]

TRAINING_ROWS, EVALUATION_ROWS = 50_000, 1_000
"""Sizes of the paper's Countdown split; as many rows again are for validation."""
HELD_OUT_ROWS = 500

MAX_CHARACTERS = 100_000
"""Longest question or reference; a longer one is a file in the wrong column, not a problem."""
_OF_SAVE_TO_DISK = ("state.json", "dataset_dict.json")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """One data set: where it lies, which rows of it, and the task that reads and grades them."""

    name: str
    """Its name in logs, results and folders. A problem without an id becomes NAME/NUMBER."""
    task: str
    """``countdown``, ``gsm8k``, ``math``, or the class path of a task of your own."""
    path: str
    """Hub id; or a .json, .jsonl, .csv or .parquet file; or a folder of such files; or
    ``embedded:countdown-tiny`` or ``embedded:arithmetic-tiny``."""
    split: str = "train"
    """The split of a hub data set, a folder or an embedded set, as ``datasets`` finds it by the
    names of files. A single file is read whole."""
    subset: str | None = None
    """The hub's configuration name (``main`` of openai/gsm8k), or a folder's sub-folder."""
    revision: str | None = None
    """Hub revision to pin."""
    select: Selection | None = None
    """The paper's Countdown split: 50,000 rows to train on, 1,000 others to evaluate, and 1,000
    more to validate; or, of any data set, 500 rows ``held_out`` of training to validate, and all
    the others."""
    limit: Count | None = None
    """Only the first rows, after ``select``."""
    columns: dict[str, str] | None = None
    """For columns that the task expects and the data set names otherwise: the task's name, then
    the data set's, as in ``{question: problem_text}``."""
    max_completion_tokens: Count | None = None
    """Completion limit when this set is evaluated; None takes the task's."""

    def __post_init__(self) -> None:
        check_fields(self)
        require_field(
            self,
            "name",
            _NAME.fullmatch(self.name) is not None,
            "must be made of letters, digits, '_', '.' and '-'",
        )

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"data source {self.name!r} ({self.path})"


def load_problems(source: DataSource, on_bad_row: OnBadRow = "error") -> list[Problem]:
    """Read and validate a source: its problems in their order, their ids unique.

    Raises:
        ConfigError: one line that names the source, what was tried or which rows are bad, and
            how to fix it.
    """
    try:
        task = get_task(source.task)
        rows = _read(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source.label}: {error}") from error
    require(bool(rows), f"{source.label}: there are no rows in it")
    read = {name for names in task.columns for name in names} | {"cluster"}
    if task.columns:
        for name in source.columns or ():
            hint = did_you_mean(name, read)
            require(name in read, f"{source.label}: columns: {task.name} reads no {name!r}{hint}")
    problems, bad, repeated = [], [], []
    places: dict[str, str] = {}
    for number, where, row in rows:
        try:
            problem = _problem(row, number, source, task)
        except ValueError as error:
            bad.append(f"{where}: {one_line(error)}")
            continue
        first = places.setdefault(problem.id, where)
        if first != where:
            repeated.append(f"{where} has the id {one_line(problem.id)!r} of {first}")
        problems.append(problem)
    require(
        not repeated,
        f"{source.label}: {len(repeated)} rows repeat an id: {join_first(repeated, 5, '; ')}. Make "
        "the ids unique or remove that column",
    )
    if bad:
        shown = join_first(bad, 5, "; ")
        fault = f"{source.label}: {len(bad)} of {len(rows)} rows cannot be used: {shown}"
        require(
            bool(problems),
            f"{fault}. No row is left: check the task, and name the columns of its fields, as in "
            "columns: {question: COLUMN, answer: COLUMN}",
        )
        require(
            on_bad_row == "skip",
            f"{fault}. Correct them, or leave them out with data.on_bad_row: skip",
        )
        rank_zero_only(log.warning)(f"{fault}. They are left out (data.on_bad_row: skip)")
    if unread := unread_references(problems):
        shown = join_first([repr(one_line(reference)) for reference in unread], 3, ", ")
        rank_zero_only(log.warning)(
            f"{source.label}: {len(unread)} of {len(problems)} references have digits, but no "
            f"grader reads them as a number or a term: {shown}. Only an answer with the same text "
            "is correct"
        )
    return problems


def problems_digest(problems: Iterable[Problem]) -> str:
    """A sha256 over every field of every problem in order: equal if and only if the data are."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(json.dumps(astuple(problem)).encode() + b"\n")
    return digest.hexdigest()


def check_text(text: str, name: str) -> None:
    """Refuse a text that a tokenizer cannot read, or that is too long for a problem.

    Raises:
        ValueError: if it is longer than :data:`MAX_CHARACTERS` or holds half a surrogate pair.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the {name} has {len(text)} characters, the limit is {MAX_CHARACTERS}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the {name} is not valid Unicode") from None


def _read(source: DataSource) -> list[tuple[int, str, Any]]:
    """The rows that ``select`` and ``limit`` leave: number from 0, place, and what was read.

    Raises ValueError, without the label; of a single row that cannot be read it is the value.
    """
    embedded = source.path.startswith("embedded:")
    local = _embedded(source) if embedded else Path(source.path).expanduser()
    if not local.is_file():
        table = _table(source, local)
        chosen = _selected(len(table), source.select)[: source.limit]
        return [(i, f"row {i}", row) for i, row in zip(chosen, table.select(chosen), strict=True)]
    if local.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{local.name} is not one of {', '.join(SUFFIXES)}")
    rows = [(f"{local.name}{at}", row) for at, row in file_rows(local)]
    chosen = _selected(len(rows), source.select)[: source.limit]
    return [(i, *rows[i]) for i in chosen]


def _embedded(source: DataSource) -> Path:
    """The file of an embedded split. Raises ValueError if there is none."""
    if source.path not in EMBEDDED:
        raise ValueError(f"the embedded data sets are {' and '.join(EMBEDDED)}")
    folder = Path(str(files("svr_lightning.tiny") / EMBEDDED[source.path]))
    splits = {file.stem: file for file in sorted(folder.glob("*.jsonl"))}
    if source.split not in splits:
        raise ValueError(f"split {source.split!r} is not one of {', '.join(splits)}")
    return splits[source.split]


def _problem(row: Any, number: int, source: DataSource, task: Task) -> Problem:
    """One validated problem with an id. Raises ValueError with the reason."""
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, Mapping):
        raise ValueError(f"expected an object, found {type(row).__name__}")
    value = _renamed(row, source.columns or {}, task)
    # "Nothing here" is an empty cell of a CSV, and NaN in tables made by pandas.
    value = {name: cell for name, cell in value.items() if cell != "" and cell == cell}
    problem = task.from_row(value)
    check_reference(problem)
    problem = replace(
        problem,
        id=problem.id or f"{source.name}/{number}",
        cluster=str(value.get("cluster") or "").strip() or problem.cluster,
    )
    for name in ("question", "reference", "id", "cluster"):
        if isinstance(text := getattr(problem, name), str):
            check_text(text, name)
    return problem


def _renamed(row: Mapping[str, Any], columns: Mapping[str, str], task: Task) -> dict[str, Any]:
    """A row under the task's column names. Raises ValueError for a column that is not there.

    Other names that the task knows for a mapped column are left out: it might read them first.
    """
    for expected, name in columns.items():
        if name not in row:
            raise ValueError(
                f"missing column {name!r}, which columns.{expected} names; the row has "
                f"{sorted(map(str, row))}"
            )
    mapped = [names for names in task.columns if not columns.keys().isdisjoint(names)]
    hidden = {name for names in mapped for name in names}
    other_cells = {name: cell for name, cell in row.items() if name not in hidden}
    return {**other_cells, **{expected: row[name] for expected, name in columns.items()}}


def _table(source: DataSource, local: Path) -> Any:
    """A folder, a hub data set, or one of the hub's cache, as ``datasets`` reads it.

    Never runs a data set's own code.
    """
    folder = local.is_dir()
    if not folder and not is_hub_id(source.path):
        raise ValueError(f"there is no such file or folder (looked from {Path.cwd()}); fix path")
    import datasets

    path = str(local) if folder else source.path
    if folder and (pointer := next(filter(is_lfs_pointer, local.rglob("*")), None)):
        raise ValueError(LFS_POINTER.format(file=pointer))
    if folder and any((local / name).is_file() for name in _OF_SAVE_TO_DISK):
        saved = datasets.load_from_disk(path)
        if isinstance(saved, datasets.DatasetDict):
            if source.split not in saved:
                raise ValueError(f"split {source.split!r} is not one of {', '.join(saved)}")
            saved = saved[source.split]
        return saved
    where = {"data_dir" if folder else "name": source.subset, "split": source.split}
    where |= {} if folder else {"revision": source.revision}
    try:
        return datasets.load_dataset(path, **where)
    except Exception as error:  # every library on the way to the hub raises its own classes
        request = ", ".join([repr(path), *(f"{name}={value!r}" for name, value in where.items())])
        cure = "the files" if folder else "path, subset, split and the network, or use a local copy"
        fault = format_exception(error.__cause__ or error).rstrip(".")
        raise ValueError(f"load_dataset({request}) raised {fault}. Check {cure}") from error


def _selected(pool: int, part: Selection | None) -> Sequence[int]:
    """[n] row numbers that ``select`` leaves of ``pool`` rows. Raises ValueError for too few."""
    if part is None:
        return range(pool)
    if part != "held_out" and part != "all_but_held_out":
        return countdown_split(pool, part)
    if pool <= HELD_OUT_ROWS:
        raise ValueError(f"select: {part} needs more than {HELD_OUT_ROWS} rows, there are {pool}")
    drawn = np.random.default_rng(0).permutation(pool)[:HELD_OUT_ROWS].tolist()
    held_out = set(drawn)
    return [index for index in range(pool) if (index in held_out) == (part == "held_out")]


def countdown_split(pool: int, part: CountdownSplit) -> list[int]:
    """[n] row numbers of the paper's Countdown split, among ``pool`` rows.

    Training rows are the first 50,000 of a permutation with seed 42; 1,000 evaluation rows and
    after them 1,000 validation rows are drawn with seed 0 from the rest. Equal to
    ``shuffle(seed=...)`` of the ``datasets`` package.

    Raises:
        ValueError: if the pool has fewer than 51,000 rows, or 52,000 to validate.
    """
    least = TRAINING_ROWS + EVALUATION_ROWS * (2 if part == "countdown_val" else 1)
    if pool < least:
        raise ValueError(
            f"select: {part} draws from at least {least} rows and "
            f"there are {pool}; point path at the whole data set, or remove select and use limit"
        )
    order = np.random.default_rng(42).permutation(pool)
    if part == "countdown_train":
        return [int(index) for index in order[:TRAINING_ROWS]]
    rest = np.sort(order[TRAINING_ROWS:])
    drawn = rest[np.random.default_rng(0).permutation(len(rest))]
    first = EVALUATION_ROWS if part == "countdown_val" else 0
    return [int(index) for index in drawn[first : first + EVALUATION_ROWS]]


def is_hub_id(path: str) -> bool:
    """Whether a path can name a hub data set: ``owner/name``, and not a data file."""
    return bool(_HUB_ID.fullmatch(path)) and not path.lower().endswith(SUFFIXES)
