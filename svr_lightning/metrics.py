"""The paper's metrics as ``torchmetrics.Metric`` classes.

The classes only collect rows and reduce them over ranks; each metric is defined once, in
:mod:`svr_lightning.core.metrics`. A class keeps its rows, not running sums: a distributed sampler
may give an example to two ranks, which shows only when all ranks' rows are gathered. Rows that
carry the same ``example_ids`` entry are counted once (the first, in rank order), rows without one
(-1, or no ids given) are all counted. :func:`example_key` makes keys that are equal on every rank:
of the example for metrics of examples, of the example and the turn for metrics of turns.

State names differ between metrics, so that a ``MetricCollection`` never puts two different
metrics into one compute group. The value is nan without rows, or if it is undefined.
"""

import hashlib
import json
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities.data import dim_zero_cat

from svr_lightning.core.metrics import (
    DEFINITIONS,
    METRIC_NAMES,
    SELF_CHECK_METRICS,
    VERDICT_CODES,
    value_of,
)

if TYPE_CHECKING:
    from svr_lightning.analysis.table import ProblemTable

__all__ = [
    "METRIC_NAMES",
    "VERDICT_CODES",
    "AnyTurnAccuracy",
    "BrierScore",
    "CompletionTokens",
    "ConfidenceAUROC",
    "EarlyStopRate",
    "FinalAccuracy",
    "FirstTurnAccuracy",
    "MeanTurns",
    "Overconfidence",
    "PrematureStopError",
    "PromptTokens",
    "TotalTokens",
    "TrajectoryMetrics",
    "VerdictAccuracy",
    "example_key",
]


def example_key(dataset: str, example: str, turn: int | None = None) -> int:
    """A key in [0, 2**63) for one example, or for one turn of it; equal on every machine."""
    key = json.dumps([dataset, example, turn])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


def keep_first(ids: Tensor) -> Tensor:
    """[N] bool, which rows to count: every row without an id (-1), the first one of each id.

    Examples:
        >>> keep_first(torch.tensor([7, -1, 7, 3, -1])).tolist()
        [True, True, False, True, True]
    """
    kept = ids < 0
    kept[np.unique(ids.numpy(), return_index=True)[1]] = True
    return kept


_COLUMNS = {
    "correct": (torch.int64, 0, 1),
    "stopped_early": (torch.int64, 0, 1),
    "turns": (torch.int64, 0, 2**63 - 1),
    "tokens": (torch.int64, 0, 2**63 - 1),
    "verdict": (torch.int64, -1, 1),
    "confidence": (torch.float64, 0, 1),
    "example_ids": (torch.int64, -1, 2**63 - 1),
}
"""The type of a column, and its smallest and largest allowed value."""


class ColumnMetric(Metric):
    """Gathers columns over batches and ranks, drops repeated examples, computes one number.

    A subclass names its metric, and its columns in the order in which the metric takes them.
    """

    is_differentiable = False
    full_state_update = False
    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]

    def __init__(self, **kwargs: Any) -> None:
        # torchmetrics does not forget a computed value when another metric is merged in.
        super().__init__(**{"compute_with_cache": False, **kwargs})
        for name in (*self.columns, "example_ids"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def _append(self, example_ids: Tensor | None, **columns: Tensor) -> None:
        rows = {name: _checked(name, values) for name, values in columns.items()}
        if example_ids is None:
            example_ids = torch.full_like(next(iter(rows.values())), -1, dtype=torch.int64)
        rows["example_ids"] = _checked("example_ids", example_ids)
        lengths = {name: len(values) for name, values in rows.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns must have one entry per row each; got {lengths}")
        for name, values in rows.items():
            getattr(self, name).append(values.to(self.device))

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Gather all ranks' rows. A rank without rows takes part with empty rows of the right type.

        (torchmetrics would send float32 from it, and gathering mixed types fails or hangs.)
        """
        for name in (*self.columns, "example_ids"):
            if isinstance(getattr(self, name), list) and not getattr(self, name):
                setattr(self, name, [_no_rows(name, self.device)])
        super().sync(*args, **kwargs)

    def compute(self) -> Tensor:
        """The metric over all rows: a float64 scalar, nan if it is undefined."""
        kept = keep_first(self._rows("example_ids"))
        rows = [self._rows(name)[kept].numpy() for name in self.columns]
        return torch.tensor(self.value(*rows), dtype=torch.float64, device=self.device)

    def value(self, *columns: NDArray[Any]) -> float:
        """The metric of its columns."""
        return value_of(self.name, *columns)

    def _rows(self, name: str) -> Tensor:
        state = getattr(self, name)
        # On CPU: the rows are few, and every device then gives the same digits.
        return (dim_zero_cat(state) if len(state) else _no_rows(name, self.device)).cpu()


def _no_rows(name: str, device: torch.device | str) -> Tensor:
    return torch.empty(0, dtype=_COLUMNS[name][0], device=device)


def _checked(name: str, values: Tensor) -> Tensor:
    """A copy of a column in its exact type.

    Raises:
        ValueError: if it is not 1-D, or holds what such a column cannot hold.
    """
    dtype, low, high = _COLUMNS[name]
    if values.dim() != 1:
        raise ValueError(f"{name} must be 1-D, one entry per row; got shape {tuple(values.shape)}")
    exact = values.detach().to(dtype, copy=True)
    good = (exact >= low) & (exact <= high) & (exact == values)
    if not bool(good.all()):
        kind = "integers" if dtype is torch.int64 else "numbers"
        bad = values[~good][0].item()
        raise ValueError(f"{name} must hold {kind} in [{low}, {high}]; got {bad}")
    return exact


class _OfCorrect(ColumnMetric):
    columns = ("correct",)
    higher_is_better = True

    def update(self, correct: Tensor, example_ids: Tensor | None = None) -> None:
        """Add examples: ``correct`` [N] labels, ``example_ids`` [N] int64 or None."""
        self._append(example_ids, correct=correct)


class _OfTokens(ColumnMetric):
    columns = ("tokens",)
    higher_is_better = False

    def update(self, tokens: Tensor, example_ids: Tensor | None = None) -> None:
        """Add examples: ``tokens`` [N] summed over the turns of each, ``example_ids`` [N]."""
        self._append(example_ids, tokens=tokens)


class _OfVerdict(ColumnMetric):
    columns = ("verdict", "correct")

    def update(self, verdict: Tensor, correct: Tensor, example_ids: Tensor | None = None) -> None:
        """Add observed turns: ``verdict`` [N] by VERDICT_CODES, ``correct`` [N], a key each."""
        self._append(example_ids, verdict=verdict, correct=correct)


class _OfConfidence(ColumnMetric):
    columns = ("confidence", "correct")

    def update(
        self, confidence: Tensor, correct: Tensor, example_ids: Tensor | None = None
    ) -> None:
        """Add observed turns: ``confidence`` [N] in [0, 1], ``correct`` [N], a key each."""
        self._append(example_ids, confidence=confidence, correct=correct)


class FinalAccuracy(_OfCorrect):
    """Acc: share of examples whose returned answer is correct (equation app-final-accuracy).

    Examples:
        >>> metric = FinalAccuracy()
        >>> metric.update(torch.tensor([1, 0, 1]), example_ids=torch.tensor([5, 6, 5]))
        >>> metric.compute().item()   # the second row of example 5 is padding
        0.5
    """

    name = "accuracy"


class FirstTurnAccuracy(_OfCorrect):
    """T1Acc: share of examples whose first answer is correct, before any refinement."""

    name = "first_turn_accuracy"


class AnyTurnAccuracy(_OfCorrect):
    """AnyAcc: share of examples with a correct answer at any turn up to the returned one."""

    name = "any_turn_accuracy"


class _ExampleCount(_OfCorrect):
    """The number of distinct examples."""

    def value(self, *columns: NDArray[Any]) -> float:
        """N."""
        return len(columns[0])


class MeanTurns(ColumnMetric):
    """Turns: mean number of generated turns per example."""

    name = "turns"
    columns = ("turns",)
    higher_is_better = False

    def update(self, turns: Tensor, example_ids: Tensor | None = None) -> None:
        """Add examples: ``turns`` [N] the returned turn of each, ``example_ids`` [N] or None."""
        self._append(example_ids, turns=turns)


class PromptTokens(_OfTokens):
    """PromptTok: mean over examples of the prompt tokens of all their turns."""

    name = "avg_prompt_tokens"


class CompletionTokens(_OfTokens):
    """CompletionTok: mean over examples of the completion tokens of all their turns."""

    name = "avg_completion_tokens"


class TotalTokens(_OfTokens):
    """TotalTok: mean over examples of the prompt and completion tokens of all their turns."""

    name = "avg_total_tokens"


class EarlyStopRate(ColumnMetric):
    """ESR: share of examples that return before T_max; stopping at T_max itself is not early."""

    name = "esr"
    columns = ("stopped_early",)
    higher_is_better = None

    def update(self, stopped_early: Tensor, example_ids: Tensor | None = None) -> None:
        """Add examples: ``stopped_early`` [N] flags, ``example_ids`` [N] int64 or None."""
        self._append(example_ids, stopped_early=stopped_early)


class PrematureStopError(ColumnMetric):
    """PSE: share of all examples that return before T_max with a wrong answer."""

    name = "pse"
    columns = ("stopped_early", "correct")
    higher_is_better = False

    def update(
        self, stopped_early: Tensor, correct: Tensor, example_ids: Tensor | None = None
    ) -> None:
        """Add examples: ``stopped_early`` [N], ``correct`` [N] of the returned answer, ids."""
        self._append(example_ids, stopped_early=stopped_early, correct=correct)


class VerdictAccuracy(_OfVerdict):
    """VAcc: accuracy of the verdicts CORRECT and INCORRECT of observed turns."""

    name = "verdict_accuracy"
    higher_is_better = True


class BrierScore(_OfConfidence):
    """Brier: mean squared distance of confidence and label over observed turns."""

    name = "brier"
    higher_is_better = False


class ConfidenceAUROC(_OfConfidence):
    """AUROC of the confidence as a score for correctness over observed turns, ties counting 1/2."""

    name = "auroc"
    higher_is_better = True


class Overconfidence(_OfVerdict):
    """Overconf: share of all observed turns with the verdict CORRECT on a wrong answer."""

    name = "overconfidence"
    higher_is_better = False


_CLASSES: Sequence[type[ColumnMetric]] = (
    *(FinalAccuracy, FirstTurnAccuracy, AnyTurnAccuracy, MeanTurns),
    *(PromptTokens, CompletionTokens, TotalTokens, EarlyStopRate, PrematureStopError),
    *(VerdictAccuracy, ConfidenceAUROC, BrierScore, Overconfidence),
)
"""One for each metric of results files."""


class TrajectoryMetrics(nn.Module):
    """All metrics of one data set, from per-problem tables.

    Keep one per data set, on every rank: ``compute`` gathers over all ranks, so a rank without
    problems of the data set must call it too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dataset: str | None = None
        found: dict[str, Metric] = {kind.name: kind() for kind in _CLASSES}
        counts = {"n": _ExampleCount(), "unchecked": _ExampleCount()}
        self.metrics = MetricCollection({**found, **counts}, compute_groups=False)

    def update(self, table: "ProblemTable") -> None:
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
