"""The paper's metrics (appendix "Metric Definitions"), each defined once, on plain columns.

A metric is a sum over rows divided by another: its *terms* give the numerator and the denominator
of each row. Terms work row by row, so that they serve per-problem tables, recorded turns and the
gathered columns of ranks. AUROC is the only metric that is not such a ratio.

Rows are problems or observed turns. Labels and flags are 0 or 1, verdicts are coded by
:data:`VERDICT_CODES`, confidences are float64 in [0, 1]. What is undefined is nan.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.core.types import Verdict

VERDICT_CODES = {Verdict.CORRECT: 1, Verdict.INCORRECT: 0, Verdict.UNSURE: -1}
"""Verdicts as numbers. The code of a commitment is the label that it claims."""
NO_VERDICT = -2
"""The code of a turn without a self-check; metrics never see it."""

Column = NDArray[Any]
Terms = tuple[Column, Column]


@dataclass(frozen=True, slots=True)
class Definition:
    """How a metric is computed from columns."""

    columns: tuple[str, ...]
    """Columns of a per-problem table, in the order in which ``terms`` takes them."""
    terms: Callable[..., Terms] | None
    """Numerator and denominator of each row; None for AUROC."""
    of_turns: bool = False
    """Whether rows are observed turns with a self-check; else they are problems."""


def share(values: Column) -> Terms:
    """The mean of ``values`` over rows."""
    return values, np.ones(len(values), dtype=np.int64)


def premature_stop(stopped_early: Column, correct: Column) -> Terms:
    """PSE: share of *all* problems that stop before T_max with a wrong answer."""
    return share(stopped_early * (1 - correct))


def verdict_agreement(verdict: Column, correct: Column) -> Terms:
    """VAcc: accuracy of the CORRECT and INCORRECT verdicts; UNSURE abstains."""
    committed = verdict >= 0
    return (committed & (verdict == correct)).astype(np.int64), committed.astype(np.int64)


def squared_error(confidence: Column, correct: Column) -> Terms:
    """Brier: mean squared distance of the confidence from the label."""
    return share((confidence - correct) ** 2)


def overconfident(verdict: Column, correct: Column) -> Terms:
    """Overconf: share of *all* observed turns with the verdict CORRECT on a wrong answer."""
    return share(((verdict == VERDICT_CODES[Verdict.CORRECT]) & (correct == 0)).astype(np.int64))


DEFINITIONS = {
    "accuracy": Definition(("final_correct",), share),
    "first_turn_accuracy": Definition(("first_correct",), share),
    "any_turn_accuracy": Definition(("any_correct",), share),
    "turns": Definition(("turns",), share),
    "avg_prompt_tokens": Definition(("prompt_tokens",), share),
    "avg_completion_tokens": Definition(("completion_tokens",), share),
    "avg_total_tokens": Definition(("total_tokens",), share),
    "esr": Definition(("stopped_early",), share),
    "pse": Definition(("stopped_early", "final_correct"), premature_stop),
    "verdict_accuracy": Definition(("verdict", "correct"), verdict_agreement, of_turns=True),
    "auroc": Definition(("confidence", "correct"), None, of_turns=True),
    "brier": Definition(("confidence", "correct"), squared_error, of_turns=True),
    "overconfidence": Definition(("verdict", "correct"), overconfident, of_turns=True),
}
"""Every metric under the name that results files give it."""
METRIC_NAMES = tuple(DEFINITIONS)
SELF_CHECK_METRICS = tuple(name for name, one in DEFINITIONS.items() if one.of_turns)
"""Metrics that a method without a self-check does not have."""


def value_of(metric: str, *columns: Column) -> float:
    """A metric of its columns; nan if it is undefined.

    Examples:
        >>> value_of("brier", np.array([0.5, 1.0]), np.array([1, 1]))
        0.125
        >>> value_of("verdict_accuracy", np.array([1, 0, -1]), np.array([1, 1, 0]))
        0.5
    """
    terms = DEFINITIONS[metric].terms
    return auroc(*columns) if terms is None else quotient(*terms(*columns))


def quotient(numerator: Column, denominator: Column) -> float:
    """Sum / sum, correctly rounded whatever the order of the rows; nan over 0."""
    below = _total(denominator)
    return _total(numerator) / below if below else math.nan


def _total(values: Column) -> float:
    if values.dtype.kind == "f":
        return math.fsum(values.tolist())
    return int(values.sum())


def auroc(confidence: Column, correct: Column) -> float:
    """AUROC: how often a correct answer has a higher confidence than a wrong one; ties count 1/2.

    nan if all labels are equal.

    Examples:
        >>> auroc(np.array([0.9, 0.9, 0.2]), np.array([1, 0, 0]))
        0.75
    """
    levels, level = np.unique(confidence, return_inverse=True)
    total = np.bincount(level, minlength=len(levels))
    right = np.bincount(level[correct == 1], minlength=len(levels))
    return float(auroc_of_counts(right, total - right))


def auroc_of_counts(right: Column, wrong: Column) -> NDArray[np.float64]:
    """AUROC from [..., U] correct and wrong answers at each of U ascending confidences.

    Exact with ties: counts and half counts add up without rounding.
    """
    below = np.cumsum(wrong, -1) - wrong
    wins = np.asarray(right * (below + wrong / 2)).sum(-1)
    pairs = np.asarray(right.sum(-1) * wrong.sum(-1), dtype=np.float64)
    return np.asarray(wins / np.where(pairs > 0, pairs, np.nan))
