"""Samples files as commands take them."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.record_files import read_samples
from svr_lightning.evaluation.records import AnyRecord
from svr_lightning.evaluation.results import RESULTS, read_results, setting
from svr_lightning.evaluation.table import TurnTable, turn_tables
from svr_lightning.tasks import require_trusted


def load_tables(paths: Sequence[Path]) -> dict[str, TurnTable]:
    """The turns of samples files, one table per data set.

    Raises:
        ConfigError: naming the file, and the line or the record, that cannot be used; or the data
            set that two files hold.
    """
    tables: dict[str, TurnTable] = {}
    for path in paths:
        try:
            found = turn_tables(read_samples(path))
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from error
        if not found:
            raise ConfigError(f"{path}: there are no samples in it; evaluate something first")
        if twice := sorted(found.keys() & tables.keys()):
            raise ConfigError(
                f"{path}: data set {twice[0]!r} is in another of the files too; give one of them"
            )
        tables |= found
    return tables


def run_configs(paths: Sequence[Path]) -> list[Mapping[str, Any]]:
    """The configurations that the results files beside samples files quote."""
    return [read_results(path.parent / RESULTS).get("config", {}) for path in paths]


def recorded_turns(tables: Mapping[str, TurnTable], configs: Sequence[Mapping[str, Any]]) -> int:
    """T_max: what the results files say; without one, the longest recorded trajectory."""
    stated = [setting(config, "protocol", "max_turns") for config in configs]
    known = [turns for turns in stated if isinstance(turns, int)]
    longest = max(table.correct.shape[1] for table in tables.values())
    return max(known) if known and len(known) == len(stated) else longest


def check_thresholds(thresholds: Iterable[float | None]) -> None:
    """Refuse a threshold outside of [0, 1]; None is one that was not given.

    Raises:
        ConfigError: naming the first.
    """
    for threshold in thresholds:
        if threshold is not None and not 0 <= threshold <= 1:
            raise ConfigError(f"threshold {threshold:g} must lie in [0, 1]")


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
        require_trusted([record.task for record in records if record.task], options.task)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error
