"""Another program's log as a table: JSON lines, csv or parquet with a row per turn."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

from svr_lightning.analysis.records import MAX_COUNT, Count, SampleRecord, TurnRecord
from svr_lightning.analysis.results import Evaluation, read_evaluation
from svr_lightning.analysis.table import TurnTable, turn_tables
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import Verdict
from svr_lightning.errors import ConfigError, faults_of, field_error, one_line, require
from svr_lightning.row_files import file_rows

_ROUNDING = 1e-9  # by which another program's confidence may leave [0, 1]
_NOTHING = ("", "nan", "na", "<na>", "none", "null")  # how tables write an empty cell


class _Row(Struct):
    """The columns that are read."""

    id: str
    confidence: float
    correct: bool
    turn: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    tokens: Count = 0
    cluster: str | None = None


LOG_COLUMNS = _Row.__struct_fields__


def read_recording(path: Path, columns: Sequence[str] | None = None) -> Evaluation:
    """Read the folder of an evaluation, or the file of a log; see :func:`load_log`.

    A log has no verdicts, so that its rule reads the confidence alone.

    Raises:
        ConfigError: naming the file, and the line or the record, that cannot be used.
    """
    if not path.is_file():
        require(columns is None, f"{path}: no file; --columns names the columns of a log")
        return read_evaluation(path)
    table = load_log(path, columns or ())
    return Evaluation(
        samples=path,
        records=[],
        tables={path.stem: table},
        config={},
        stop=Confident(needs_correct=False),
        max_turns=table.max_turns,
    )


def load_log(path: Path, columns: Sequence[str] = ()) -> TurnTable:
    """The turns of a log.

    Args:
        path: of the log.
        columns: ``NAME=COLUMN`` for names of :data:`LOG_COLUMNS` that the log calls otherwise. Rows
            of one problem are its turns, which ``turn`` numbers from 1, or all from 0; ``tokens``
            and ``cluster`` may be missing, and ``turn`` if every problem has one row.

    Raises:
        ConfigError: naming the file and the row that cannot be used.
    """
    names = _column_names(columns)
    problems: dict[str, list[_Row]] = {}
    held: set[str] = set()
    where = f"{path}"
    try:
        for place, values in file_rows(path):
            where = f"{path}{place}"
            row = _row(values, names)
            _add_turn(problems.setdefault(row.id, []), row, names["id"])
            held.update(values)
    except ValueError as error:
        raise ConfigError(f"{where}: {one_line(error)}") from error
    require(bool(problems), f"{path}: there are no rows in it")
    for pair in columns:
        require(pair.partition("=")[2] in held, f"{path}: --columns {pair}: no row has this column")
    first = 0 if any(row.turn == 0 for rows in problems.values() for row in rows) else 1
    with faults_of(f"{path}: "):
        records = [_record(path.stem, rows, first) for rows in problems.values()]
    return turn_tables(records)[path.stem]


def _column_names(columns: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for pair in columns:
        name, _, column = pair.partition("=")
        require(
            name in LOG_COLUMNS and bool(column) and name not in given,
            f"--columns {pair}: give NAME=COLUMN with NAME one of {', '.join(LOG_COLUMNS)}, each "
            "once",
        )
        given[name] = column
    names = {name: given.get(name, name) for name in LOG_COLUMNS}
    for name, column in given.items():
        shared = [other for other in names if other != name and names[other] == column]
        require(not shared, f"--columns {name}={column}: this column is {''.join(shared[:1])}, too")
    return names


def _row(values: Any, names: Mapping[str, str]) -> _Row:
    """A row's values: a csv holds text, and a table made by pandas floats, NaN for nothing."""
    if isinstance(values, ValueError):
        raise values
    if not isinstance(values, dict):
        raise ValueError("the row is no object with columns")
    texts = {name: str(values.get(column, "")).strip() for name, column in names.items()}
    texts = {k: v for k, v in texts.items() if v.casefold() not in _NOTHING}
    for name in ("id", "confidence", "correct"):
        if name not in texts and names[name] in values:
            raise ValueError(f"{names[name]} is empty; fill it in, or leave the row out")
        if name not in texts:
            has = one_line(", ".join(map(str, values)))
            raise ValueError(f"no {names[name]}; the row has {has}; see --columns")
    for name in texts.keys() - {"id", "cluster"}:  # .5 and 2.0 are numbers too
        texts[name] = re.sub(r"^\.", "0.", texts[name]).removesuffix(".0")
    try:
        row = convert(texts, _Row, strict=False)
        if not -_ROUNDING <= row.confidence <= 1 + _ROUNDING:
            raise ValidationError("Expected a number in [0, 1] - at `$.confidence`")
    except ValidationError as error:
        name, _, reason = field_error(error, "").partition(": ")
        shown = one_line(repr(values[names[name]]))
        raise ValueError(f"{names[name]}={shown}: {reason}") from error
    return row


def _add_turn(turns: list[_Row], row: _Row, column: str) -> None:
    """Add a row to its problem's, whose ``column`` holds ids."""
    known = turns[-1].cluster if turns else None
    row.cluster = row.cluster or known
    if known not in (None, row.cluster):
        clusters = f"{known!r} and {row.cluster!r}"
        raise ValueError(f"problem {row.id!r} has the clusters {clusters}; a problem has one")
    if turns and row.turn is None:
        raise ValueError(
            f"{column} {row.id!r} is there twice; if its rows are turns, name their column with "
            "--columns turn=COLUMN, else give each problem an id of its own"
        )
    turns.append(row)


def _record(dataset: str, rows: Sequence[_Row], first: int) -> SampleRecord:
    """A problem, whose turns are numbered from ``first``."""
    turns = [
        TurnRecord(
            turn=1 if row.turn is None else row.turn + 1 - first,
            text="",
            answer=None,
            answer_group=0,
            correct=row.correct,
            truncated=False,
            finish_reason="stop",
            prompt_tokens=0,
            completion_tokens=row.tokens,
            verdict=Verdict.CORRECT,  # so that the confidence alone decides
            confidence=min(max(row.confidence, 0.0), 1.0),
        )
        for row in rows
    ]
    return SampleRecord(
        dataset=dataset,
        id=rows[0].id,
        task="log",
        question="",
        reference="",
        cluster=rows[-1].cluster,
        returned_turn=len(turns),
        stopped_early=False,
        turns=tuple(sorted(turns, key=lambda turn: turn.turn)),
    )
