"""The methods of a report, each with one run per seed, read from samples files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from svr_lightning.core.metrics import NO_VERDICT
from svr_lightning.core.parsing import SelfCheckFields
from svr_lightning.core.stopping import StopRule
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.metrics import measure
from svr_lightning.evaluation.record_files import read_samples
from svr_lightning.evaluation.records import SAMPLES, SampleRecord
from svr_lightning.evaluation.replay import replay
from svr_lightning.evaluation.results import RESULTS, read_results, setting
from svr_lightning.evaluation.sweep import THRESHOLDS, adaptive_row, fixed_row
from svr_lightning.evaluation.table import Outcome, TurnTable, turn_tables
from svr_lightning.report.names import marked, ordered

_METRICS = "metrics.csv"
_NAMED = 6  # methods that a heading names


@dataclass(frozen=True, kw_only=True)
class Source:
    """One samples file, and what its run left beside it."""

    samples: Path
    records: list[SampleRecord]
    tables: dict[str, TurnTable]
    config: Mapping[str, Any]
    """The configuration in ``results.json``; empty if there is none."""
    versions: Mapping[str, Any]
    metrics: Path | None
    """The training log of the run."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One seed of a method; its data sets may come from several samples files."""

    sources: tuple[Source, ...]
    tables: dict[str, TurnTable]
    outcomes: dict[str, Outcome]
    datasets: dict[str, dict[str, Any]]
    """{data set: metrics}, as in results files."""
    rule: StopRule
    max_turns: int
    complete: bool
    """Whether every problem has all T_max turns, so that any stopping rule can be replayed."""
    budgets: tuple[dict[str, dict[str, Any]], ...]
    """{data set: metrics} of each fixed budget from 1 to T_max; none unless complete."""
    at_thresholds: tuple[dict[str, dict[str, Any]], ...]
    """The same of each of ``THRESHOLDS``."""

    @cached_property
    def self_checks(self) -> bool:
        """Whether any turn has a self-check."""
        return any(bool((t.verdict != NO_VERDICT).any()) for t in self.tables.values())

    @property
    def interface(self) -> SelfCheckFields | None:
        """The fields of a self-check, both by default; None without self-checks."""
        if not self.self_checks:
            return None
        stated = setting(self.sources[0].config, "model", "recipe", "init_args", "interface")
        known: dict[Any, SelfCheckFields] = {name: name for name in get_args(SelfCheckFields)}
        return known.get(stated if isinstance(stated, str) else None, "joint")

    @cached_property
    def stops(self) -> bool:
        """Whether there is a stopping decision to speak of."""
        early = any(bool(outcome.stopped_early.any()) for outcome in self.outcomes.values())
        return self.max_turns > 1 and (self.self_checks or early)

    @property
    def uses_labels(self) -> bool:
        """Whether prompts showed labels."""
        return any(is_privileged(source.config) for source in self.sources)

    @property
    def records(self) -> list[SampleRecord]:
        """All records, data set by data set."""
        return [record for source in self.sources for record in source.records]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A name of the tables, with one run per seed."""

    given: str
    """The name on the command line."""
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """The name as shown: with a suffix if one of its runs is privileged."""
        return marked(self.given) if any(run.uses_labels for run in self.runs) else self.given


def heading(methods: Sequence[Method]) -> str:
    """The names of a few methods, the number of many."""
    if len(methods) > _NAMED:
        return f"{len(methods)} methods"
    return ", ".join(method.name for method in methods)


def read_methods(arguments: Sequence[str]) -> list[Method]:
    """The methods that ``NAME=FOLDER``, ``NAME=SAMPLES`` or a path alone name.

    A name that comes again adds data sets that the method lacks, or else begins its next seed.

    Raises:
        ConfigError: naming the argument or the file that cannot be used.
    """
    seeds: dict[str, list[list[Source]]] = {}
    for argument in arguments:
        name, path = _split(argument)
        source = _read_source(path)
        runs = seeds.setdefault(name, [])
        for run in runs:
            if not any(one.tables.keys() & source.tables.keys() for one in run):
                run.append(source)
                break
        else:
            runs.append([source])
    return [
        Method(given=name, runs=tuple(_run(sources) for sources in runs))
        for name, runs in seeds.items()
    ]


def _split(argument: str) -> tuple[str, Path]:
    name, equals, path = argument.partition("=")
    if not equals or Path(argument).exists():
        path = argument
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        name = folder.resolve().name
    if not name or not path:
        raise ConfigError(f"{argument!r} is no run; write NAME=FOLDER or a folder alone")
    return name, Path(path)


def _read_source(path: Path) -> Source:
    samples = path / SAMPLES if path.is_dir() else path
    if path.is_dir() and not samples.is_file():
        inside = sorted(str(file.parent) for file in path.glob(f"eval/*/{SAMPLES}"))
        hint = f"give one of {', '.join(inside[:6])}" if inside else f"it needs a {SAMPLES}"
        raise ConfigError(f"{path}: no evaluation; {hint}")
    records = read_samples(samples)
    try:
        tables = turn_tables(records)
    except ValueError as error:
        raise ConfigError(f"{samples}: {error}") from error
    if not tables:
        raise ConfigError(f"{samples}: there are no samples in it; evaluate something first")
    results = read_results(samples.parent / RESULTS)
    logs = [folder / _METRICS for folder in list(samples.resolve().parents)[:3]]
    return Source(
        samples=samples,
        records=records,
        tables=tables,
        config=_mapping(results, "config"),
        versions=_mapping(results, "versions"),
        metrics=next((log for log in logs if log.is_file()), None),
    )


def _mapping(values: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """The mapping under nested keys; empty if it is not a mapping."""
    found: Any = values
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def is_privileged(config: Mapping[str, Any]) -> bool:
    """Whether a resolved configuration says that its recipe's prompts show labels."""
    return setting(config, "protocol", "privileged") is True


def _run(sources: Sequence[Source]) -> Run:
    found = {name: table for source in sources for name, table in source.tables.items()}
    tables = {name: found[name] for name in ordered(found)}
    evaluation = next((e for s in sources if (e := _mapping(s.config, "model", "evaluation"))), {})
    rule = _rule(evaluation, sources[0].samples)
    width = max(table.correct.shape[1] for table in tables.values())
    complete = width > 1 and all(
        bool(((table.length == width) | (table.length == 0)).all())
        and not table.recorded.stopped_early.any()
        for table in tables.values()
    )
    outcomes = {
        name: replay(table, rule, width) if complete else table.recorded
        for name, table in tables.items()
    }
    return Run(
        sources=tuple(sources),
        tables=tables,
        outcomes=outcomes,
        datasets={name: measure(table, outcomes[name]) for name, table in tables.items()},
        rule=rule,
        max_turns=width if complete else _turns(sources[0].config, evaluation, width),
        complete=complete,
        budgets=tuple(
            fixed_row(tables, budget)["datasets"] for budget in range(1, complete * width + 1)
        ),
        at_thresholds=tuple(
            adaptive_row(tables, replace(rule, threshold=threshold), width)["datasets"]
            for threshold in THRESHOLDS * complete
        ),
    )


def _turns(config: Mapping[str, Any], evaluation: Mapping[str, Any], width: int) -> int:
    """The number of turns that the protocol allowed, at most the run's setting."""
    stated = setting(config, "protocol", "max_turns") or evaluation.get("max_turns")
    return stated if isinstance(stated, int) and stated >= width else width


def _rule(evaluation: Mapping[str, Any], samples: Path) -> StopRule:
    """The stopping rule of a configuration, with the paper's defaults."""
    if "exhausted" in evaluation:  # the name of `fallback` in results of version 0.1
        evaluation = {"fallback": evaluation["exhausted"], **evaluation}
    known = {field.name: field.default for field in fields(StopRule)}
    values = {name: evaluation[name] for name in known if name in evaluation}
    for name, value in values.items():
        number = isinstance(known[name], float) or name == "agreement_threshold"
        fits = isinstance(value, int | float | None) if number else isinstance(value, str)
        if not fits:
            raise ConfigError(
                f"{samples.parent / RESULTS}: model.evaluation.{name}={value!r} is no stopping rule"
            )
    return StopRule(**values)
