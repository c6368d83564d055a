"""The paper's metrics of a replayed outcome, from columns.

The same functions as validation logs (:mod:`svr_lightning.evaluation.metric_functions`), on a
:class:`TurnTable` instead of records: equal to the last digit, and fast enough for sweeps.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from svr_lightning.evaluation import metric_functions as metrics
from svr_lightning.evaluation.results import MATH_5, macro_average, wilson_interval
from svr_lightning.evaluation.table import Outcome, TurnTable


def measure(table: TurnTable, outcome: Outcome) -> dict[str, Any]:
    """All metrics of ``METRIC_NAMES`` on one data set, ``n`` and ``accuracy_ci95``.

    What is undefined is None, as in results files.
    """
    seen = table.observed(outcome)
    final = _column(table.at(table.correct, outcome.returned))
    stopped = _column(outcome.stopped_early)
    verdict, label = _column(table.verdict[seen]), _column(table.correct[seen])
    confidence = torch.from_numpy(table.confidence[seen])
    prompt = _column((table.prompt_tokens * seen).sum(1))
    completion = _column((table.completion_tokens * seen).sum(1))
    first = table.at(table.correct, np.minimum(outcome.observed, 1))
    values = {
        "accuracy": metrics.mean(final),
        "first_turn_accuracy": metrics.mean(_column(first)),
        "any_turn_accuracy": metrics.mean(_column(np.asarray((table.correct & seen).any(1)))),
        "turns": metrics.mean(_column(outcome.observed)),
        "avg_prompt_tokens": metrics.mean(prompt),
        "avg_completion_tokens": metrics.mean(completion),
        "avg_total_tokens": metrics.mean(prompt + completion),
        "esr": metrics.mean(stopped),
        "pse": metrics.premature_stop_error(stopped, final),
        "verdict_accuracy": metrics.verdict_accuracy(verdict, label),
        "auroc": metrics.confidence_auroc(confidence, label),
        "brier": metrics.brier_score(confidence, label),
        "overconfidence": metrics.overconfidence(verdict, label),
    }
    n = len(table.ids)
    defined = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return {**defined, "n": n, "accuracy_ci95": wilson_interval(values["accuracy"], n)}


def measure_all(
    tables: Mapping[str, TurnTable], outcomes: Mapping[str, Outcome]
) -> dict[str, dict[str, Any]]:
    """``{"datasets": {name: values}, "macro": {"all": ..., "math": ...}}``, as in results files."""
    datasets = {name: measure(table, outcomes[name]) for name, table in tables.items()}
    macro = {
        "all": macro_average(datasets, tuple(datasets)),
        "math": macro_average(datasets, MATH_5),
    }
    return {"datasets": datasets, "macro": macro}


def _column(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values).astype(np.int64))
