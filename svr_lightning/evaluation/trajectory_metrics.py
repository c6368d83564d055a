"""All metrics of one data set as torchmetrics, reduced over the ranks that evaluate it."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torchmetrics import Metric, MetricCollection

from svr_lightning.core.metrics import DEFINITIONS, METRIC_NAMES, SELF_CHECK_METRICS
from svr_lightning.evaluation.table import ProblemTable
from svr_lightning.metrics import CLASSES, ExampleCount, example_key


class TrajectoryMetrics(nn.Module):
    """All metrics of one data set, from per-problem tables.

    Keep one per data set, on every rank: ``compute`` gathers over all ranks, so a rank that has
    no problem of the data set calls it too.

    Args:
        metric_kwargs: for every metric; ``sync_on_compute=False`` where one process works alone.
    """

    def __init__(self, **metric_kwargs: Any) -> None:
        super().__init__()
        self.dataset: str | None = None
        found: dict[str, Metric] = {kind.name: kind(**metric_kwargs) for kind in CLASSES}
        found["n"] = ExampleCount(**metric_kwargs)
        found["unchecked"] = ExampleCount(**metric_kwargs)
        self.metrics = MetricCollection(dict(found), compute_groups=False)

    def update(self, table: ProblemTable) -> None:
        """Add a table of the one data set; a problem that was already seen counts once.

        Raises:
            ValueError: naming the data sets that were mixed.
        """
        if self.dataset not in (None, table.dataset):
            mixed = sorted({str(self.dataset), table.dataset})
            raise ValueError(f"problems of {mixed} in the metrics of one data set")
        self.dataset = table.dataset
        rows, numbers = table.turns["row"].tolist(), table.turns["turn"].tolist()
        problems = [example_key(table.dataset, name) for name in table.ids]
        turns = [
            example_key(table.dataset, table.ids[row], turn)
            for row, turn in zip(rows, numbers, strict=True)
        ]
        labels = table.problems["final_correct"]
        self._update("n", problems, labels)
        if not table.self_checked:
            self._update("unchecked", problems, labels)
        for name, one in DEFINITIONS.items():
            columns = table.turns if one.of_turns else table.problems
            ids = turns if one.of_turns else problems
            self._update(name, ids, *(columns[column] for column in one.columns))

    def _update(self, name: str, ids: Sequence[int], *columns: NDArray[Any]) -> None:
        keys = torch.tensor(ids, dtype=torch.int64)
        self.metrics[name].update(*map(torch.from_numpy, columns), example_ids=keys)

    def compute(self) -> dict[str, float]:
        """Every metric that the method has under its results name, and ``n``; nan if undefined."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The ``compute`` method", UserWarning)
            values = self.metrics.compute()
        absent = SELF_CHECK_METRICS if values["unchecked"] else ()
        found = {name: values[name].item() for name in METRIC_NAMES if name not in absent}
        return {**found, "n": int(values["n"])}

    def reset(self) -> None:
        """Forget all problems."""
        self.dataset = None
        self.metrics.reset()
