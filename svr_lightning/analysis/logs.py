"""Another program's log as a table: JSON lines, csv or parquet with a row per turn."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

from svr_lightning.analysis.records import MAX_COUNT, Count, SampleRecord, TurnRecord
from svr_lightning.analysis.results import Evaluation, read_evaluation
from svr_lightning.analysis.table import TurnTable, turn_tables
from svr_lightning.core.stopping import Confident, rule_as_config
from svr_lightning.core.types import Verdict
from svr_lightning.errors import ConfigError, field_error, one_line, require
from svr_lightning.row_files import file_rows

_ROUNDING = 1e-9  # by which another program's confidence may leave [0, 1]


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
    stop = rule_as_config(Confident(needs_correct=False))
    config = {"model": {"evaluation": {"stop": stop}}}
    tables = {path.stem: load_log(path, columns or ())}
    return Evaluation(samples=path, records=[], tables=tables, config=config)


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
    turns: dict[str, list[TurnRecord]] = {}
    clusters: dict[str, str | None] = {}
    read = 0
    try:
        for _, values in file_rows(path):
            _add_turn(turns, clusters, _row(values, names), names["id"])
            read += 1
    except ValueError as error:
        raise ConfigError(f"{path}, row {read + 1}: {one_line(error)}") from error
    require(bool(turns), f"{path}: there are no rows in it")
    if any(turn.turn == 0 for one in turns.values() for turn in one):
        turns = {name: [replace(t, turn=t.turn + 1) for t in one] for name, one in turns.items()}
    try:
        records = [
            SampleRecord(
                dataset=path.stem,
                id=name,
                task="log",
                question="",
                reference="",
                cluster=clusters[name],
                returned_turn=len(one),
                stopped_early=False,
                turns=tuple(sorted(one, key=lambda turn: turn.turn)),
            )
            for name, one in turns.items()
        ]
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    return turn_tables(records)[path.stem]


def _column_names(columns: Sequence[str]) -> dict[str, str]:
    names = dict(zip(LOG_COLUMNS, LOG_COLUMNS, strict=True))
    for pair in columns:
        name, _, column = pair.partition("=")
        require(
            name in names and bool(column),
            f"--columns {pair}: give NAME=COLUMN with NAME one of {', '.join(LOG_COLUMNS)}",
        )
        names[name] = column
    return names


def _row(values: Any, names: Mapping[str, str]) -> _Row:
    """A row's values: a csv holds text, and a table made by pandas floats, NaN for nothing."""
    if isinstance(values, ValueError):
        raise values
    if not isinstance(values, dict):
        raise ValueError("the row is no object with columns")
    texts = {name: str(values.get(column, "")).strip() for name, column in names.items()}
    texts = {k: v for k, v in texts.items() if v not in ("", "nan", "NaN", "None")}
    for name in ("id", "confidence", "correct"):
        if name not in texts and names[name] in values:
            raise ValueError(f"{names[name]} is empty; fill it in, or leave the row out")
        if name not in texts:
            has = one_line(", ".join(map(str, values)))
            raise ValueError(f"no {names[name]}; the row has {has}; see --columns")
    whole = {k: v if k in ("id", "cluster") else v.removesuffix(".0") for k, v in texts.items()}
    try:
        row = convert(whole, _Row, strict=False)
        if not -_ROUNDING <= row.confidence <= 1 + _ROUNDING:
            raise ValidationError("Expected a number in [0, 1] - at `$.confidence`")
    except ValidationError as error:
        name, _, reason = field_error(error, "").partition(": ")
        shown = one_line(repr(values[names[name]]))
        raise ValueError(f"{names[name]}={shown}: {reason}") from error
    return row


def _add_turn(
    turns: dict[str, list[TurnRecord]], clusters: dict[str, str | None], row: _Row, column: str
) -> None:
    """Add a row to its problem, whose ``column`` holds ids."""
    name, known = row.id, clusters.get(row.id)
    found = turns.setdefault(name, [])
    if None not in (row.cluster, known) and row.cluster != known:
        raise ValueError(
            f"problem {name!r} has the clusters {known!r} and {row.cluster!r}; a problem belongs to"
            " one"
        )
    if found and row.turn is None:
        raise ValueError(
            f"{column} {name!r} is there twice; if its rows are turns, name their column with "
            "--columns turn=COLUMN, else give each problem an id of its own"
        )
    clusters[name] = known or row.cluster
    found.append(
        TurnRecord(
            turn=1 if row.turn is None else row.turn,
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
    )
