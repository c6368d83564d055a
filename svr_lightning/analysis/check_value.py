"""What a policy's self-check is worth: ways to spend the same tokens, with it and without it.

Two recordings of one policy on the same problems are compared: turns that refine a draft, and fresh
turns, which are independent samples.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from svr_lightning.analysis.intervals import RESAMPLES, resample_counts, split_clusters
from svr_lightning.analysis.stops import (
    best_of_halves,
    families,
    mean_and_interval,
    measured,
    outcomes,
)
from svr_lightning.analysis.table import Floats, TurnTable
from svr_lightning.core.stopping import FixedTurns, Majority, StopRule

FIRST = "first answer"
VOTE = "majority vote of samples"
FREE = "best stop without the self-check"
REFINING = "refining with the self-check"
FRESH = "fresh samples with the self-check"
Option = tuple[Floats, Floats]
"""Of each problem, whether the answer is right and its tokens: two columns [N]."""


def check_value(refined: TurnTable, fresh: TurnTable, answers: int = 3, seed: int = 0) -> Any:
    """Accuracy of each way within the tokens of some first answers.

    A way is a set of stopping rules with each T_max. Of those within the budget on half of the
    clusters of problems, the most accurate one there is measured on the other half, and the
    reverse.

    Args:
        refined: every turn of refinement on every problem.
        fresh: every fresh turn on the same problems.
        answers: the budget, as a multiple of the mean tokens of a first answer.
        seed: splits and resamples the clusters.

    Returns:
        ``budget`` in tokens per problem; ``rows`` of ``name``, ``accuracy``, ``ci95`` and
        ``tokens``, None where no rule is cheap enough; ``gap`` and ``gap_ci95``: fresh samples with
        the self-check minus the best stop without it, paired.
    """
    first = measured_options(refined, lambda rule: rule == FixedTurns(turns=1))
    budget = answers * float(first[0][1].mean())
    ways = {
        FIRST: first,
        VOTE: measured_options(fresh, lambda rule: isinstance(rule, Majority)),
        FREE: [
            option
            for table in (refined, fresh)
            for option in measured_options(table, lambda rule: not rule.reads_self_check)
        ],
        REFINING: measured_options(refined, lambda rule: rule.reads_self_check),
        FRESH: measured_options(fresh, lambda rule: rule.reads_self_check),
    }
    half = split_clusters(refined.cluster, 0.5, seed)
    counts = resample_counts(refined.cluster, RESAMPLES, seed)
    taken = {name: _chosen(options, budget, half) for name, options in ways.items()}
    rows = []
    for name, option in taken.items():
        accuracy, ci95 = mean_and_interval(option and option[0], counts)
        tokens, _ = mean_and_interval(option and option[1], counts)
        rows.append({"name": name, "accuracy": accuracy, "ci95": ci95, "tokens": tokens})
    ours, free = taken[FRESH], taken[FREE]
    gap, gap_ci95 = mean_and_interval(ours[0] - free[0] if ours and free else None, counts)
    return {"budget": budget, "rows": rows, "gap": gap, "gap_ci95": gap_ci95}


def measured_options(table: TurnTable, wanted: Callable[[StopRule], bool]) -> list[Option]:
    """What each rule of the families, with each T_max, returns."""
    most = table.correct.shape[1]
    rules = [
        (rule, turns)
        for some in families(table, most).values()
        for rule, turns in some
        if isinstance(rule, StopRule) and wanted(rule)
    ]
    return [measured(table, outcome) for outcome in outcomes(table, rules, most)]


def _chosen(options: Sequence[Option], budget: float, half: Any) -> Option | None:
    right, tokens = (np.stack(columns) for columns in zip(*options, strict=True))
    found = best_of_halves(right, tokens, np.full(len(half), budget), half)
    if found is None:
        return None
    by_half, by_rest = found
    return (
        np.where(half, right[by_rest], right[by_half]),
        np.where(half, tokens[by_rest], tokens[by_half]),
    )
