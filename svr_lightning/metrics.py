"""The paper's metrics as ``torchmetrics.Metric`` classes.

The classes only collect rows and reduce them over ranks; what a metric is, is defined once in
:mod:`svr_lightning.core.metrics`. A class keeps its rows, not running sums: a distributed sampler
may hand an example to two ranks, which only shows once the ranks' rows lie side by side. Rows that
carry the same ``example_ids`` entry are counted once (the first, in rank order), rows without one
(-1, or no ids given) are all counted. :func:`example_key` makes keys that are equal on every rank:
of the example for metrics of examples, of the example and the turn for metrics of turns.

States are named for what they hold, so that a ``MetricCollection`` never takes two different
metrics for one compute group. Nothing seen, or a value that is not defined, is nan.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from svr_lightning.core.metrics import METRIC_NAMES, VERDICT_CODES, value_of

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
    ordered, position = torch.sort(ids, stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = (ordered[1:] != ordered[:-1]) | (ordered[1:] < 0)
    kept = torch.empty_like(first)
    kept[position] = first
    return kept


class _Column(NamedTuple):
    """The values that a column may hold."""

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
        """The metric over all rows seen: a float64 scalar, nan where it is undefined."""
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
    """AnyAcc: share of examples with a correct answer at any turn up to the returned one.

    Describes the trajectory; choosing that turn would take the reference.
    """

    name = "any_turn_accuracy"


class ExampleCount(_OfCorrect):
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
    """ESR: share of examples that return before T_max.

    A gate that opens at T_max itself is not an early stop. ``higher_is_better`` is None: stopping
    early is cheap, and says nothing on whether it was right.
    """

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
    """VAcc: share of right ones among committed verdicts of observed turns; UNSURE is left out.

    nan where no verdict commits itself.
    """

    name = "verdict_accuracy"
    higher_is_better = True


class BrierScore(_OfConfidence):
    """Brier: mean squared distance of confidence and label over observed turns."""

    name = "brier"
    higher_is_better = False


class ConfidenceAUROC(_OfConfidence):
    """AUROC of the confidence as a score for correctness over observed turns, ties counting 1/2.

    nan where all labels are equal.
    """

    name = "auroc"
    higher_is_better = True


class Overconfidence(_OfVerdict):
    """Overconf: share of all observed turns that say CORRECT of a wrong answer."""

    name = "overconfidence"
    higher_is_better = False


CLASSES: Sequence[type[ColumnMetric]] = (
    FinalAccuracy,
    FirstTurnAccuracy,
    AnyTurnAccuracy,
    MeanTurns,
    PromptTokens,
    CompletionTokens,
    TotalTokens,
    EarlyStopRate,
    PrematureStopError,
    VerdictAccuracy,
    ConfidenceAUROC,
    BrierScore,
    Overconfidence,
)
"""One for each metric of results files."""
