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

from svr_lightning.analysis.records import MAX_COUNT
from svr_lightning.analysis.results import Evaluation, read_evaluation, read_samples_file
from svr_lightning.analysis.table import RecordedProblem, TurnTable, turn_table
from svr_lightning.core.metrics import VERDICT_CODES
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import NO_SCORES, Verdict
from svr_lightning.errors import ConfigError, one_line, require
from svr_lightning.row_files import file_rows

EXAMPLE = "embedded:log"
"""The log that ships with the package: 189 problems with three turns each."""
LOG_COLUMNS = ("id", "confidence", "correct", "turn", "tokens", "cluster", "question", "dataset")
_REQUIRED = LOG_COLUMNS[:3]
_ROUNDING = 1e-9
"""By which another program's confidence may leave [0, 1]."""
_NUMBER = re.compile(
    r"([+-]?(?:[0-9]+(?:[.,][0-9]*)?|[.,][0-9]+)(?:e[+-]?[0-9]{1,3})?)\s*(%?)", re.I
)
_THOUSANDS = re.compile(r"[0-9]{1,3}([.,][0-9]{3})+")
_TRUTH = {"1": "0", "true": "false", "t": "f", "yes": "no", "y": "n", "on": "off"} | {
    "c": "i",
    "correct": "incorrect",
    "right": "wrong",
    "pass": "fail",
    "passed": "failed",
}
"""Words for right answers, and for wrong ones."""


class _Row(NamedTuple):
    id: str
    confidence: float
    correct: bool
    turn: int | None
    tokens: int
    cluster: str | None
    question: str | None
    dataset: str | None


def read_recording(path: Path, columns: Sequence[str] = ()) -> Evaluation:
    """Read the folder of an evaluation, or a file: its samples, or the log of another program.

    A log has one row for each turn. ``id`` names the problem, ``confidence`` is a number in [0, 1]
    or a percentage, ``correct`` a truth value such as 1, yes, PASS or C. ``turn`` numbers the rows
    of one problem from 0 or 1; without it, every problem has one row. ``tokens``, ``cluster``,
    ``question`` and ``dataset`` may be missing. A log has no verdicts, so its rule reads the
    confidence alone.

    Args:
        path: of the folder or file, or :data:`EXAMPLE`.
        columns: ``NAME=COLUMN`` for names of :data:`LOG_COLUMNS` that the log calls otherwise.

    Raises:
        ConfigError: naming the file, and the line or the record, that cannot be used.
    """
    if str(path) == EXAMPLE:
        path = Path(str(files("svr_lightning.tiny") / "log.csv"))
    if not path.is_file():
        require(not columns, f"{path}: no file; --columns names the columns of a log")
        _check_exists(path)
        return read_evaluation(path)
    names = _column_names(columns)
    problems: dict[tuple[str, str], list[_Row]] = {}
    places: list[str] = []
    held: set[str] = set()
    where = f"{path}: "
    try:
        for place, cells in file_rows(path):
            where = f"{path}{place}: "
            if isinstance(cells, dict) and {"turns", "returned_turn"} <= cells.keys():
                require(not columns, "this is a sample; --columns names the columns of a log")
                where = ""  # its faults name the file
                return read_samples_file(path)
            row = _row(cells, names)
            key = row.dataset or path.stem, row.id
            _add_turn(problems.setdefault(key, []), row, names["id"])
            places.append(place)
            held.update(_places(tuple(cells), tuple(names.items())).keys())
        where = f"{path}: "
        require(bool(problems), "there are no rows in it")
        for pair in columns:
            require(pair.partition("=")[0] in held, f"--columns {pair}: no row has this column")
        tables = _tables(problems)
    except ValueError as error:
        raise ConfigError(f"{where}{one_line(error)}") from error
    return Evaluation(
        samples=path,
        is_log=True,
        tables=tables,
        config={},
        stop=Confident(needs_correct=False),
        max_turns=max(table.max_turns for table in tables.values()),
        questions={
            key: next((row.question for row in rows if row.question), None)
            for key, rows in problems.items()
        },
        notes=_line_breaks(path, places),
    )


def _check_exists(path: Path) -> None:
    """Refuse a name of nothing, and show the name that may have been meant."""
    folder = path.parent
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    meant = difflib.get_close_matches(path.name, names, n=1)
    cure = "no evaluation; give a folder with a samples.jsonl, or a log"
    if meant:
        cure = f"did you mean {folder / meant[0]}?"
    require(path.exists(), f"{path}: no such file or folder, {cure}")


def _line_breaks(path: Path, places: Sequence[str]) -> tuple[str, ...]:
    """What to say of a text file whose rows have more lines than there are rows."""
    broken = [place for place in places if "-" in place]
    if not broken:
        return ()
    lines = re.split("[:-]", places[-1])[-1]
    return (
        f"{path}: {len(places)} rows of {lines} lines: line breaks stand within quotes, first in "
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
    names = dict(mapped)
    for name in LOG_COLUMNS:
        if name in _REQUIRED or name not in mapped.values():  # "question" may be mapped to id
            names.setdefault(name, name)
    for name, column in mapped.items():
        shared = [other for other in names if other != name and names[other] == column]
        require(not shared, f"--columns {name}={column}: this column is {''.join(shared[:1])}, too")
    return names


@lru_cache(maxsize=64)
def _places(header: tuple[Any, ...], names: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """The row's column for each name that it has; case and outer spaces matter only between two."""
    found = {}
    for name, column in names:
        like = [own for own in header if str(own).strip().casefold() == column.strip().casefold()]
        if column in header:
            found[name] = column
        elif len(like) == 1:
            found[name] = like[0]
    return found


# --- cells --------------------------------------------------------------------------------------


def _row(cells: Any, names: Mapping[str, str]) -> _Row:
    """A row's values. Raises ValueError naming the column and what may stand there."""
    if isinstance(cells, ValueError):
        raise cells
    if not isinstance(cells, dict):
        raise ValueError("the row is no object with columns")
    places = _places(tuple(cells), tuple(names.items()))
    texts = {name: _text(cells[column]) for name, column in places.items()}
    for name in _REQUIRED:
        if name not in texts:
            has = one_line(", ".join(map(str, cells)))
            raise ValueError(f"no {names[name]}; the row has {has}; see --columns")
        if texts[name] is None:
            raise ValueError(f"{places[name]} is empty; fill it in, or leave the row out")
    values: dict[str, Any] = {}
    for name in LOG_COLUMNS:
        text = texts.get(name)
        try:
            values[name] = text if text is None else _READ.get(name, str)(text)
        except ValueError as error:
            shown = one_line(repr(cells[places[name]]))
            raise ValueError(f"{places[name]}={shown}: {error}") from error
    values["tokens"] = values["tokens"] or 0
    return _Row(**values)


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
        raise ValueError("this is no number")
    digits, percent = match.groups()
    number = Decimal(digits.replace(",", "."))
    return number / 100 if percent else number


def _confidence(text: str) -> float:
    value = float(_number(text))
    if not -_ROUNDING <= value <= 1 + _ROUNDING:
        raise ValueError("give a number in [0, 1], or a percentage such as 85%")
    return min(max(value, 0.0), 1.0)


def _count(text: str) -> int:
    if _THOUSANDS.fullmatch(text):
        raise ValueError("write whole numbers without a mark between their digits")
    number = _number(text)
    if not 0 <= number <= MAX_COUNT or number % 1:
        raise ValueError(f"give a whole number from 0 to {MAX_COUNT}, or an empty cell")
    return int(number)


def _truth(text: str) -> bool:
    word = re.sub(r"\.0+$", "", text.casefold())
    if word in _TRUTH or word in _TRUTH.values():
        return word in _TRUTH
    raise ValueError("give 1 or 0, true or false, yes or no, pass or fail, C or I, on or off")


_READ: Mapping[str, Callable[[str], Any]] = {
    "confidence": _confidence,
    "correct": _truth,
    "turn": _count,
    "tokens": _count,
}


# --- tables -------------------------------------------------------------------------------------


def _add_turn(turns: list[_Row], row: _Row, column: str) -> None:
    """Add a row to its problem's, whose ``column`` holds ids. A cluster may be named once for all.

    Raises:
        ValueError: if the rows of one problem cannot be its turns.
    """
    if turns:
        earlier = turns[-1].cluster
        cluster = row.cluster or earlier
        if earlier not in (None, cluster):
            clusters = f"{earlier!r} and {cluster!r}"
            raise ValueError(f"problem {row.id!r} has the clusters {clusters}; a problem has one")
        if row.turn is None:
            raise ValueError(
                f"{column} {row.id!r} is there twice; if its rows are turns, name their column "
                "with --columns turn=COLUMN, else give each problem an id of its own"
            )
        row = row._replace(cluster=cluster)
    turns.append(row)


def _tables(problems: Mapping[tuple[str, str], list[_Row]]) -> dict[str, TurnTable]:
    """A table for each data set. Raises ValueError for turns that are not numbered throughout."""
    confidences = _as_written([row.confidence for rows in problems.values() for row in rows])
    zero_based = any(row.turn == 0 for rows in problems.values() for row in rows)
    datasets: dict[str, list[list[_Row]]] = {}
    for (dataset, name), rows in problems.items():
        cluster = rows[-1].cluster  # the last row of the file has what any row before it says
        turns = [row._replace(confidence=next(confidences), cluster=cluster) for row in rows]
        turns.sort(key=lambda row: row.turn or 0)
        for place, row in enumerate(turns, start=1):
            number = 1 if row.turn is None else row.turn + zero_based
            if number != place:
                first = 0 if zero_based else 1
                raise ValueError(
                    f"problem {name!r}: its turns must be numbered from {first}; found {row.turn}"
                )
        datasets.setdefault(dataset, []).append(turns)
    max_turns = max(map(len, problems.values()))
    return {dataset: _table(dataset, rows, max_turns) for dataset, rows in datasets.items()}


def _as_written(values: Sequence[float]) -> Iterator[float]:
    """Confidences; those of single precision as their shortest decimals.

    If a program keeps 0.9 in single precision and prints all digits, the log has
    0.8999999761581421, which no threshold of 0.9 accepts. Multiples of 1/4096 are left alone: they
    may be shares of votes.
    """
    exact = np.array(values)
    single = exact.astype(np.float32)
    if (single == exact).all() and (exact * 4096 % 1).any():
        return (float(str(value)) for value in single)
    return iter(values)


def _table(dataset: str, problems: Sequence[Sequence[_Row]], max_turns: int) -> TurnTable:
    """The columns of a data set, in which nothing has stopped.

    A turn has the verdict UNSURE, so that the confidence alone decides, and an answer that equals
    no other.
    """
    unsure = VERDICT_CODES[Verdict.UNSURE]
    recorded = []
    for rows in problems:
        turns = [
            (row.correct, unsure, row.confidence, False, place, *NO_SCORES, 0, row.tokens)
            for place, row in enumerate(rows, start=1)
        ]
        problem = RecordedProblem(
            id=rows[0].id,
            # A label that equals no other: no string equals a tuple.
            cluster=rows[-1].cluster or (rows[-1].id,),
            returned=len(rows),
            observed=len(rows),
            stopped_early=False,
            accepted=False,
            turns=np.array(turns, dtype=np.float64),
        )
        recorded.append(problem)
    return turn_table(dataset, recorded, None, max_turns)
