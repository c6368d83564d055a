"""The methods of a report, each with one run per seed, read from samples files.

Every data set is ended by the stopping rule and T_max of the file that it comes from.
"""

import filecmp
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from svr_lightning.analysis.logs import read_recording
from svr_lightning.analysis.metrics import (
    Datasets,
    Summary,
    display_name,
    measure,
    ordered,
    summarize,
)
from svr_lightning.analysis.replay import THRESHOLDS, measured_under, replay, threshold_rules
from svr_lightning.analysis.results import Evaluation, section
from svr_lightning.analysis.table import TurnTable
from svr_lightning.analysis.voting import VOTES, vote
from svr_lightning.core.stopping import Confident, StopRule
from svr_lightning.errors import ConfigError, require

Numbers = dict[str, Any]
_OF_STOPS = ("esr", "pse", "accepted", "accepted_accuracy")
"""Metrics that are undefined where nothing can stop."""


def can_stop(table: TurnTable) -> bool:
    """Whether any trajectory can stop before T_max, so that metrics of stopping are defined."""
    if table.stopped_early.any():
        return True
    if table.max_turns == 1 or table.rule is None:
        return False
    needs_check = isinstance(table.rule, StopRule) and table.rule.needs_self_check
    return table.has_checks or not needs_check


@dataclass(frozen=True, kw_only=True)
class Run:
    """One seed of a method; its data sets may come from several samples files."""

    seed: str
    """The configuration's seed, or the place among the method's runs if two have the same."""
    sources: Sequence[Evaluation]
    tables: dict[str, TurnTable]
    """Each as the rule and T_max of its own source end it."""
    independent: frozenset[str]
    """The data sets whose turns are fresh: independent samples that refine nothing."""

    @cached_property
    def budget(self) -> int:
        """The most turns that every data set has.

        0 unless all T_max turns of every problem are there and the rules can be replayed.
        """
        tables = self.tables.values()
        complete = all(
            isinstance(table.rule, StopRule) and table.max_turns > 1 and table.whole
            for table in tables
        )
        return min(table.max_turns for table in tables) if complete else 0

    @cached_property
    def datasets(self) -> Datasets:
        """The metrics of each data set; those of stopping only where something can stop."""
        values = {}
        for name, table in self.tables.items():
            values[name] = measure(table)
            if not can_stop(table):
                values[name] |= dict.fromkeys(_OF_STOPS)
        return values

    @cached_property
    def budgets(self) -> list[Datasets]:
        """:attr:`datasets` of each fixed budget of turns, from 1 on.

        None if ``budget`` is 0, or for fresh turns: the last of them refines no other.
        """
        if self.independent:
            return []
        return [measured_under(self.tables, None, turns) for turns in range(1, self.budget + 1)]

    @cached_property
    def at_thresholds(self) -> list[Datasets]:
        """:attr:`datasets` at each threshold of :data:`THRESHOLDS`, every rule with its own T_max.

        None if ``budget`` is 0, without self-checks, or if a rule has no such threshold.
        """
        if not (self.budget and self.self_checks):
            return []
        rows = []
        for table in self.tables.values():
            rules = threshold_rules(table.rule) if isinstance(table.rule, Confident) else []
            rows.append([measure(replay(table, rule, table.max_turns)) for rule in rules])
        return [dict(zip(self.tables, row, strict=True)) for row in zip(*rows, strict=False)]

    @cached_property
    def votes(self) -> list[Datasets]:
        """Accuracy and tokens of each number of :data:`VOTES` up to the budget.

        None unless all its turns are independent samples.
        """
        if not self.budget or self.independent != self.tables.keys():
            return []
        counts = [count for count in VOTES if count <= self.budget]
        voted = {name: vote(table, counts) for name, table in self.tables.items()}
        return [
            {
                name: {"accuracy": of[f"maj@{count}"], "avg_total_tokens": of[f"tokens@{count}"]}
                for name, of in voted.items()
            }
            for count in counts
        ]

    @cached_property
    def self_checks(self) -> bool:
        """Whether any turn has a self-check."""
        return any(table.has_checks for table in self.tables.values())

    @property
    def rule_text(self) -> str:
        """What ends trajectories, in words; with the names of data sets where they differ."""
        names: dict[str, list[str]] = {}
        for name, table in self.tables.items():
            if can_stop(table):
                text = f"{table.rule} and at most {table.max_turns} turns"
            elif table.max_turns == 1:
                text = "one turn"
            else:
                text = f"{table.max_turns} fixed turns"
            names.setdefault(text, []).append(display_name(name))
        if len(names) == 1:
            return text
        return ", ".join(f"{text} ({', '.join(some)})" for text, some in names.items())


@dataclass(frozen=True, kw_only=True)
class Method:
    """A name of the tables, with one run per seed."""

    name: str
    """That of the command line, with a mark if the prompts of one of its runs showed labels."""
    runs: Sequence[Run]

    @property
    def tables(self) -> list[TurnTable]:
        """Those of all seeds."""
        return [table for run in self.runs for table in run.tables.values()]

    @property
    def rule_text(self) -> str:
        """What ends trajectories, in words; of seeds that differ, each."""
        return " or ".join(dict.fromkeys(run.rule_text for run in self.runs))

    @cached_property
    def summary(self) -> Summary:
        """Its metrics over seeds, as its rule ends the trajectories."""
        return summarize([run.datasets for run in self.runs])

    @cached_property
    def budgets(self) -> list[Summary]:
        """Those of each fixed budget of turns, from 1 on; none unless every run is complete."""
        return _over_seeds(run.budgets for run in self.runs)

    @cached_property
    def at_thresholds(self) -> dict[float, Summary]:
        """Those of each threshold, where every run has them."""
        rows = _over_seeds(run.at_thresholds for run in self.runs)
        return dict(zip(THRESHOLDS, rows, strict=False))

    @cached_property
    def votes(self) -> dict[int, Summary]:
        """Accuracy and tokens of each number of votes, where every run has them."""
        rows = _over_seeds(run.votes for run in self.runs)
        return dict(zip(VOTES, rows, strict=False))


def _over_seeds(runs: Iterable[Sequence[Datasets]]) -> list[Summary]:
    """The summary of each operating point that every run has."""
    return [summarize(seeds) for seeds in zip(*runs, strict=False)]


def data_sets(methods: Sequence[Method]) -> list[str]:
    """The data sets of all methods, each once, in the order of tables."""
    return ordered(name for method in methods for run in method.runs for name in run.tables)


# --- reading ----------------------------------------------------------------------------------


def read_methods(arguments: Sequence[str]) -> list[Method]:
    """The methods that ``NAME=FOLDER`` or a folder alone name; a samples file will do, too.

    A name that comes again adds data sets that the method lacks, or else begins its next seed.

    Raises:
        ConfigError: naming the argument or the file that cannot be used.
    """
    seeds: dict[str, list[list[Evaluation]]] = {}
    for argument in arguments:
        name, path = _split(argument)
        require(
            name not in seeds or argument.startswith(f"{name}="),
            f"{argument}: a run before it is called {name!r}, too; write NAME=FOLDER",
        )
        source = read_recording(path)
        require(not source.is_log, f"{path}: a log has no verdicts; replay and certify read logs")
        runs = seeds.setdefault(name, [])
        for sources in runs:
            for other in sources:
                require(
                    other.config != source.config
                    or not filecmp.cmp(other.samples, source.samples, shallow=False),
                    f"{argument}: the evaluation of {other.samples.parent} again, not another "
                    "seed; give each once",
                )
            if not any(other.tables.keys() & source.tables.keys() for other in sources):
                sources.append(source)
                break
        else:
            runs.append([source])
    methods = []
    for name, parts in seeds.items():
        if any(source.privileged for sources in parts for source in sources):
            name = f"privileged: {name}"
        each = [_run(sources, number) for number, sources in enumerate(parts, start=1)]
        if len({run.seed for run in each}) < len(each):  # they may be those of evaluations
            each = [replace(run, seed=f"#{place}") for place, run in enumerate(each, start=1)]
        methods.append(Method(name=name, runs=each))
    return methods


def _split(argument: str) -> tuple[str, Path]:
    name, equals, path = argument.partition("=")
    if not equals or os.path.exists(argument):
        name, path = os.path.basename(os.path.realpath(argument)), argument
    if not name or not path:
        raise ConfigError(f"{argument!r} is not a run; write NAME=FOLDER or only a folder")
    return name, Path(path)


def _run(sources: Sequence[Evaluation], number: int) -> Run:
    tables = {}
    independent = set()
    for source in sources:
        for name, table in source.tables.items():
            tables[name] = _ended(source, table)
            if source.independent:
                independent.add(name)
    stated = [source for source in sources if section(source.config, "model", "evaluation")]
    seed = (stated or sources)[0].config.get("seed_everything")
    return Run(
        seed=str(seed) if isinstance(seed, int) else f"#{number}",
        sources=sources,
        tables={name: tables[name] for name in ordered(tables)},
        independent=frozenset(independent),
    )


def _ended(source: Evaluation, table: TurnTable) -> TurnTable:
    """A table under its source's own rule; as it was recorded where that cannot be replayed."""
    if isinstance(source.stop, str) or table.max_turns < 2 or not table.whole:
        return table
    return replay(table, source.stop, table.max_turns)
