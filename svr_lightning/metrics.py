"""The paper's metrics as ``torchmetrics.Metric`` classes, and all of them over sample records.

Each class keeps its input columns, not running sums: a distributed sampler may hand an example to
two ranks, which only shows once the ranks' rows lie side by side. Rows that carry the same
``example_ids`` entry are counted once (the first, in rank order), rows without one (-1, or no ids
given) are all counted. The key must be the same on every rank and distinguish what is counted:
the example for per-example metrics, the example and the turn for per-turn metrics;
:func:`example_key` makes both.

States are named for what they hold, so that a ``MetricCollection`` never takes two different
metrics for one compute group. Nothing seen, or a value that is not defined, is nan.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities.data import dim_zero_cat

from svr_lightning.evaluation import metric_functions
from svr_lightning.evaluation.metric_functions import VERDICT_CODES, example_key

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


class _Column(NamedTuple):
    """What a column may hold."""

    dtype: torch.dtype
    low: int
    high: int


_COUNT = _Column(torch.int64, 0, 2**63 - 1)
_FLAG = _Column(torch.int64, 0, 1)
_COLUMNS = {
    "correct": _FLAG,
    "stopped_early": _FLAG,
    "turns": _COUNT,
    "tokens": _COUNT,
    "verdict": _Column(torch.int64, -1, 1),
    "confidence": _Column(torch.float64, 0, 1),
    "example_ids": _Column(torch.int64, -1, 2**63 - 1),
}


class _ColumnMetric(Metric):
    """Gathers columns over batches and ranks, drops repeated examples, computes one number.

    A subclass names its columns in the order in which its ``value`` takes them.
    """

    is_differentiable = False
    full_state_update = False
    columns: ClassVar[tuple[str, ...]]
    value: ClassVar[Callable[..., float]]

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
        """Gather all ranks' rows. A rank that saw nothing takes part with rows of the right type.

        (torchmetrics would send float32 from it, and gathering mixed types fails or hangs.)
        """
        for name in (*self.columns, "example_ids"):
            if isinstance(getattr(self, name), list) and not getattr(self, name):
                setattr(self, name, [_no_rows(name, self.device)])
        super().sync(*args, **kwargs)

    def compute(self) -> Tensor:
        """The metric over all rows seen: a float64 scalar, nan where it is undefined."""
        kept = metric_functions.keep_first(self._rows("example_ids"))
        value = type(self).value(*(self._rows(name)[kept] for name in self.columns))
        return torch.tensor(value, dtype=torch.float64, device=self.device)

    def _rows(self, name: str) -> Tensor:
        state = getattr(self, name)
        # On CPU: the rows are few, and every device then gives the same digits.
        return (dim_zero_cat(state) if len(state) else _no_rows(name, self.device)).cpu()


def _no_rows(name: str, device: torch.device | str) -> Tensor:
    return torch.empty(0, dtype=_COLUMNS[name].dtype, device=device)


def _checked(name: str, values: Tensor) -> Tensor:
    """A copy of a column in its exact type.

    Raises:
        ValueError: if it is not 1-D, or holds what such a column cannot hold.
    """
    column = _COLUMNS[name]
    if values.dim() != 1:
        raise ValueError(f"{name} must be 1-D, one entry per row; got shape {tuple(values.shape)}")
    exact = values.detach().to(column.dtype, copy=True)
    good = (exact >= column.low) & (exact <= column.high) & (exact == values)
    if not bool(good.all()):
        kind = "integers" if column.dtype is torch.int64 else "numbers"
        bad = values[~good][0].item()
        raise ValueError(f"{name} must hold {kind} in [{column.low}, {column.high}]; got {bad}")
    return exact


class _OfCorrect(_ColumnMetric):
    columns = ("correct",)
    value = staticmethod(metric_functions.mean)
    higher_is_better = True

    def update(self, correct: Tensor, example_ids: Tensor | None = None) -> None:
        """Add examples: ``correct`` [N] labels, ``example_ids`` [N] int64 or None."""
        self._append(example_ids, correct=correct)


class _OfTokens(_ColumnMetric):
    columns = ("tokens",)
    value = staticmethod(metric_functions.mean)
    higher_is_better = False

    def update(self, tokens: Tensor, example_ids: Tensor | None = None) -> None:
        """Add examples: ``tokens`` [N] summed over the turns of each, ``example_ids`` [N]."""
        self._append(example_ids, tokens=tokens)


class _OfVerdict(_ColumnMetric):
    columns = ("verdict", "correct")

    def update(self, verdict: Tensor, correct: Tensor, example_ids: Tensor | None = None) -> None:
        """Add observed turns: ``verdict`` [N] by VERDICT_CODES, ``correct`` [N], a key each."""
        self._append(example_ids, verdict=verdict, correct=correct)


class _OfConfidence(_ColumnMetric):
    columns = ("confidence", "correct")

    def update(
        self, confidence: Tensor, correct: Tensor, example_ids: Tensor | None = None
    ) -> None:
        """Add observed turns: ``confidence`` [N] in [0, 1], ``correct`` [N], a key each."""
        self._append(example_ids, confidence=confidence, correct=correct)


class FinalAccuracy(_OfCorrect):
    """Acc: share of examples whose returned answer is correct (equation app-final-accuracy).

    Example:
        >>> metric = FinalAccuracy()
        >>> metric.update(torch.tensor([1, 0, 1]), example_ids=torch.tensor([5, 6, 5]))
        >>> metric.compute().item()   # the second row of example 5 is padding
        0.5
    """


class FirstTurnAccuracy(_OfCorrect):
    """T1Acc: share of examples whose first answer is correct, before any refinement."""


class AnyTurnAccuracy(_OfCorrect):
    """AnyAcc: share of examples with a correct answer at any turn up to the returned one.

    Describes the trajectory; choosing that turn would take the reference.
    """


class _ExampleCount(_OfCorrect):
    """The number of distinct examples."""

    value = staticmethod(metric_functions.count)


class MeanTurns(_ColumnMetric):
    """Turns: mean number of generated turns per example."""

    columns = ("turns",)
    value = staticmethod(metric_functions.mean)
    higher_is_better = False

    def update(self, turns: Tensor, example_ids: Tensor | None = None) -> None:
        """Add examples: ``turns`` [N] the returned turn of each, ``example_ids`` [N] or None."""
        self._append(example_ids, turns=turns)


class PromptTokens(_OfTokens):
    """PromptTok: mean over examples of the prompt tokens of all their turns."""


class CompletionTokens(_OfTokens):
    """CompletionTok: mean over examples of the completion tokens of all their turns."""


class TotalTokens(_OfTokens):
    """TotalTok: mean over examples of the prompt and completion tokens of all their turns."""


class EarlyStopRate(_ColumnMetric):
    """ESR: share of examples that return before T_max.

    A gate that opens at T_max itself is not an early stop. ``higher_is_better`` is None: stopping
    early is cheap, and says nothing on whether it was right.
    """

    columns = ("stopped_early",)
    value = staticmethod(metric_functions.mean)
    higher_is_better = None

    def update(self, stopped_early: Tensor, example_ids: Tensor | None = None) -> None:
        """Add examples: ``stopped_early`` [N] flags, ``example_ids`` [N] int64 or None."""
        self._append(example_ids, stopped_early=stopped_early)


class PrematureStopError(_ColumnMetric):
    """PSE: share of all examples that return before T_max with a wrong answer."""

    columns = ("stopped_early", "correct")
    value = staticmethod(metric_functions.premature_stop_error)
    higher_is_better = False

    def update(
        self, stopped_early: Tensor, correct: Tensor, example_ids: Tensor | None = None
    ) -> None:
        """Add examples: ``stopped_early`` [N], ``correct`` [N] of the returned answer, ids."""
        self._append(example_ids, stopped_early=stopped_early, correct=correct)


class VerdictAccuracy(_OfVerdict):
    """VAcc: share of right ones among committed verdicts of observed turns; UNSURE is left out.

    nan where no verdict commits itself.
    """

    value = staticmethod(metric_functions.verdict_accuracy)
    higher_is_better = True


class BrierScore(_OfConfidence):
    """Brier: mean squared distance of confidence and label over observed turns."""

    value = staticmethod(metric_functions.brier_score)
    higher_is_better = False


class ConfidenceAUROC(_OfConfidence):
    """AUROC of the confidence as a score for correctness over observed turns, ties counting 1/2.

    nan where all labels are equal.
    """

    value = staticmethod(metric_functions.confidence_auroc)
    higher_is_better = True


class Overconfidence(_OfVerdict):
    """Overconf: share of all observed turns that say CORRECT of a wrong answer."""

    value = staticmethod(metric_functions.overconfidence)
    higher_is_better = False


_RESULTS: dict[str, tuple[type[_ColumnMetric], tuple[str, ...]]] = {
    "accuracy": (FinalAccuracy, ("final_correct", "example_ids")),
    "first_turn_accuracy": (FirstTurnAccuracy, ("first_correct", "example_ids")),
    "any_turn_accuracy": (AnyTurnAccuracy, ("any_correct", "example_ids")),
    "turns": (MeanTurns, ("turns", "example_ids")),
    "avg_prompt_tokens": (PromptTokens, ("prompt_tokens", "example_ids")),
    "avg_completion_tokens": (CompletionTokens, ("completion_tokens", "example_ids")),
    "avg_total_tokens": (TotalTokens, ("total_tokens", "example_ids")),
    "esr": (EarlyStopRate, ("stopped_early", "example_ids")),
    "pse": (PrematureStopError, ("stopped_early", "final_correct", "example_ids")),
    "verdict_accuracy": (VerdictAccuracy, ("verdict", "correct", "turn_ids")),
    "auroc": (ConfidenceAUROC, ("confidence", "correct", "turn_ids")),
    "brier": (BrierScore, ("confidence", "correct", "turn_ids")),
    "overconfidence": (Overconfidence, ("verdict", "correct", "turn_ids")),
    "n": (_ExampleCount, ("final_correct", "example_ids")),
}

METRIC_NAMES = tuple(name for name in _RESULTS if name != "n")
"""The metrics under the names that results files give them."""


class TrajectoryMetrics(nn.Module):
    """All metrics of one data set, from sample records.

    Keep one per data set, on every rank: ``compute`` gathers over all ranks, so a rank that has
    no record of the data set calls it too.

    Args:
        metric_kwargs: for every metric; ``sync_on_compute=False`` where one process works alone.
    """

    def __init__(self, **metric_kwargs: Any) -> None:
        super().__init__()
        self.dataset: str | None = None
        self.metrics = MetricCollection(
            {name: kind(**metric_kwargs) for name, (kind, _) in _RESULTS.items()},
            compute_groups=False,
        )

    def update(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add records of the one data set; one that was already seen counts once.

        Raises:
            ValueError: naming the record that has no labels or whose returned turn is not there,
                or the data sets that were mixed.
        """
        datasets: set[str] = {record["dataset"] for record in records}
        if self.dataset is not None:
            datasets.add(self.dataset)
        if len(datasets) > 1:
            raise ValueError(f"records of {sorted(datasets)} in the metrics of one data set")
        columns = metric_functions.record_columns(records)
        self.dataset = next(iter(datasets), None)
        for name, (_, inputs) in _RESULTS.items():
            self.metrics[name].update(*(columns[column] for column in inputs))

    def compute(self) -> dict[str, float]:
        """Every metric under its results name, and ``n``; nan where undefined."""
        if self.dataset is None:
            self.update(())  # A rank without records takes part, and torchmetrics does not warn.
        values = self.metrics.compute()
        return {**{name: values[name].item() for name in METRIC_NAMES}, "n": int(values["n"])}

    def reset(self) -> None:
        """Forget all records."""
        self.dataset = None
        self.metrics.reset()
