"""The paper's metrics (appendix "Metric Definitions"), each defined once, on plain columns.

:data:`DEFINITIONS` is the one list of metrics: results files, logs, tables, intervals and the
report follow it. A metric is a sum over rows divided by another: its *terms* give the numerator and
the denominator of each row. Terms work row by row, so that they serve per-problem tables, recorded
turns and the gathered columns of ranks. Areas (AUROC, AURC) rank all rows and are no such ratios.

Rows are problems or observed turns. Labels and flags are 0 or 1, verdicts are coded by
:data:`VERDICT_CODES`, confidences are float64 in [0, 1]. What is undefined is nan.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from svr_lightning.core.types import Verdict

VERDICT_CODES = {Verdict.CORRECT: 1, Verdict.INCORRECT: 0, Verdict.UNSURE: -1}
"""Verdicts as numbers. The code of a commitment is the label that it claims."""
NO_VERDICT = -2
"""The code of a turn that states no verdict."""
NONE = "--"
"""Printed where there is no value."""

Column = NDArray[Any]
Terms = tuple[Column, Column]


def share(values: Column) -> Terms:
    """The mean of ``values`` over rows."""
    return values, np.ones(len(values))


def premature_stop(stopped_early: Column, correct: Column) -> Terms:
    """PSE: share of *all* problems that stop before T_max with a wrong answer."""
    return share(stopped_early * (1 - correct))


def among_accepted(accepted: Column, correct: Column) -> Terms:
    """Share of the accepted answers that are correct."""
    return accepted * correct, accepted


def verdict_agreement(verdict: Column, correct: Column) -> Terms:
    """VAcc: accuracy of the CORRECT and INCORRECT verdicts; UNSURE abstains."""
    committed = verdict >= 0
    return committed & (verdict == correct), committed


def squared_error(confidence: Column, correct: Column) -> Terms:
    """Brier: mean squared distance of the confidence from the label."""
    return share((confidence - correct) ** 2)


def overconfident(verdict: Column, correct: Column) -> Terms:
    """Overconf: share of *all* observed turns with the verdict CORRECT on a wrong answer.

    Undefined where no turn states a verdict, as in logs of other programs.
    """
    wrong = (verdict == VERDICT_CODES[Verdict.CORRECT]) & (correct == 0)
    return wrong, verdict != NO_VERDICT


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


def risk_coverage_area(confidence: Column, correct: Column) -> float:
    """AURC: the share of wrong answers among the k most confident, averaged over k = 1 to n.

    Equal confidences are in random order, of which this is the expectation. nan without rows.

    Examples:
        >>> risk_coverage_area(np.array([0.9, 0.5]), np.array([1, 0]))
        0.25
        >>> risk_coverage_area(np.array([0.5, 0.5]), np.array([1, 0]))
        0.5
    """
    if len(confidence) == 0:
        return math.nan
    _, level = np.unique(-np.asarray(confidence), return_inverse=True)
    size = np.bincount(level)
    wrong = np.bincount(level, weights=1 - correct)
    expected = np.cumsum(np.repeat(wrong / size, size))  # wrong ones among the k most confident
    return math.fsum((expected / np.arange(1, len(expected) + 1)).tolist()) / len(expected)


@dataclass(frozen=True)
class Definition:
    """How a metric is computed from columns, and how it is shown."""

    head: str
    """Its heading in tables."""
    words: str
    columns: tuple[str, ...]
    """Columns of a per-problem table, in the order in which ``terms`` takes them."""
    terms: Callable[..., Terms | float] = share
    """Numerator and denominator of each row; or, of an area, its value over all rows at once."""
    rows: Literal["problems", "turns", "first", "returned"] = "problems"
    """Problems; or all observed turns with a self-check, the first or the returned one of each."""
    higher_is_better: bool | None = True
    """None if neither direction is better."""
    form: str = "{:.3f}"
    in_tables: bool = True

    def text(self, value: float | None) -> str:
        """A value as tables show it; :data:`NONE` where it is undefined."""
        return NONE if value is None else self.form.format(value)


DEFINITIONS = {
    "accuracy": Definition(
        head="Acc.",
        words="accuracy",
        columns=("final_correct",),
    ),
    "first_turn_accuracy": Definition(
        head="First",
        words="first-turn accuracy",
        columns=("first_correct",),
    ),
    "any_turn_accuracy": Definition(
        head="Any",
        words="any-turn accuracy",
        columns=("any_correct",),
    ),
    "turns": Definition(
        head="Turns",
        words="mean turns",
        columns=("turns",),
        higher_is_better=False,
        form="{:.2f}",
    ),
    "avg_prompt_tokens": Definition(
        head="Prompt tok.",
        words="prompt tokens per problem",
        columns=("prompt_tokens",),
        higher_is_better=False,
        form="{:.0f}",
        in_tables=False,
    ),
    "avg_completion_tokens": Definition(
        head="Compl. tok.",
        words="completion tokens per problem",
        columns=("completion_tokens",),
        higher_is_better=False,
        form="{:.0f}",
        in_tables=False,
    ),
    "avg_total_tokens": Definition(
        head="Tokens",
        words="tokens per problem",
        columns=("total_tokens",),
        higher_is_better=False,
        form="{:.0f}",
    ),
    "esr": Definition(
        head="ESR",
        words="early stop rate",
        columns=("stopped_early",),
        higher_is_better=None,
    ),
    "pse": Definition(
        head="PSE",
        words="premature stop error, wrong before T_max",
        columns=("stopped_early", "final_correct"),
        terms=premature_stop,
        higher_is_better=False,
    ),
    "accepted": Definition(
        head="Accepted",
        words="share of problems whose answer is accepted",
        columns=("accepted",),
        higher_is_better=None,
    ),
    "accepted_accuracy": Definition(
        head="Sel. acc.",
        words="accuracy of accepted answers",
        columns=("accepted", "final_correct"),
        terms=among_accepted,
    ),
    "verdict_accuracy": Definition(
        head="V-Acc",
        words="verdict accuracy",
        columns=("verdict", "correct"),
        terms=verdict_agreement,
        rows="turns",
    ),
    "auroc": Definition(
        head="AUROC",
        words="AUROC of confidence",
        columns=("confidence", "correct"),
        rows="turns",
        terms=auroc,
    ),
    "auroc_first_turn": Definition(
        head="AUROC first",
        words="AUROC of first turns",
        columns=("confidence", "correct"),
        rows="first",
        terms=auroc,
    ),
    "auroc_returned": Definition(
        head="AUROC ret.",
        words="AUROC of returned turns",
        columns=("confidence", "correct"),
        rows="returned",
        terms=auroc,
    ),
    "aurc": Definition(
        head="AURC",
        words="area under risk and coverage",
        columns=("confidence", "correct"),
        rows="returned",
        higher_is_better=False,
        terms=risk_coverage_area,
    ),
    "brier": Definition(
        head="Brier",
        words="Brier score",
        columns=("confidence", "correct"),
        terms=squared_error,
        rows="turns",
        higher_is_better=False,
    ),
    "overconfidence": Definition(
        head="Overconf.",
        words="overconfidence",
        columns=("verdict", "correct"),
        terms=overconfident,
        rows="turns",
        higher_is_better=False,
    ),
}
"""Every metric under the name that results files give it. The paper's AUROC counts a problem once
for each turn; those of first and returned turns count it once."""
METRIC_NAMES = DEFINITIONS.keys()
PRINTED = ["accuracy", "turns", "avg_total_tokens", "esr", "pse", "brier"]
"""What the table of an evaluation shows in the terminal; other tables show all ``in_tables``."""


def abbreviations(metrics: Iterable[str]) -> list[str]:
    """What the headings stand for that are not part of their words.

    Examples:
        >>> abbreviations(["turns", "esr", "brier"])
        ['ESR: early stop rate']
    """
    shown = map(DEFINITIONS.__getitem__, metrics)
    return [f"{m.head}: {m.words}" for m in shown if m.head[:3].lower() not in m.words.lower()]


def value_of(metric: str, *columns: Column) -> float:
    """A metric of its columns; nan if it is undefined.

    Examples:
        >>> value_of("brier", np.array([0.5, 1.0]), np.array([1, 1]))
        0.125
        >>> value_of("verdict_accuracy", np.array([1, 0, -1]), np.array([1, 1, 0]))
        0.5
    """
    terms = DEFINITIONS[metric].terms(*columns)
    return quotient(*terms) if isinstance(terms, tuple) else terms


def quotient(numerator: Column, denominator: Column) -> float:
    """Sum / sum, correctly rounded whatever the order of the rows; nan over 0."""
    below = math.fsum(denominator.tolist())
    return math.fsum(numerator.tolist()) / below if below else math.nan
