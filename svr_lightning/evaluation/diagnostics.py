"""Calibration and stopping diagnostics of an outcome, each with its bootstrap interval.

They go beyond the paper's metrics, which get intervals here too. docs/metrics.md defines them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.core.metrics import METRIC_NAMES, NO_VERDICT
from svr_lightning.evaluation import calibration
from svr_lightning.evaluation.calibration import (
    BINS,
    ConfidenceCounts,
    levels_of,
    reliability_bins,
    smooth_ece,
)
from svr_lightning.evaluation.intervals import (
    RESAMPLES,
    level_resamples,
    percentile_interval,
    ratio_resamples,
    resample_counts,
)
from svr_lightning.evaluation.table import (
    Outcome,
    ProblemTable,
    TurnTable,
    problem_table,
)

DIAGNOSTICS = "diagnostics.json"
TURN_SETS = ("observed", "first", "recorded")
"""Which turns a calibration metric is taken over: those that the outcome generated, the first one
of each problem, and all that were recorded, also those behind the stop."""
COVERAGES = (0.5, 0.8, 0.9)

Floats = NDArray[np.float64]
Ratios = dict[str, tuple[Floats, Floats]]


def diagnose(
    tables: Mapping[str, TurnTable],
    outcomes: Mapping[str, Outcome],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """The content of ``diagnostics.json``: :func:`diagnostics` of each data set.

    Args:
        tables: by data set, see :func:`turn_tables`.
        outcomes: by data set, of a stopping rule.
        resamples: of the bootstrap.
        seed: of its draws; each data set starts from it.
    """
    return {
        "datasets": {
            name: diagnostics(table, outcomes[name], resamples=resamples, seed=seed)
            for name, table in tables.items()
        },
        "bootstrap": {"resamples": resamples, "seed": seed, "level": 0.95, "unit": "cluster"},
    }


def diagnostics(
    table: TurnTable, outcome: Outcome, *, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Any]:
    """All metrics of one data set and outcome.

    Returns:
        ``n`` problems and ``n_clusters``; ``metrics``: the paper's; ``stopping``: see
        :func:`stopping_ratios`; ``calibration``: per turn set ``n_turns``, the metrics of
        :func:`level_statistics` and ``reliability``, the bins of equal width and of equal mass;
        empty without self-checks. A metric is ``{"value": x, "ci95": [low, high]}``, None if
        undefined.
    """
    counts = resample_counts(table.cluster, resamples, seed)
    problems = problem_table(table, outcome)
    stopping = stopping_ratios(table, outcome)
    resampled = ratio_resamples(stopping, counts)
    whole = ratio_resamples(stopping, np.ones((1, len(table.ids)), dtype=np.int32))
    intervals = _intervals(problems, counts)
    return {
        "n": len(table.ids),
        "n_clusters": len(np.unique(table.cluster)),
        "metrics": {
            name: _value(problems.value(name), intervals[name])
            for name in METRIC_NAMES
            if name in intervals
        },
        "stopping": {name: _value(whole[name][0], resampled[name]) for name in stopping},
        "calibration": {
            name: _calibration(table, chosen, counts)
            for name, chosen in turn_sets(table, outcome).items()
            if table.self_checked
        },
    }


def bootstrap_intervals(
    table: ProblemTable, *, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, list[float] | None]:
    """The 95 % bootstrap interval of each metric that the method has; None if undefined."""
    resampled = _intervals(table, resample_counts(table.cluster, resamples, seed))
    return {name: percentile_interval(values) for name, values in resampled.items()}


def _intervals(table: ProblemTable, counts: NDArray[np.int32]) -> dict[str, Floats]:
    ratios = ratio_resamples(table.ratios(), counts)
    if table.self_checked:
        turns = table.turns
        ratios |= level_resamples(
            turns["confidence"],
            turns["correct"],
            turns["row"],
            counts,
            lambda levels: {"auroc": calibration.auroc(levels)},
        )
    return ratios


def turn_sets(table: TurnTable, outcome: Outcome) -> dict[str, NDArray[np.bool_]]:
    """[N, T] masks by name of the turn set."""
    checked = table.has_turn() & (table.verdict != NO_VERDICT)
    masks = (table.observed(outcome) & checked, checked & (table.turn_numbers() == 1), checked)
    return dict(zip(TURN_SETS, masks, strict=True))


def level_statistics(levels: ConfidenceCounts) -> dict[str, Floats]:
    """The calibration metrics of counts [..., U]."""
    with_coverage = {
        f"risk_at_{round(100 * share)}": calibration.risk_at_coverage(levels, share)
        for share in COVERAGES
    }
    return {
        "ece_width": calibration.expected_calibration_error(levels, BINS, "width"),
        "ece_mass": calibration.expected_calibration_error(levels, BINS, "mass"),
        "smooth_ece": smooth_ece(levels),
        **calibration.brier_decomposition(levels),
        "auroc": calibration.auroc(levels),
        "aurc": calibration.area_under_risk_coverage(levels),
        **with_coverage,
    }


def stopping_ratios(table: TurnTable, outcome: Outcome) -> Ratios:
    """How the rule used right answers, as numerator and denominator per problem, [N] each.

    The rule decides at every observed turn but one that exhausts T_max. It passes where it does
    not stop.

    - ``halting_precision``: right ones among the early stops; 1 - pse / esr.
    - ``missed_stop_turns``: turns passed among the right turns at which the rule decided.
    - ``missed_stop_problems``: share of all problems in which it passed a right turn.
    - ``harm_after_nonstop``: share of all problems in which it passed a right turn and returned a
      wrong answer in the end.
    """
    final = table.at(table.correct, outcome.returned)
    turns = table.turn_numbers()
    decided = (turns <= outcome.observed[:, None]) & (
        (turns < outcome.observed[:, None]) | outcome.stopped_early[:, None]
    )
    passed = (decided & (turns < outcome.observed[:, None]) & table.correct).sum(1)
    every = np.ones(len(table.ids))
    pairs = {
        "halting_precision": (outcome.stopped_early & final, outcome.stopped_early),
        "missed_stop_turns": (passed, (decided & table.correct).sum(1)),
        "missed_stop_problems": (passed > 0, every),
        "harm_after_nonstop": ((passed > 0) & ~final, every),
    }
    return {
        name: (above.astype(np.float64), below.astype(np.float64))
        for name, (above, below) in pairs.items()
    }


def _calibration(
    table: TurnTable, chosen: NDArray[np.bool_], counts: NDArray[np.int32]
) -> dict[str, Any]:
    levels = levels_of(table.confidence[chosen], table.correct[chosen])
    values = level_statistics(levels)
    row, _ = np.nonzero(chosen)
    resampled = level_resamples(
        table.confidence[chosen], table.correct[chosen], row, counts, level_statistics
    )
    return {
        "n_turns": int(chosen.sum()),
        **{name: _value(values[name], resampled[name]) for name in values},
        "reliability": {
            equal: reliability_bins(levels, BINS, equal) for equal in ("width", "mass")
        },
    }


def _value(value: Any, resampled: Floats) -> dict[str, Any]:
    if np.isnan(value):
        return {"value": None, "ci95": None}
    return {"value": float(value), "ci95": percentile_interval(resampled)}
