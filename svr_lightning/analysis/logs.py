"""Another program's log as columns: a row per turn, in any format of ``row_files``.

What a cell means is read where it is unambiguous. Tested in tests/integration/test_other_logs.py.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from svr_lightning.analysis.results import Evaluation, read_evaluation, read_samples_file
from svr_lightning.analysis.table import RecordedProblem, TurnTable, turn_table
from svr_lightning.core.metrics import NO_VERDICT
from svr_lightning.core.ranges import MAX_COUNT
from svr_lightning.core.stopping import Confident, RepeatedAnswer
from svr_lightning.core.types import NO_SCORES
from svr_lightning.errors import ConfigError, one_line, require
from svr_lightning.row_files import file_rows

EXAMPLE = "embedded:log"
"""The log that ships with the package: 300 questions with five answers each."""
_ROUNDING = 1e-9
"""By how much another program's confidence may lie outside [0, 1]."""
_NUMBER = re.compile(
    r"([+-]?(?:[0-9]+(?:[.,][0-9]*)?|[.,][0-9]+)(?:e[+-]?[0-9]{1,3})?)\s*(%?)", re.I
)
_THOUSANDS = re.compile(r"[0-9]{1,3}([.,][0-9]{3})+")
_RIGHT = ("1", "true", "t", "yes", "y", "on", "c", "correct", "right", "pass", "passed")
_WRONG = ("0", "false", "f", "no", "n", "off", "i", "incorrect", "wrong", "fail", "failed")


class _Turn(NamedTuple):
    """A row of a log."""

    id: str
    correct: bool
    confidence: float | None
    answer: str | None
    turn: int | None
    tokens: int | None
    cluster: str | None
    question: str | None
    dataset: str | None


LOG_COLUMNS = _Turn._fields
_REQUIRED = LOG_COLUMNS[:3]
"""Beside answers a log needs no confidences."""


def read_recording(path: Path, columns: Sequence[str] = ()) -> Evaluation:
    """Read the folder of an evaluation, or a file: its samples, or the log of another program.

    A log has one row for each turn. ``id`` names the problem, ``correct`` is a truth value such as
    1, yes, PASS or C, ``confidence`` a number in [0, 1] or a percentage, and ``answer`` a text:
    there must be one of the two. ``turn`` numbers the rows of one problem from 0 or 1; without it,
    every problem has one row. ``tokens``, ``cluster``, ``question`` and ``dataset`` may be missing.
    A log has no verdicts, so its rule reads the confidence alone, or without one equal answers.

    Args:
        path: of the folder or file, or :data:`EXAMPLE`.
        columns: ``NAME=COLUMN`` for names of :data:`LOG_COLUMNS` that the log calls otherwise.

    Raises:
        ConfigError: naming the file, and the line or the record, that cannot be used.
    """
    if str(path) == EXAMPLE:
        path = Path(str(files("svr_lightning.tiny") / "log.csv"))
    if path.is_file():
        return _read_file(path, columns)
    require(not columns, f"{path} is no file; leave out --columns, which is for logs")
    names = [EXAMPLE, *(file.name for file in path.parent.glob("*"))]
    meant = difflib.get_close_matches(path.name, names, n=1)
    cure = "give a folder with a samples.jsonl, or a log"
    if meant:
        cure = f"did you mean {path.parent / meant[0]}?"
    require(path.exists(), f"{path}: no such file or folder; {cure}")
    return read_evaluation(path)


def _read_file(path: Path, columns: Sequence[str]) -> Evaluation:
    names = _column_names(columns)
    problems: dict[tuple[str, str], list[_Turn]] = {}
    places: list[str] = []
    scales: set[bool] = set()
    missing = {pair.partition("=")[0]: pair for pair in columns}
    where = f"{path}: "
    try:
        for place, cells in file_rows(path):
            where = f"{path}{place}: "
            if isinstance(cells, dict) and {"turns", "returned_turn"} <= cells.keys():
                require(not columns, "this is no log but a sample; leave out --columns")
                where = ""  # its faults name the file
                return read_samples_file(path)
            header, turn = _read(cells, names)
            if turn.confidence:  # 0 is 0%
                scales.add("%" in str(cells[header["confidence"]]))
            require(len(scales) < 2, "confidences with % and without; write all in one way")
            turns = problems.setdefault((turn.dataset or path.stem, turn.id), [])
            if turns and turn.turn is None:
                raise ValueError(
                    f"{names['id']} {turn.id!r} occurs twice; if its rows are turns, name their "
                    "column with --columns turn=COLUMN, else give each problem an id of its own"
                )
            turns.append(turn)
            places.append(place)
            for name in header:
                missing.pop(name, None)
        where = f"{path}: "
        require(bool(problems), "it has no rows")
        require(not missing, f"--columns {' '.join(missing.values())}: no row has this column")
        notes = _line_breaks(path, places)
        tables = _tables(problems)
        stated = any(table.has_checks for table in tables.values())
    except ValueError as error:
        raise ConfigError(f"{where}{one_line(error)}") from error
    return Evaluation(
        samples=path,
        is_log=True,
        tables=tables,
        config={},
        notes=notes,
        stop=Confident(needs_correct=False) if stated else RepeatedAnswer(in_a_row=False),
        questions={
            key: next((turn.question for turn in turns if turn.question), None)
            for key, turns in problems.items()
        },
    )


def _line_breaks(path: Path, places: Sequence[str]) -> tuple[str, ...]:
    """A note on a text file with more lines than rows, which an open quote may have merged."""
    broken = [place for place in places if "-" in place]
    if not broken:
        return ()
    lines = re.split("[:-]", places[-1])[-1]
    return (
        f"{path}: {len(places)} rows of {lines} lines: line breaks within quotes, first in "
        f"{broken[0]}. If no cell should hold one, a quote is left open there, and rows are lost",
    )


# --- columns ------------------------------------------------------------------------------------


def _column_names(columns: Sequence[str]) -> dict[str, str]:
    """The column of each name: the mapped one, else the one of that name."""
    mapped: dict[str, str] = {}
    for pair in columns:
        name, _, column = pair.partition("=")
        require(
            name in LOG_COLUMNS and bool(column) and name not in mapped,
            f"--columns {pair}: give NAME=COLUMN with NAME one of {', '.join(LOG_COLUMNS)}, each "
            "once",
        )
        mapped[name] = column
    # After id=question there is no question.
    own = [name for name in LOG_COLUMNS if name in _REQUIRED or name not in mapped.values()]
    names = {name: name for name in own} | mapped
    for name, column in mapped.items():
        for other in names:
            require(
                other == name or names[other] != column,
                f"--columns {name}={column}: this is the column of {other}, too",
            )
    return names


@lru_cache(maxsize=64)
def _header(columns: tuple[Any, ...], names: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """The row's column for each name. Case and outer spaces count only where two would match."""
    header = {}
    for name, column in names:
        like = [one for one in columns if str(one).strip().casefold() == column.strip().casefold()]
        if column in columns:
            header[name] = column
        elif len(like) == 1:
            header[name] = like[0]
    return header


# --- cells --------------------------------------------------------------------------------------


def _read(cells: Any, names: Mapping[str, str]) -> tuple[dict[str, Any], _Turn]:
    """A row's columns and values. Raises ValueError naming the column and what it may hold."""
    if isinstance(cells, ValueError):
        raise cells
    require(isinstance(cells, dict), "the row is not an object with columns")
    header = _header(tuple(cells), tuple(names.items()))
    values: dict[str, Any] = dict.fromkeys(LOG_COLUMNS)
    required = _REQUIRED[:2] if "answer" in header else _REQUIRED
    for name in LOG_COLUMNS:
        if name in header:
            cell = cells[header[name]]
            text = _text(cell)
            try:
                values[name] = text if text is None else _READ.get(name, str)(text)
            except ValueError as error:
                raise ValueError(f"{header[name]}={one_line(repr(cell))}: {error}") from error
        if values[name] is None and name in required:
            if name in header:
                raise ValueError(f"{header[name]} is empty; fill it in, or leave the row out")
            has = one_line(", ".join(map(str, cells)))
            raise ValueError(
                f"no column {names[name]!r}; the row has {has}; name it with --columns"
            )
    return header, _Turn(**values)


def _text(cell: Any) -> str | None:
    """A cell's text; None for nothing: an empty cell, null, or the NaN of pandas.

    A name such as NA or None is a name.
    """
    if cell is None or cell != cell:
        return None
    if isinstance(cell, float) and cell.is_integer():  # of a column that has empty cells, too
        cell = int(cell)
    return str(cell).strip() or None


def _number(text: str) -> Decimal:
    """A number, maybe with a decimal comma or a percent sign."""
    match = _NUMBER.fullmatch(text) if len(text) < 100 else None
    if match is None:
        raise ValueError("this is not a number")
    digits, percent = match.groups()
    number = Decimal(digits.replace(",", "."))
    return number / 100 if percent else number


def _confidence(text: str) -> float:
    value = float(_number(text))
    require(
        -_ROUNDING <= value <= 1 + _ROUNDING, "give a number in [0, 1], or a percentage such as 85%"
    )
    return min(max(value, 0.0), 1.0)


def _count(text: str) -> int:
    if _THOUSANDS.fullmatch(text):
        raise ValueError("write whole numbers without a mark between their digits")
    number = _number(text)
    require(
        0 <= number <= MAX_COUNT and number % 1 == 0,
        f"give a whole number from 0 to {MAX_COUNT}, or an empty cell",
    )
    return int(number)


def _truth(text: str) -> bool:
    word = re.sub(r"\.0+$", "", text.casefold())
    require(
        word in _RIGHT + _WRONG,
        "give 1 or 0, true or false, yes or no, pass or fail, C or I, on or off",
    )
    return word in _RIGHT


_READ: Mapping[str, Callable[[str], Any]] = {
    "confidence": _confidence,
    "correct": _truth,
    "turn": _count,
    "tokens": _count,
}


# --- tables -------------------------------------------------------------------------------------


def _tables(problems: Mapping[tuple[str, str], Sequence[_Turn]]) -> dict[str, TurnTable]:
    """A table for each data set, in which nothing has stopped.

    Raises:
        ValueError: if the rows of one problem cannot be its turns.
    """
    every = [turn for turns in problems.values() for turn in turns]
    confidences = _as_written([turn.confidence for turn in every])
    first = 1 - any(turn.turn == 0 for turn in every)
    answered = any(turn.answer for turn in every)
    datasets: dict[str, list[RecordedProblem]] = {}
    for (dataset, name), rows in problems.items():
        clusters = list(dict.fromkeys(row.cluster for row in rows if row.cluster))
        if len(clusters) > 1:
            several = " and ".join(map(repr, clusters))
            raise ValueError(f"problem {name!r} has the clusters {several}; a problem has one")
        turns = [row._replace(confidence=next(confidences)) for row in rows]
        turns.sort(key=lambda turn: turn.turn or 0)
        answers = [turn.answer for turn in turns]
        columns = []
        for number, turn in enumerate(turns, start=1):
            place = number - 1 + first
            if turn.turn not in (None, place):
                found = f"found {turn.turn} instead of {place}"
                raise ValueError(
                    f"problem {name!r}: its turns must be numbered from {first}; {found}"
                )
            judged = (turn.correct, NO_VERDICT, turn.confidence)
            # Where answers are known, an empty one cannot be read; elsewhere none are equal.
            answer = number
            if answered:
                answer = answers.index(turn.answer) + 1 if turn.answer else 0
            columns.append((*judged, False, answer, *NO_SCORES, 0, turn.tokens or 0))
        problem = RecordedProblem(
            id=name,
            # A label that equals no other: no string equals a tuple.
            cluster=clusters[0] if clusters else (name,),
            returned=len(turns),
            observed=len(turns),
            stopped_early=False,
            accepted=False,
            turns=np.array(columns, dtype=np.float64),
        )
        datasets.setdefault(dataset, []).append(problem)
    max_turns = max(map(len, problems.values()))
    return {name: turn_table(name, part, None, max_turns) for name, part in datasets.items()}


def _as_written(values: Sequence[float | None]) -> Iterator[float]:
    """Confidences, nan where there is none; those of a narrow type as the decimals that were kept.

    If a program keeps 0.9 in single precision and prints all digits, the log has
    0.8999999761581421, which no threshold of 0.9 accepts; in half precision, if all values are
    hundredths, it has 0.89990234375.
    """
    kept: Any = np.array(values, float)
    known = kept[~np.isnan(kept)]
    if (known.round(2).astype(np.float16) == known).all():
        kept = kept.round(2)
    elif (known.astype(np.float32) == known).all():
        kept = kept.astype(np.float32)
    return map(float, map(str, kept))
