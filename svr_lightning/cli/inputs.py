"""The recordings that commands read."""

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
from svr_lightning.errors import ConfigError, require

EVERY_TURN = "record every turn with --record"


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
    """Read evaluations' folders or logs: csv and parquet, and other files with ``columns``.

    Raises:
        ConfigError: naming the file, and the line or the record, that cannot be used; the data set
            that two files hold; or stopping rules that differ.
    """
    require(bool(paths), "give the folder of an evaluation: RUN/eval/NAME")
    if columns is not None or all(path.suffix in TABLES for path in paths):
        logs = [(path, {path.stem: load_log(path, columns or ())}) for path in paths]
        tables = _joined(logs)
        rule = Confident(needs_correct=False)
        return Recordings(files=list(paths), tables=tables, configs=[{}], rule=rule)
    try:
        found = [read_evaluation(path) for path in paths]
    except ConfigError as error:
        raise ConfigError(f"{error}; another program's log needs --columns") from error
    tables = _joined([(one.samples, one.tables) for one in found])
    rules = {recorded_rule(one.config, one.samples) for one in found}
    rule_names = " and ".join(sorted(map(str, rules)))
    require(len(rules) == 1, f"the recordings stop at {rule_names}; give those of one rule")
    return Recordings(
        files=[one.samples for one in found],
        tables=tables,
        configs=[one.config for one in found],
        rule=rules.pop(),
        independent=all(one.independent for one in found),
    )


def _joined(parts: Sequence[tuple[Path, Mapping[str, TurnTable]]]) -> dict[str, TurnTable]:
    tables: dict[str, TurnTable] = {}
    for path, found in parts:
        if twice := sorted(found.keys() & tables.keys()):
            raise ConfigError(
                f"{path}: data set {twice[0]!r} is in another of the files too; give one of them"
            )
        tables |= found
    return tables
