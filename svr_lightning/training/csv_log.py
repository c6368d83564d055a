"""A CSV log that a resumed run continues: one row per step and stage, ``metrics.csv``."""

import csv
import math
import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only


class CSVLog(Logger):
    """Writes every logged value as ``step,key,value`` lines, flushed at once.

    Long format: columns never change, so a row once written stays as it is, and a run killed and
    resumed only drops what lies after the checkpoint (:meth:`rewind`).

    Args:
        folder: where ``metrics.csv`` goes.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.path = Path(folder) / "metrics.csv"

    @property
    def name(self) -> str:
        """Name of this log."""
        return "metrics"

    @property
    def version(self) -> str:
        """There is one per run."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """The resolved configuration is in ``config.yaml``."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one line per metric."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists()
        with self.path.open("a", newline="") as stream:
            writer = csv.writer(stream)
            if fresh:
                writer.writerow(["step", "key", "value"])
            for key, value in metrics.items():
                writer.writerow([step, key, "" if math.isnan(value) else repr(float(value))])

    def rewind(self, step: int) -> None:
        """Drop what was logged after ``step``: the resumed run logs it again."""
        self._keep(lambda at, _: at <= step)

    def forget(self, step: int, prefix: str) -> None:
        """Drop what was logged at ``step`` under keys that begin with ``prefix``."""
        self._keep(lambda at, key: at != step or not key.startswith(prefix))

    @rank_zero_only
    def _keep(self, wanted: Callable[[int, str], bool]) -> None:
        if not self.path.exists():
            return
        with self.path.open(newline="") as stream:
            header, *rows = list(csv.reader(stream)) or [["step", "key", "value"]]
        whole = [row for row in rows if len(row) == 3 and row[0].isdigit()]
        kept = [row for row in whole if wanted(int(row[0]), row[1])]
        aside = self.path.with_name(".metrics.csv.writing")
        with aside.open("w", newline="") as stream:
            csv.writer(stream).writerows([header, *kept])
        os.replace(aside, self.path)
