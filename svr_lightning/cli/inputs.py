"""Recordings and options that several commands take."""

import argparse
import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from svr_lightning.analysis.records import MAX_COUNT, SCHEMA_VERSION, AnyRecord, SampleRecord
from svr_lightning.analysis.results import (
    RESULTS,
    SAMPLES,
    certified_settings,
    read_results,
    read_tables,
    recorded_rule,
    samples_file,
    setting,
)
from svr_lightning.analysis.table import TurnTable, turn_tables
from svr_lightning.core.stopping import RULES, Confident, StopRule
from svr_lightning.errors import ConfigError, one_line, require
from svr_lightning.tasks import require_trusted

EVERY_TURN = "record every turn with --record"
LOG_COLUMNS = ("id", "turn", "confidence", "correct", "tokens", "cluster")
_EMPTY_PROBLEM = {
    **{"schema_version": SCHEMA_VERSION, "task": "log", "question": "", "reference": ""},
    "stopped_early": False,
}
_EMPTY_TURN = {
    **{"text": "", "answer": None, "verdict": "CORRECT", "truncated": False, "prompt_tokens": 0},
    "finish_reason": "stop",
}


@dataclass(frozen=True, kw_only=True)
class Recordings:
    """Evaluations of one policy, or another program's logs."""

    files: list[Path]
    tables: dict[str, TurnTable]
    """By data set; no data set is in two files."""
    configs: list[Mapping[str, Any]]
    """That the results files beside the samples quote; empty without one."""
    rule: StopRule
    """What stopped the policy; of a log, the confidence alone."""

    def gate(self) -> Confident:
        """The rule, which has a threshold.

        Raises:
            ConfigError: if it has none.
        """
        if isinstance(self.rule, Confident):
            return self.rule
        raise ConfigError(
            f"{self.files[0].parent / RESULTS}: its stopping rule, {self.rule}, has no threshold "
            "to choose; evaluate with one that has (model.evaluation.stop: Confident)"
        )

    @property
    def max_turns(self) -> int:
        """T_max: what the results files say; without one, the longest recorded trajectory."""
        stated = [setting(config, "protocol", "max_turns") for config in self.configs]
        known = [turns for turns in stated if isinstance(turns, int)]
        longest = max(table.correct.shape[1] for table in self.tables.values())
        return max(known) if known and len(known) == len(stated) else longest

    def beside(self, other: "Recordings") -> "Recordings":
        """This one, with the settings of both.

        Raises:
            ConfigError: if they stop at different rules.
        """
        rules = f"{self.rule} and {other.rule}"
        require(self.rule == other.rule, f"the recordings stop at {rules}; give those of one rule")
        tables = {**other.tables, **self.tables}
        configs = [*self.configs, *other.configs]
        return replace(self, tables=tables, configs=configs)

    def policy(self) -> str | None:
        """The policy that the results files name; None if they name none.

        Raises:
            ConfigError: if they name several.
        """
        paths = {setting(config, "model", "policy", "path") for config in self.configs}
        names = ", ".join(sorted(map(str, paths)))
        require(len(paths) == 1, f"the recordings are of several policies: {names}")
        return None if paths == {None} else names

    def settings(self) -> dict[str, Any]:
        """The settings that a certificate holds for.

        Raises:
            ConfigError: if the recordings differ in them.
        """
        try:
            own = [certified_settings(config, ()) for config in self.configs]
            require(
                all(one == own[0] for one in own),
                f"the recordings have different settings: {own}; give those of one",
            )
            sources = [
                source
                for config in self.configs
                for split in ("val", "test")
                for source in setting(config, "data", split) or []
            ]
            model = {"model": self.configs[0].get("model")}
            return certified_settings({**model, "data": {"val": sources}}, self.tables)
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigError(f"{RESULTS}: its configuration cannot be read ({error!r})") from error


def load_recordings(paths: Sequence[Path], columns: Sequence[str] | None = None) -> Recordings:
    """Read evaluations' folders or, with ``columns``, logs.

    Raises:
        ConfigError: naming the file, and the line or the record, that cannot be used; the data set
            that two files hold; or stopping rules that differ.
    """
    require(bool(paths), "give the folder of an evaluation: RUN/eval/NAME")
    if columns is not None:
        names = _column_names(columns)
        tables = _joined(paths, lambda path: {path.stem: _read_log(path, names)})
        rule = Confident(needs_correct=False)
        return Recordings(files=list(paths), tables=tables, configs=[{}], rule=rule)
    files = [samples_file(path) for path in paths]
    try:
        tables = _joined(files, lambda path: read_tables(path)[1])
    except ConfigError as error:
        raise ConfigError(f"{error}; another program's log needs --columns") from error
    results = [read_results(path.parent / RESULTS) for path in files]
    configs = [one.get("config", {}) for one in results]
    rules = {recorded_rule(config, path) for path, config in zip(files, configs, strict=True)}
    rule_names = " and ".join(sorted(map(str, rules)))
    require(len(rules) == 1, f"the recordings stop at {rule_names}; give those of one rule")
    return Recordings(files=files, tables=tables, configs=configs, rule=rules.pop())


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


def require_tokens(tables: Iterable[TurnTable]) -> None:
    """Raise ConfigError if a turn lacks its number of tokens."""
    counts = [(int(t.length.sum()), int((t.completion_tokens > 0).sum())) for t in tables]
    turns, counted = (sum(column) for column in zip(*counts, strict=True))
    require(
        counted == turns,
        f"the promise on tokens: {turns - counted} of {turns} turns have no tokens; name their "
        "column with --columns tokens=COLUMN",
    )


# --- another program's log ----------------------------------------------------------------------


def load_log(path: Path, columns: Sequence[str] = ()) -> TurnTable:
    """The turns of another program's log: JSON lines, csv or parquet with a row per turn.

    Args:
        path: of the log.
        columns: ``NAME=COLUMN`` for names of ``LOG_COLUMNS`` that the log calls otherwise. Rows of
            one problem are its turns, which are numbered by ``turn``; ``tokens`` and ``cluster``
            may be missing, and ``turn`` if every problem has one row.

    Raises:
        ConfigError: naming the file and the row that cannot be used.
    """
    return _read_log(path, _column_names(columns))


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


def _rows(path: Path) -> Iterator[Any]:
    """The rows of a file by its suffix.

    Raises:
        ValueError: if a row cannot be read.
    """
    if path.suffix == ".parquet":
        from pyarrow.parquet import read_table

        yield from read_table(path).to_pylist()
    elif path.suffix == ".csv":
        csv.field_size_limit(MAX_COUNT)
        with path.open(newline="", encoding="utf-8-sig") as stream:
            yield from csv.DictReader(stream)
    else:
        with path.open(encoding="utf-8-sig") as stream:
            yield from (json.loads(line) for line in stream if line.strip())


def _read_log(path: Path, names: Mapping[str, str]) -> TurnTable:
    turns: dict[str, list[dict[str, Any]]] = {}
    clusters: dict[str, str | None] = {}
    read = 0
    try:
        for row in _rows(path):
            _add_turn(turns, clusters, _log_values(row, names), names)
            read += 1
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{path}, row {read + 1}: {one_line(error)}") from error
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


def _add_turn(
    turns: dict[str, list[dict[str, Any]]],
    clusters: dict[str, str | None],
    values: Mapping[str, Any],
    names: Mapping[str, str],
) -> None:
    """Add a row to its problem. Raises ValueError with what is wrong."""
    name, cluster = values["id"], values["cluster"]
    known, found = clusters.get(name), turns.setdefault(name, [])
    if None not in (cluster, known) and cluster != known:
        raise ValueError(
            f"problem {name!r} has the clusters {known!r} and {cluster!r}; a problem belongs to one"
        )
    if found and values["turn"] is None:
        raise ValueError(
            f"{names['id']} {name!r} is there twice; if its rows are turns, name their column with "
            "--columns turn=COLUMN, else give each problem an id of its own"
        )
    clusters[name] = known or cluster
    turn = {"turn": values["turn"] or 1, "confidence": values["confidence"]}
    turn |= {"correct": values["correct"], "completion_tokens": values["tokens"] or 0}
    found.append({**_EMPTY_TURN, **turn})


def _log_values(row: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """A row's values by our names for its columns. Raises ValueError with what is wrong."""
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
        found = min(max(number, 0.0), 1.0) if -1e-9 <= number <= 1 + 1e-9 else None  # rounding
        wanted = "a number in [0, 1]"
    else:
        number, wanted = _number(text), "a whole number"
        found = int(number) if number.is_integer() and 0 <= number <= MAX_COUNT else None
        if name == "turn" and found == 0:
            found, wanted = None, "a turn's number, from 1"
    if found is None:
        raise ValueError(f"{column}={one_line(repr(value))} must be {wanted}")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


# --- questions for predict ----------------------------------------------------------------------


def read_questions(path: str) -> list[str]:
    """The questions of a text file, one per line, or of a ``.jsonl`` with "question" in each row.

    Raises:
        ConfigError: naming the file and the line that cannot be used.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"--questions {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--questions {path}: cannot be read as UTF-8 text ({error})") from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    require(bool(numbered), f"--questions {path}: there are no questions in it")
    if not path.endswith((".jsonl", ".json")):
        return [line for _, line in numbered]
    questions = []
    for number, line in numbered:
        try:
            question = json.loads(line)["question"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f'--questions {path}:{number}: must be a JSON object with "question"'
            ) from error
        require(
            isinstance(question, str) and bool(question.strip()),
            f'--questions {path}:{number}: "question" must be a text',
        )
        questions.append(question)
    return questions


# --- options ------------------------------------------------------------------------------------


def add_evaluations(parser: argparse.ArgumentParser) -> None:
    """The evaluations that a command reads, as ``options.evaluations``."""
    parser.add_argument(
        "evaluations",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help=f"folder of an evaluation, such as RUN/eval/test, with a {SAMPLES}",
    )


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
