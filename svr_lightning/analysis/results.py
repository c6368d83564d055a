"""The files of an evaluation: ``samples.jsonl``, ``results.json``, its journal.

Every number of the results is computed from the samples.
"""

import json
import os
import platform
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import svr_lightning
from svr_lightning.analysis.metrics import measure_all
from svr_lightning.analysis.operating_point import read_operating_point, unsent
from svr_lightning.analysis.records import SampleRecord
from svr_lightning.analysis.table import TurnTable, turn_tables
from svr_lightning.core.stopping import StopRule, is_own, rule_from_config
from svr_lightning.errors import ConfigError, as_config_error, require
from svr_lightning.files import to_json, write_aside, write_file
from svr_lightning.row_files import file_rows
from svr_lightning.tasks import TASKS, get_task

SAMPLES = "samples.jsonl"
RESULTS = "results.json"
DECODING = ("temperature", "top_p", "top_k", "fresh_turns", "greedy_check")
"""The settings of ``model.evaluation`` that a certificate holds for."""
_DEPENDENCIES = ("torch", "lightning", "transformers", "torchmetrics", "sympy")


# --- reading: every line is checked, and a wrong one is named ------------------------------------


def read_samples(path: str | os.PathLike[str]) -> Iterator[SampleRecord]:
    """Read a samples file, one record at a time.

    Raises:
        ConfigError: naming the file and the line that is not a record or repeats one.
    """
    path = Path(path)
    places: dict[tuple[str, str], str] = {}
    place = ""
    try:
        for place, value in file_rows(path):
            record = SampleRecord.from_json(value)
            if (first := places.setdefault(record.key, place)) != place:
                raise ValueError(f"repeats {'/'.join(record.key)} of {path.name}{first}")
            yield record
    except (ValueError, RecursionError) as error:
        cure = "; fix or remove the line" if place else ""
        raise ConfigError(f"{path}{place}: {error}{cure}") from error


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One samples file, and what the results file beside it says; or another program's log."""

    samples: Path
    tables: Mapping[str, TurnTable]
    """The recorded turns of each data set, by name."""
    config: Mapping[str, Any]
    """The run's configuration; empty without a results file."""
    stop: StopRule | str
    """What stops the policy: the paper's rule where no configuration is quoted; the class path of
    a rule outside of this package, which is not imported."""
    questions: Mapping[tuple[str, str], str | None]
    """Each problem's question, as far as it is known, by data set and id."""
    notes: tuple[str, ...] = ()
    """What a reader of its numbers should know: one line each."""
    is_log: bool = False
    """Whether another program recorded it."""

    @property
    def max_turns(self) -> int:
        """T_max: what the configuration says; without it, the longest recorded trajectory."""
        return max(table.max_turns for table in self.tables.values())

    @property
    def folder(self) -> Path:
        """Where what is made of it goes: beside it, but not into this package."""
        shipped = self.samples.is_relative_to(Path(svr_lightning.__file__).parent)
        return Path() if shipped else self.samples.parent

    @property
    def records(self) -> Iterator[SampleRecord]:
        """Its records with their texts, read from the file again."""
        return read_samples(self.samples)

    @property
    def names(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """What identifies each problem: its id, and its question if few other problems have it.

        A question may have several answers. One that a tenth of the problems have identifies none.
        """
        asked = Counter(self.questions.values())
        few = max(1, len(self.questions) // 10)
        names = {}
        for dataset, table in self.tables.items():
            for problem in table.ids:
                name = problem if self.is_log else f"{dataset}/{problem}"
                question = self.questions[dataset, problem]
                own = (question,) if question and asked[question] <= few else ()
                names[dataset, problem] = (name, *own)
        return names

    @property
    def calibration_note(self) -> str | None:
        """That its policy's certificate was calibrated on some of its problems; None if not."""
        path = setting(self.config, "model", "policy", "path")
        certificate = read_operating_point(path) if isinstance(path, str) else None
        return None if certificate is None else certificate.calibration_note(self.names)

    @property
    def how_to_have_all_turns(self) -> str:
        """What to do if a rule needs turns that are not there."""
        if self.is_log:
            return "a log needs all turns up to T_max, also those after its program has stopped"
        return "record every turn with --record"

    @property
    def rule(self) -> StopRule:
        """What stops the policy.

        Raises:
            ConfigError: if it is a class outside of this package, which cannot be replayed.
        """
        if isinstance(self.stop, str):
            raise ConfigError(
                f"{self.samples.parent / RESULTS}: the stopping rule {self.stop} is code outside "
                "svr_lightning, which is not run; evaluate with one of svr_lightning's rules"
            )
        return self.stop

    @property
    def privileged(self) -> bool:
        """Whether prompts showed labels."""
        return setting(self.config, "protocol", "privileged") is True

    @property
    def independent(self) -> bool:
        """Whether turns are fresh, so that a majority of them can be formed."""
        return setting(self.config, "model", "evaluation", "fresh_turns") is True


def read_evaluation(folder: Path) -> Evaluation:
    """The evaluation of a folder.

    Raises:
        ConfigError: naming the file, and the line or the record, that cannot be used; or of a
            folder that is no evaluation those inside of it that are.
    """
    samples = folder / SAMPLES
    inside = sorted(str(file.parent) for file in folder.glob(f"eval/*/{SAMPLES}"))
    hint = f"give one of {', '.join(inside[:6])}" if inside else f"give a folder with a {SAMPLES}"
    require(samples.is_file(), f"{folder}: no evaluation; {hint}")
    return read_samples_file(samples)


def read_samples_file(samples: Path) -> Evaluation:
    """The evaluation of a samples file, with the configuration that results beside it quote.

    Raises:
        ConfigError: naming the file, and the line or the record, that cannot be used.
    """
    results = samples.parent / RESULTS
    try:
        content = json.loads(results.read_bytes()) if results.is_file() else {}
        to_json(content)  # a certificate quotes it, which takes more levels than reading
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{results}: cannot be read as results ({error}); correct or remove it"
        ) from error
    require(
        isinstance(content, dict),
        f"{results}: holds a list or a value instead of results; remove it",
    )
    config = section(content, "config")
    path = setting(config, "model", "evaluation", "stop", "class_path")
    if isinstance(path, str) and not is_own(path):
        stop: StopRule | str = path
    else:
        with as_config_error(f"{results}: model.evaluation."):
            stop = rule_from_config(section(config, "model", "evaluation"))
    max_turns = setting(config, "protocol", "max_turns")
    if not isinstance(max_turns, int):
        max_turns = None
    adaptive = setting(config, "protocol", "adaptive") is not False
    questions: dict[tuple[str, str], str | None] = {}

    def records() -> Iterator[SampleRecord]:
        for record in read_samples(samples):
            questions[record.key] = record.question
            yield record

    try:
        tables = turn_tables(records(), stop if adaptive else None, max_turns)
    except ConfigError:
        raise  # it names the line
    except ValueError as error:
        raise ConfigError(f"{samples}: {error}") from error
    require(bool(tables), f"{samples}: it has no samples; evaluate something first")
    return Evaluation(
        samples=samples,
        tables=tables,
        config=config,
        stop=stop,
        questions=questions,
    )


# --- writing ------------------------------------------------------------------------------------


def write_results(
    folder: str | os.PathLike[str],
    records: Sequence[SampleRecord],
    config: Mapping[str, Any],
    versions: Mapping[str, Any],
) -> dict[str, Any]:
    """Write ``samples.jsonl``, one line per problem, then ``results.json``.

    Samples are written first, so that they are kept even if they cannot be summarized. What is not
    finite becomes null; what JSON does not know becomes a string.

    Returns:
        The content of ``results.json``.

    Raises:
        ValueError: naming a turn without a label; the samples are on disk then.
        OSError: if a file cannot be written; what was there before the write that failed stays.
    """
    write_samples(folder, records)
    results = measure_all(turn_tables(records))
    results |= {"config": dict(config), "versions": dict(versions)}
    text = to_json(results, indent=2)
    write_file(Path(folder) / RESULTS, [text, "\n"])
    for left in Path(folder).glob(".*.writing"):  # by a process that was killed
        left.unlink(missing_ok=True)
    restored: dict[str, Any] = json.loads(text)
    return restored


def write_samples(folder: str | os.PathLike[str], records: Sequence[SampleRecord]) -> None:
    """Write only ``samples.jsonl``, for records without labels; remove results of other samples."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    aside = write_aside(folder / SAMPLES, (record.line for record in records))
    (folder / RESULTS).unlink(missing_ok=True)
    os.replace(aside, folder / SAMPLES)


def setting(config: Mapping[str, Any], *keys: str) -> Any:
    """A value under nested keys of a configuration; None if it is not there."""
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def section(values: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """The mapping under nested keys; empty if there is none."""
    value = setting(values, *keys)
    return value if isinstance(value, Mapping) else {}


def certified_settings(
    config: Mapping[str, Any], datasets: Collection[str] | None = None
) -> dict[str, Any]:
    """The settings that a certificate holds for, beside rule and T_max, as far as they are known.

    Args:
        config: of an evaluation, as results files quote it.
        datasets: those that count; None for all of validation and test.

    Returns:
        :data:`DECODING`, what requests to a server leave of them ``unsent``, its ``model_name``,
        and ``chat_template_kwargs``; of data sets ``task``, and where it is stated
        or the task is this package's ``max_completion_tokens``, each a list if they differ.

    Raises:
        ConfigError: if the configuration cannot be read.
    """
    evaluation = section(config, "model", "evaluation")
    settings = {name: evaluation[name] for name in DECODING if name in evaluation}
    engine = section(config, "model", "engine", "init_args")
    if settings:
        settings["unsent"] = unsent(section(engine, "fields"))
    for place, name in (
        (engine, "model_name"),
        (section(config, "model", "policy"), "chat_template_kwargs"),
    ):
        if place.get(name) is not None:
            settings[name] = place[name]
    limits: dict[str, set[int]] = {}
    data = section(config, "data")
    most = evaluation.get("max_completion_tokens")
    try:
        for source in (*(data.get("val") or ()), *(data.get("test") or ())):
            task, limit = source["task"], source.get("max_completion_tokens")
            chosen = datasets is None or source["name"] in datasets
            if chosen and isinstance(task, str):
                of_task = limits.setdefault(task, set())
                if limit or task in TASKS:  # others would be imported
                    of_task.add(applied_limit(task, limit, most))
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{RESULTS}: its configuration cannot be read ({error!r})") from error
    if limits:
        settings["task"] = _one_or_all(limits)
    if known := set().union(*limits.values()):
        settings["max_completion_tokens"] = _one_or_all(known)
    return settings


def _one_or_all(values: Collection[Any]) -> Any:
    return next(iter(values)) if len(values) == 1 else sorted(values)


def applied_limit(task: str, limit: int | None, most: int | None) -> int:
    """A data set's completion limit in tokens: ``limit``, else its task's, at most ``most``."""
    limit = limit or get_task(task).max_completion_tokens
    return limit if most is None else min(limit, most)


def package_versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    return {
        "svr_lightning": svr_lightning.__version__,
        **{name: version(name) for name in _DEPENDENCIES},
        "python": platform.python_version(),
    }


# --- the journal --------------------------------------------------------------------------------


class Journal:
    """The finished problems of one process, so that a killed evaluation continues where it was.

    The first line of the file is a fingerprint of all that decides a record; every other line is
    the record of one problem. A journal of another fingerprint starts over. Every line is handed to
    the system in one piece before its record is used; everything from the first line that is not a
    record, such as the torn one that a kill leaves, is cut off.

    Args:
        path: of the file; it and its folder are made if need be.
        fingerprint: equal if and only if the same evaluation would give the same records.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path = path
        self.entries: dict[tuple[str, str], SampleRecord] = {}
        """The record of each finished problem, by data set and problem id."""
        path.parent.mkdir(parents=True, exist_ok=True)
        head = json.dumps({"fingerprint": fingerprint}).encode() + b"\n"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = 0
        if lines[:1] == [head]:
            whole = len(head)
            for line in lines[1:]:
                try:
                    record = SampleRecord.from_json(json.loads(line))
                except (ValueError, RecursionError):
                    break
                if not line.endswith(b"\n"):
                    break
                self.entries[record.key] = record
                whole += len(line)
        self._stream = path.open("ab", buffering=0)
        self._stream.truncate(whole)
        if not whole:
            self._stream.write(head)

    def append(self, record: SampleRecord) -> None:
        """Write a record down; it survives the end of this process."""
        line = record.line.encode("ascii")
        if self._stream.write(line) != len(line):
            raise OSError(f"{self.path} could not be written to its end; is the disk full?")
        self.entries[record.key] = record

    def discard(self) -> None:
        """Remove the file; what it was for is on disk."""
        self._stream.close()
        self.path.unlink(missing_ok=True)
