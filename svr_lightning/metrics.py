"""The paper's metrics as ``torchmetrics.Metric`` classes, for a loop of your own.

The classes only collect rows and gather them over ranks; each number is computed in
:mod:`svr_lightning.core.metrics`. Rows that carry the same ``example_ids`` entry count once (the
first, in rank order), because a distributed sampler may give an example to two ranks; without ids
all rows count. Rows of turns need an id for each turn. The value is nan if it is undefined.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from svr_lightning.core.metrics import DEFINITIONS, value_of
from svr_lightning.core.metrics import METRIC_NAMES as METRIC_NAMES
from svr_lightning.core.metrics import VERDICT_CODES as VERDICT_CODES


class ColumnMetric(Metric):
    """Gathers columns over batches and ranks, drops repeated rows, computes one number.

    A subclass names its metric; :meth:`update` takes the columns of its definition, in their order.
    """

    is_differentiable = False
    full_state_update = False
    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, name: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        definition = DEFINITIONS[name]
        cls.name = name
        cls.columns = definition.columns
        cls.higher_is_better = definition.higher_is_better

    def __init__(self, **kwargs: Any) -> None:
        # torchmetrics does not forget a computed value when another metric is merged in.
        super().__init__(**{"compute_with_cache": False, **kwargs})
        for name in (*self.columns, "example_ids"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, *columns: Tensor, example_ids: Tensor | None = None, **named: Tensor) -> None:
        """Add rows: the metric's columns, [N] each, in order or by name, and ids [N] int64.

        Names of columns that the metric lacks are ignored, so that a ``MetricCollection`` may give
        all columns to each of its metrics if their rows are the same: problems, or turns.

        Raises:
            ValueError: if a column cannot hold its values, or has another length than the first.
        """
        columns = columns or tuple(named[name] for name in self.columns)
        ids = torch.full_like(columns[0], -1, dtype=torch.int64)
        ids = ids if example_ids is None else example_ids
        given = zip((*self.columns, "example_ids"), (*columns, ids), strict=True)
        rows = {name: _checked(name, values) for name, values in given}
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
                setattr(self, name, [self._rows(name).to(self.device)])
        super().sync(*args, **kwargs)

    def compute(self) -> Tensor:
        """The metric over all rows: a float64 scalar, nan if it is undefined."""
        ids = self._rows("example_ids").numpy()
        kept = ids < 0
        kept[np.unique(ids, return_index=True)[1]] = True
        value = value_of(self.name, *(self._rows(name).numpy()[kept] for name in self.columns))
        return torch.tensor(value, dtype=torch.float64, device=self.device)

    def _rows(self, name: str) -> Tensor:
        """A column, on the CPU: the rows are few, and every device then gives the same digits."""
        state = getattr(self, name)
        return (dim_zero_cat(state) if len(state) else torch.empty(0, dtype=_dtype(name))).cpu()


def _dtype(column: str) -> torch.dtype:
    return torch.float64 if column == "confidence" else torch.int64


def _checked(name: str, values: Tensor) -> Tensor:
    """A copy of a column in its exact type.

    Raises:
        ValueError: if it is not 1-D, or holds what such a column cannot hold.
    """
    if values.dim() != 1:
        raise ValueError(f"{name} must be 1-D, one entry per row; got shape {tuple(values.shape)}")
    low = -1 if name in ("verdict", "example_ids") else 0  # an id of -1 is none
    high = 2**63 - 1 if name.endswith(("turns", "tokens", "_ids")) else 1
    exact = values.detach().to(_dtype(name), copy=True)
    good = (exact >= low) & (exact <= high) & (exact == values)
    if not bool(good.all()):
        kind, bad = "numbers" if name == "confidence" else "integers", values[~good][0]
        raise ValueError(f"{name} must hold {kind} in [{low}, {high}]; got {bad:g}")
    return exact


class FinalAccuracy(ColumnMetric, name="accuracy"):
    """Acc: share of examples whose returned answer is ``correct`` (equation app-final-accuracy).

    Examples:
        >>> metric = FinalAccuracy()
        >>> metric.update(torch.tensor([1, 0, 1]), example_ids=torch.tensor([5, 6, 5]))
        >>> metric.compute().item()   # the second row of example 5 is padding
        0.5
    """


class FirstTurnAccuracy(ColumnMetric, name="first_turn_accuracy"):
    """T1Acc: share of examples whose first answer is correct, before any refinement."""


class AnyTurnAccuracy(ColumnMetric, name="any_turn_accuracy"):
    """AnyAcc: share of examples with a correct answer at any turn up to the returned one."""


class MeanTurns(ColumnMetric, name="turns"):
    """Turns: mean number of generated turns per example."""


class TotalTokens(ColumnMetric, name="avg_total_tokens"):
    """TotalTok: mean over examples of the prompt and completion tokens of all their turns."""


class PromptTokens(ColumnMetric, name="avg_prompt_tokens"):
    """PromptTok: mean over examples of the prompt tokens of all their turns."""


class CompletionTokens(ColumnMetric, name="avg_completion_tokens"):
    """CompletionTok: mean over examples of the completion tokens of all their turns."""


class EarlyStopRate(ColumnMetric, name="esr"):
    """ESR: share of examples that return before T_max; stopping at T_max itself is not early."""


class PrematureStopError(ColumnMetric, name="pse"):
    """PSE: share of all examples that return before T_max with a wrong answer."""


class AcceptedShare(ColumnMetric, name="accepted"):
    """Share of examples whose answer the stopping rule accepts, at T_max too."""


class AcceptedAccuracy(ColumnMetric, name="accepted_accuracy"):
    """Share of the accepted answers that are correct."""


class VerdictAccuracy(ColumnMetric, name="verdict_accuracy"):
    """VAcc: accuracy of the verdicts CORRECT and INCORRECT, by VERDICT_CODES, of observed turns."""


class Overconfidence(ColumnMetric, name="overconfidence"):
    """Overconf: share of all observed turns with the verdict CORRECT on a wrong answer."""


class BrierScore(ColumnMetric, name="brier"):
    """Brier: mean squared distance of confidence and label over observed turns."""


class ConfidenceAUROC(ColumnMetric, name="auroc"):
    """AUROC of the confidence as a score for correctness over observed turns, ties counting 1/2."""


class RiskCoverageArea(ColumnMetric, name="aurc"):
    """AURC of returned answers: the share of wrong ones of the k most confident, over all k."""
