"""Samples files and options that several commands take."""

import argparse
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from svr_lightning.analysis.records import MAX_COUNT, SCHEMA_VERSION, AnyRecord, SampleRecord
from svr_lightning.analysis.results import (
    RESULTS,
    SAMPLES,
    certified_settings,
    read_results,
    read_tables,
    setting,
)
from svr_lightning.analysis.table import TurnTable, turn_tables
from svr_lightning.core.stopping import RULES, StopRule
from svr_lightning.errors import ConfigError, one_line, require
from svr_lightning.tasks import require_trusted

LOG_COLUMNS = ("id", "turn", "confidence", "correct", "tokens", "cluster")
_EMPTY_PROBLEM = {
    **{"schema_version": SCHEMA_VERSION, "task": "log", "question": "", "reference": ""},
    "stopped_early": False,
}
_EMPTY_TURN = {
    **{"text": "", "answer": None, "verdict": "CORRECT", "truncated": False, "prompt_tokens": 0},
    "finish_reason": "stop",
}


def add_evaluations(parser: argparse.ArgumentParser) -> None:
    """The evaluations that a command reads, as ``options.evaluations``."""
    parser.add_argument(
        "evaluations",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help=f"folder of an evaluation, such as RUN/eval/test, with a {SAMPLES}",
    )


def samples_files(evaluations: Sequence[Path]) -> list[Path]:
    """The samples file of each evaluation; a path to such a file, or to a log, stands for itself.

    Raises:
        ConfigError: naming a folder without samples, or a path that is not there.
    """
    found = [path / SAMPLES if path.is_dir() else path for path in evaluations]
    for given, file in zip(evaluations, found, strict=True):
        require(
            file.is_file(),
            f"{given}: there is no {SAMPLES} in it; give an evaluation's folder: RUN/eval/test"
            if given.is_dir()
            else f"{given}: there is no such folder; give an evaluation's folder: RUN/eval/test",
        )
    return found


def add_stop_option(parser: argparse.ArgumentParser) -> None:
    """``--stop RULE`` and ``--stop.OPTION VALUE``, spelled as below ``model.evaluation``."""
    parser.add_argument(
        "--stop", choices=sorted(RULES), metavar="RULE", help=f"when to stop: {', '.join(RULES)}"
    )
    readers: dict[str, Callable[[str], Any]] = {}
    rules: dict[str, list[str]] = {}
    for name, rule in RULES.items():
        for field in fields(rule):  # type: ignore[arg-type]
            readers[field.name] = _READERS[type(field.default)]
            rules.setdefault(field.name, []).append(f"{name} (default {field.default})")
    for name, reader in readers.items():
        parser.add_argument(
            f"--stop.{name}", type=reader, metavar="VALUE", help=f"of {', '.join(rules[name])}"
        )


def stop_of(options: argparse.Namespace) -> StopRule | None:
    """The rule that the options of :func:`add_stop_option` name; None if they name none.

    Raises:
        ConfigError: for an option without a rule, of another rule, or out of range.
    """
    given = {
        name.removeprefix("stop."): value
        for name, value in vars(options).items()
        if name.startswith("stop.") and value is not None
    }
    if options.stop is None:
        require(not given, f"--stop.{next(iter(given), '')}: name its rule too, --stop Confident")
        return None
    known = [field.name for field in fields(RULES[options.stop])]  # type: ignore[arg-type]
    for name in given:
        has = ", ".join(known)
        require(name in known, f"--stop.{name}: {options.stop} has no such option; it has {has}")
    rule = RULES[options.stop](**given)
    try:
        rule.check()
    except ValueError as error:
        raise ConfigError(f"--stop {options.stop}: {error}") from error
    return rule


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text} must be true or false")
    return text.lower() == "true"


_READERS: Mapping[type, Callable[[str], Any]] = {bool: _boolean, int: int, float: float, str: str}


def load_tables(paths: Sequence[Path]) -> dict[str, TurnTable]:
    """The turns of samples files, one table per data set.

    Raises:
        ConfigError: naming the file, and the line or the record, that cannot be used; or the data
            set that two files hold.
    """
    return _joined(paths, lambda path: read_tables(path)[1])


def _joined(
    paths: Sequence[Path], read: Callable[[Path], Mapping[str, TurnTable]]
) -> dict[str, TurnTable]:
    tables: dict[str, TurnTable] = {}
    for path in paths:
        found = read(path)
        if twice := sorted(found.keys() & tables.keys()):
            raise ConfigError(
                f"{path}: data set {twice[0]!r} is in another of the files too; give one of them"
            )
        tables |= found
    return tables


def load_log(paths: Sequence[Path], columns: Sequence[str]) -> dict[str, TurnTable]:
    """The turns of another program's logs: JSON lines, csv or parquet with a row per turn.

    Args:
        paths: a data set each, named like its file.
        columns: ``NAME=COLUMN`` for names of ``LOG_COLUMNS`` that the log calls otherwise. A
            problem's rows are its turns in order; ``turn``, ``tokens`` and ``cluster`` may be
            missing.

    Raises:
        ConfigError: naming the file and the row that cannot be used, or the name of two files.
    """
    names = dict(zip(LOG_COLUMNS, LOG_COLUMNS, strict=True))
    for pair in columns:
        name, _, column = pair.partition("=")
        require(
            name in names and bool(column),
            f"--columns {pair}: give NAME=COLUMN with NAME one of {', '.join(LOG_COLUMNS)}",
        )
        names[name] = column
    return _joined(paths, lambda path: {path.stem: _read_log(path, names)})


def load_recordings(paths: Sequence[Path], columns: Sequence[str] | None) -> dict[str, TurnTable]:
    """The turns of samples files or, with ``columns``, of logs.

    Raises:
        ConfigError: as :func:`load_tables` and :func:`load_log` do.
    """
    if columns is not None:
        return load_log(paths, columns)
    try:
        return load_tables(paths)
    except ConfigError as error:
        raise ConfigError(f"{error}; another program's log needs --columns") from error


def require_score(tables: Mapping[str, TurnTable], score: str) -> None:
    """Raise ConfigError if no turn has the score."""
    turns = (turn for table in tables.values() for turns in table.signals for turn in turns)
    require(
        any(getattr(turn, score) is not None for turn in turns),
        f"--score {score}: the samples hold no {score!r}; record it, or take another score",
    )


def require_tokens(tables: Sequence[TurnTable]) -> None:
    """Raise ConfigError if a turn lacks its number of tokens."""
    turns_made = sum(int(table.length.sum()) for table in tables)
    counted = sum(int((table.completion_tokens > 0).sum()) for table in tables)
    require(
        counted == turns_made,
        f"the promise on tokens: {turns_made - counted} of {turns_made} turns have no tokens; name "
        "their column with --columns tokens=COLUMN",
    )


def _read_log(path: Path, names: Mapping[str, str]) -> TurnTable:
    from svr_lightning.training.row_files import file_rows

    turns: dict[str, list[dict[str, Any]]] = {}
    clusters: dict[str, str | None] = {}
    try:
        rows = file_rows(path)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    for row in rows:
        try:
            values = _log_values(row.value, names)
        except ValueError as error:
            raise ConfigError(f"{path.parent}/{row.where}: {error}") from error
        found = turns.setdefault(values["id"], [])
        cluster, known = values["cluster"], clusters.get(values["id"])
        require(
            None in (cluster, known) or cluster == known,
            f"{path.parent}/{row.where}: problem {values['id']!r} has the clusters {known!r} and "
            f"{cluster!r}; a problem belongs to one",
        )
        clusters[values["id"]] = known or cluster
        turn = {"turn": values["turn"] or len(found) + 1, "confidence": values["confidence"]}
        turn |= {"correct": values["correct"], "completion_tokens": values["tokens"] or 0}
        found.append({**_EMPTY_TURN, **turn})
    records = []
    for name, one in turns.items():
        problem = {"dataset": path.stem, "id": name, "cluster": clusters[name]}
        line = {**_EMPTY_PROBLEM, **problem, "returned_turn": len(one), "turns": one}
        try:
            records.append(SampleRecord.from_json(line))
        except ValueError as error:
            raise ConfigError(f"{path}, problem {name!r}: {error}") from error
    require(bool(records), f"{path}: there are no rows in it")
    return turn_tables(records)[path.stem]


def _log_values(row: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """A row's values by our names for its columns. Raises ValueError with what is wrong."""
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError("the row is no object with columns")
    values = {name: _log_value(name, column, row.get(column)) for name, column in names.items()}
    absent = [names[one] for one in ("id", "confidence", "correct") if values[one] is None]
    if absent:
        has = ", ".join(map(str, row))
        raise ValueError(f"no {', '.join(absent)}; the row has {one_line(has)}; see --columns")
    return values


_LABELS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


def _log_value(name: str, column: str, value: Any) -> Any:
    """One value of a log: a csv holds text, and a table made by pandas floats, NaN for nothing."""
    text = "" if value is None else str(value).strip()
    if text in ("", "nan", "NaN"):
        return None
    if name in ("id", "cluster"):
        return text
    if name == "correct":
        found: Any = _LABELS.get(text.lower())
        wanted = "true, false, 1 or 0"
    elif name == "confidence":
        number = _number(text)
        found, wanted = number if 0 <= number <= 1 else None, "a number in [0, 1]"
    else:
        number, wanted = _number(text), "a whole number"
        found = int(number) if number.is_integer() and 0 <= number <= MAX_COUNT else None
    if found is None:
        raise ValueError(f"{column}={one_line(repr(value))} must be {wanted}")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def run_configs(paths: Sequence[Path]) -> list[Mapping[str, Any]]:
    """The configurations that the results files beside samples files quote."""
    return [read_results(path.parent / RESULTS).get("config", {}) for path in paths]


def recorded_policy(configs: Sequence[Mapping[str, Any]]) -> str | None:
    """The policy that results files name; None if they name none.

    Raises:
        ConfigError: if they name several.
    """
    paths = {setting(config, "model", "policy", "path") for config in configs}
    told = ", ".join(sorted(map(str, paths)))
    require(len(paths) == 1, f"--samples, --report-on: of several policies: {told}")
    return None if paths == {None} else told


def recorded_settings(
    configs: Sequence[Mapping[str, Any]], datasets: Collection[str]
) -> dict[str, Any]:
    """The settings of recordings that a certificate holds for.

    Raises:
        ConfigError: if the recordings differ in them.
    """
    sources = [
        source
        for config in configs
        for split in ("val", "test")
        for source in setting(config, "data", split) or []
    ]
    try:
        own = [certified_settings(config, ()) for config in configs]
        require(
            all(one == own[0] for one in own),
            f"--samples, --report-on: recorded with different settings: {own}; give those of one",
        )
        model = {"model": configs[0].get("model")}
        return certified_settings({**model, "data": {"val": sources}}, datasets)
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{RESULTS}: its configuration cannot be read ({error!r})") from error


def recorded_turns(tables: Mapping[str, TurnTable], configs: Sequence[Mapping[str, Any]]) -> int:
    """T_max: what the results files say; without one, the longest recorded trajectory."""
    stated = [setting(config, "protocol", "max_turns") for config in configs]
    known = [turns for turns in stated if isinstance(turns, int)]
    longest = max(table.correct.shape[1] for table in tables.values())
    return max(known) if known and len(known) == len(stated) else longest


def above_zero(most: float) -> Callable[[str], float]:
    """An option's value above 0 and at most ``most``."""

    def value(text: str) -> float:
        if not 0 < float(text) <= most or math.isinf(float(text)):
            upper = "" if math.isinf(most) else f" and at most {most:g}"
            raise argparse.ArgumentTypeError(f"{text} must be above 0{upper}")
        return float(text)

    return value


def real(text: str) -> float:
    """An option's value that others can be compared with."""
    if math.isnan(float(text)):
        raise argparse.ArgumentTypeError(f"{text} is no number")
    return float(text)


def share(text: str) -> float:
    """An option's value between 0 and 1: either of them promises nothing, or what cannot be."""
    if not 0 < float(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be above 0 and below 1")
    return float(text)


def folder(text: str) -> Path:
    """An option's folder that has to be there."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such folder")
    return Path(text)


def add_task_option(parser: argparse.ArgumentParser) -> None:
    """``--task``, which allows a command that grades to run a task outside this package."""
    parser.add_argument(
        "--task",
        action="append",
        default=[],
        metavar="CLASS",
        help="class path of a task outside svr_lightning that the command may run",
    )


def require_trusted_tasks(
    file: Path, records: Sequence[AnyRecord], options: argparse.Namespace
) -> None:
    """Raise ConfigError if a record names a task that ``--task`` does not allow."""
    try:
        require_trusted([record.task for record in records], options.task)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error
