"""Every operating point of a policy, read off one uncensored recording.

Rows are plain dictionaries: which point it is, then the metrics of each data set and of the macro
averages, as results files have them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from svr_lightning.core.stopping import StopRule
from svr_lightning.evaluation.metrics import measure_all
from svr_lightning.evaluation.replay import fixed_budget, replay
from svr_lightning.evaluation.table import TurnTable

THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""The paper's grid, 0.50 to 0.95."""
Tables = Mapping[str, TurnTable]
Row = dict[str, Any]


def sweep(tables: Tables, rule: StopRule, max_turns: int, thresholds: Sequence[float]) -> Row:
    """All curves.

    Args:
        tables: with ``max_turns`` turns of every problem that could be run.
        rule: the operating point; curves change one thing of it at a time.
        max_turns: T_max, and the largest fixed budget.
        thresholds: gamma of the curves.

    Returns:
        ``operating_point``: its row. ``fixed``: K = 1 to ``max_turns``. ``thresholds``: gamma at
        T_max. ``verdict_only``: one row. ``confidence_only``: gamma. ``max_turns``: T_max = 1 to
        ``max_turns`` at each gamma. ``options``: other stopping rules on the same turns.
        ``transitions``: {data set: one 2 x 2 table per turn boundary}, see :func:`transitions`.

    Raises:
        ValueError: naming a problem whose turns are missing.
    """
    grid = [
        adaptive_row(tables, replace(rule, threshold=gamma), horizon)
        for horizon in range(1, max_turns + 1)
        for gamma in thresholds
    ]
    return {
        "operating_point": adaptive_row(tables, rule, max_turns),
        "fixed": [fixed_row(tables, budget) for budget in range(1, max_turns + 1)],
        "thresholds": [row for row in grid if row["max_turns"] == max_turns],
        "verdict_only": adaptive_row(tables, replace(rule, gate="verdict"), max_turns),
        "confidence_only": [
            adaptive_row(tables, replace(rule, gate="confidence", threshold=gamma), max_turns)
            for gamma in thresholds
        ],
        "max_turns": grid,
        "options": [
            {"name": name, **adaptive_row(tables, other, max_turns)}
            for name, other in options(tables, rule).items()
        ],
        "transitions": {name: transitions(table) for name, table in tables.items()},
    }


def adaptive_row(tables: Tables, rule: StopRule, max_turns: int) -> Row:
    """The metrics of adaptive inference with ``rule`` and T_max = ``max_turns``."""
    outcomes = {name: replay(table, rule, max_turns) for name, table in tables.items()}
    return {**asdict(rule), "max_turns": max_turns, **measure_all(tables, outcomes)}


def fixed_row(tables: Tables, budget: int) -> Row:
    """The metrics of a fixed budget of K turns. ``esr`` and ``pse`` are 0: nothing stops early."""
    outcomes = {name: fixed_budget(table, budget) for name, table in tables.items()}
    return {"budget": budget, **measure_all(tables, outcomes)}


def options(tables: Tables, rule: StopRule) -> dict[str, StopRule]:
    """Better uses of the same turns, each alone on top of ``rule``; those that the data allow."""
    lower = max(rule.threshold - 0.2, 0.0)
    others = {
        "most confident turn at T_max": replace(rule, fallback="most_confident"),
        f"a repeated answer stops at {lower:.2f}": replace(rule, agreement_threshold=lower),
        "only a repeated answer stops": replace(
            rule, threshold=2.0, agreement_threshold=rule.threshold
        ),
    }
    if any(bool((~np.isnan(table.verdict_probability)).any()) for table in tables.values()):
        others["verdict's probability"] = replace(rule, evidence="verdict_probability")
        others["stated number x verdict's probability"] = replace(rule, evidence="product")
    return others


def transitions(table: TurnTable) -> list[list[list[int]]]:
    """How labels change from turn to turn.

    Returns:
        [T - 1][2][2] counts over the problems that have both turns: entry [t][before][after] with
        0 wrong and 1 right, so that [t][0][1] were fixed by turn t + 2 and [t][1][0] broken.
    """
    counts = []
    for later in range(1, table.correct.shape[1]):
        both = table.length > later
        pair = 2 * table.correct[both, later - 1] + table.correct[both, later]
        counts.append(np.bincount(pair, minlength=4).reshape(2, 2).tolist())
    return counts


def long_rows(curves: Row) -> list[Row]:
    """The rows of :func:`sweep` one line per point and data set, for a table of one's own.

    Macro averages stand under the names ``macro/all`` and ``macro/math``.
    """
    lines = []
    for curve in ("operating_point", "fixed", "verdict_only", "confidence_only", "max_turns"):
        rows = curves[curve] if isinstance(curves[curve], list) else [curves[curve]]
        for row in rows:
            point = {k: v for k, v in row.items() if k not in ("datasets", "macro")}
            macro = {f"macro/{name}": values for name, values in row["macro"].items()}
            for dataset, values in {**row["datasets"], **macro}.items():
                numbers = {k: v for k, v in values.items() if isinstance(v, int | float)}
                lines.append({"curve": curve, "dataset": dataset, **point, **numbers})
    return lines
