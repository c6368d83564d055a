"""The recording that a command reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from svr_lightning.analysis.logs import TABLES, load_log
from svr_lightning.analysis.results import (
    RESULTS,
    certified_settings,
    read_evaluation,
    recorded_rule,
    setting,
)
from svr_lightning.analysis.table import TurnTable
from svr_lightning.core.stopping import Confident, StopRule
from svr_lightning.errors import ConfigError

EVERY_TURN = "record every turn with --record"


@dataclass(frozen=True, kw_only=True)
class Recording:
    """An evaluation of a policy, or another program's log."""

    file: Path
    tables: dict[str, TurnTable]
    """By data set."""
    config: Mapping[str, Any]
    """That the results file beside the samples quotes; empty without one."""
    rule: StopRule
    """What stopped the policy; of a log, the confidence alone."""
    independent: bool = False
    """Whether turns are fresh, so that a majority of them can be formed."""

    def gate(self) -> Confident:
        """The rule, which has a threshold.

        Raises:
            ConfigError: if it has none.
        """
        if isinstance(self.rule, Confident):
            return self.rule
        raise ConfigError(
            f"{self.file.parent / RESULTS}: its stopping rule, {self.rule}, has no threshold "
            "to choose; evaluate with one that has (model.evaluation.stop: Confident)"
        )

    @property
    def max_turns(self) -> int:
        """T_max: what the results file says; without one, the longest recorded trajectory."""
        stated = setting(self.config, "protocol", "max_turns")
        longest = max(table.correct.shape[1] for table in self.tables.values())
        return stated if isinstance(stated, int) else longest

    def settings(self) -> dict[str, Any]:
        """The settings that a certificate holds for.

        Raises:
            ConfigError: if the configuration cannot be read.
        """
        try:
            return certified_settings(self.config, self.tables)
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigError(f"{RESULTS}: its configuration cannot be read ({error!r})") from error


def load_recording(path: Path, columns: Sequence[str] | None = None) -> Recording:
    """Read an evaluation's folder or a log: csv, parquet, and other files with ``columns``.

    Raises:
        ConfigError: naming the file, and the line or the record, that cannot be used.
    """
    if columns is not None or path.suffix in TABLES:
        tables = {path.stem: load_log(path, columns or ())}
        return Recording(file=path, tables=tables, config={}, rule=Confident(needs_correct=False))
    try:
        found = read_evaluation(path)
    except ConfigError as error:
        raise ConfigError(f"{error}; another program's log needs --columns") from error
    return Recording(
        file=found.samples,
        tables=found.tables,
        config=found.config,
        rule=recorded_rule(found.config, found.samples),
        independent=found.independent,
    )
