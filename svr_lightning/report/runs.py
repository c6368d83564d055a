"""The methods of a report, each with one run per seed, read from samples files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from svr_lightning.analysis.metrics import Datasets, averages, groups, measure, ordered
from svr_lightning.analysis.replay import measured_under, replay, threshold_rules
from svr_lightning.analysis.results import Evaluation, read_evaluation, section, setting
from svr_lightning.analysis.table import TurnTable
from svr_lightning.analysis.voting import VOTES, vote
from svr_lightning.core.metrics import NO_VERDICT
from svr_lightning.core.stopping import StopRule, is_own
from svr_lightning.errors import ConfigError, require

Numbers = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One seed of a method; its data sets may come from several samples files."""

    seed: str
    """The configuration's seed, or the place among the method's runs."""
    sources: Sequence[Evaluation]
    tables: dict[str, TurnTable]
    """Under ``rule`` if the run is complete, else as they were recorded."""
    rule: StopRule | None
    """None if it is a class outside of this package, which no report imports."""
    rule_name: str
    """The rule in words; of such a class its path."""
    max_turns: int
    complete: bool
    """Whether every problem has all T_max turns, so that any stopping rule can be replayed."""

    @cached_property
    def datasets(self) -> Datasets:
        """The metrics of each data set; those of stopping only where something can stop."""
        absent = {} if self.stops else dict.fromkeys(("esr", "pse"))
        return {name: {**measure(table), **absent} for name, table in self.tables.items()}

    @cached_property
    def budgets(self) -> list[Datasets]:
        """:attr:`datasets` of each fixed budget from 1 to T_max; none unless complete."""
        turns = range(1, self.complete * self.max_turns + 1)
        return [measured_under(self.tables, None, budget) for budget in turns]

    @cached_property
    def at_thresholds(self) -> list[Datasets]:
        """:attr:`datasets` at each threshold; none unless complete and with self-checks."""
        rules = threshold_rules(self.rule) if self.complete and self.self_checks else []
        return [measured_under(self.tables, rule, self.max_turns) for rule in rules]

    @cached_property
    def votes(self) -> dict[int, Datasets]:
        """Accuracy and tokens of each number of votes, if turns are independent samples."""
        if not self.complete or not all(one.independent for one in self.sources):
            return {}
        ks = [k for k in VOTES if k <= self.max_turns]
        found = {name: vote(table, ks) for name, table in self.tables.items()}
        return {
            k: {
                name: {"accuracy": one[f"maj@{k}"], "avg_total_tokens": one[f"tokens@{k}"]}
                for name, one in found.items()
            }
            for k in ks
        }

    @property
    def parts(self) -> dict[str, dict[str, TurnTable]]:
        """What figures are of: the data sets of the first average together, else each one."""
        found = groups(self.tables)
        if averages(self.tables):
            found = dict([next(iter(found.items()))])
        return {part: {name: self.tables[name] for name in names} for part, names in found.items()}

    @cached_property
    def self_checks(self) -> bool:
        """Whether any turn has a self-check."""
        return any(bool((t.verdict != NO_VERDICT).any()) for t in self.tables.values())

    @cached_property
    def stops(self) -> bool:
        """Whether there is a stopping decision to speak of."""
        early = any(bool(t.stopped_early.any()) for t in self.tables.values())
        return early or (self.max_turns > 1 and self.self_checks)

    @property
    def rule_text(self) -> str:
        """The stopping rule in words."""
        if not self.stops:
            return "one turn" if self.max_turns == 1 else f"{self.max_turns} fixed turns"
        return f"{self.rule_name} and at most {self.max_turns} turns"


@dataclass(frozen=True, kw_only=True)
class Method:
    """A name of the tables, with one run per seed."""

    name: str
    """That of the command line, with a mark if the prompts of one of its runs showed labels."""
    runs: Sequence[Run]

    @property
    def seeds(self) -> list[Datasets]:
        """The metrics of each run."""
        return [run.datasets for run in self.runs]


def data_sets(methods: Sequence[Method]) -> list[str]:
    """The data sets of all methods, each once, in the order of tables."""
    return ordered(name for method in methods for run in method.runs for name in run.tables)


# --- reading ----------------------------------------------------------------------------------


def read_methods(arguments: Sequence[str]) -> list[Method]:
    """The methods that ``NAME=FOLDER`` or a folder alone name.

    A name that comes again adds data sets that the method lacks, or else begins its next seed.

    Raises:
        ConfigError: naming the argument or the file that cannot be used.
    """
    seeds: dict[str, list[list[Evaluation]]] = {}
    for argument in arguments:
        name, path = _split(argument)
        source = read_evaluation(path)
        runs = seeds.setdefault(name, [])
        for run in runs:
            for one in run:
                require(
                    (one.records, one.config) != (source.records, source.config),
                    f"{argument}: the evaluation of {one.samples.parent} again, not another seed; "
                    "give each once",
                )
            if not any(one.tables.keys() & source.tables.keys() for one in run):
                run.append(source)
                break
        else:
            runs.append([source])
    methods = []
    for name, runs in seeds.items():
        configs = [one.config for run in runs for one in run]
        privileged = any(setting(config, "protocol", "privileged") is True for config in configs)
        shown = "privileged: " * privileged + name
        methods.append(Method(name=shown, runs=[_run(run, i) for i, run in enumerate(runs, 1)]))
    return methods


def _split(argument: str) -> tuple[str, Path]:
    name, equals, path = argument.partition("=")
    if not equals or Path(argument).exists():
        name, path = os.path.basename(os.path.realpath(argument)), argument
    if not name or not path:
        raise ConfigError(f"{argument!r} is no run; write NAME=FOLDER or a folder alone")
    return name, Path(path)


def _run(sources: Sequence[Evaluation], index: int) -> Run:
    found = {name: table for source in sources for name, table in source.tables.items()}
    tables = {name: found[name] for name in ordered(found)}
    first = next((one for one in sources if section(one.config, "model", "evaluation")), sources[0])
    stop = setting(first.config, "model", "evaluation", "stop", "class_path")
    own = not isinstance(stop, str) or is_own(stop)
    rule = first.rule if own else None
    width = max(table.correct.shape[1] for table in tables.values())
    complete = (rule is not None and width > 1) and all(
        bool(((table.length == width) | (table.length == 0)).all())
        and not (table.stopped_early & (table.observed == table.length)).any()
        for table in tables.values()
    )
    if rule and complete:
        tables = {name: replay(table, rule, width) for name, table in tables.items()}
    seed = first.config.get("seed_everything")
    return Run(
        seed=str(seed) if isinstance(seed, int) else f"#{index}",
        sources=sources,
        tables=tables,
        rule=rule,
        rule_name=str(rule or stop),
        max_turns=width if complete else max(first.max_turns, width),
        complete=complete,
    )
