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
    on_other_halves,
    outcomes,
)
from svr_lightning.analysis.table import Bools, Floats, TurnTable
from svr_lightning.core.stopping import FixedTurns, Majority, StopRule

FIRST = "first answer"
VOTE = "majority vote of samples"
FREE = "best stop without the self-check"
REFINING = "refining with the self-check"
FRESH = "fresh samples with the self-check"
SPLITS = 20
Option = tuple[Floats, Floats]
"""Of each problem, whether the answer is right and its tokens: two columns [N]."""


def check_value(refined: TurnTable, fresh: TurnTable, answers: int = 3) -> Any:
    """Accuracy of each way within the tokens of some first answers.

    A way is a set of stopping rules with each T_max. Of those within the budget on half of the
    clusters of problems, the most accurate one there is measured on the other half, and the
    reverse. One split would decide much by luck, so that a problem's outcome is the mean over
    :data:`SPLITS` splits.

    Args:
        refined: every turn of refinement on every problem.
        fresh: every fresh turn on the same problems.
        answers: the budget, as a multiple of the mean tokens of a first answer.

    Returns:
        ``budget`` in tokens per problem; ``rows`` of ``name``, ``accuracy``, ``ci95`` and
        ``tokens``, None where no rule is cheap enough; ``gap`` and ``gap_ci95``: fresh samples with
        the self-check minus the best stop without it, paired. Intervals resample the clusters.
    """
    refining, sampling = measured_rules(refined), measured_rules(fresh)
    first = _options(refining, lambda rule: rule == FixedTurns(turns=1))
    ways = {
        FIRST: first,
        VOTE: _options(sampling, lambda rule: isinstance(rule, Majority)),
        FREE: _options(refining + sampling, lambda rule: not rule.reads_self_check),
        REFINING: _options(refining, lambda rule: rule.reads_self_check),
        FRESH: _options(sampling, lambda rule: rule.reads_self_check),
    }
    budget = answers * float(first[0][1].mean())
    halves = [split_clusters(refined.cluster, 0.5, seed) for seed in range(SPLITS)]
    counts = resample_counts(refined.cluster, RESAMPLES, 0)
    taken = {name: _chosen(options, budget, halves) for name, options in ways.items()}
    rows = []
    for name, option in taken.items():
        accuracy, ci95 = mean_and_interval(option and option[0], counts)
        tokens, _ = mean_and_interval(option and option[1], counts)
        rows.append({"name": name, "accuracy": accuracy, "ci95": ci95, "tokens": tokens})
    ours, free = taken[FRESH], taken[FREE]
    gap, gap_ci95 = mean_and_interval(ours[0] - free[0] if ours and free else None, counts)
    return {"budget": budget, "rows": rows, "gap": gap, "gap_ci95": gap_ci95}


def measured_rules(table: TurnTable) -> list[tuple[StopRule, Option]]:
    """Each rule of the families that reads no labels, with each T_max, and what it returns."""
    most = table.correct.shape[1]
    rules = [
        (rule, turns)
        for some in families(table, most).values()
        for rule, turns in some
        if isinstance(rule, StopRule)
    ]
    found = outcomes(table, rules, most)
    return [(rule, measured(table, end)) for (rule, _), end in zip(rules, found, strict=True)]


def _options(
    found: Sequence[tuple[StopRule, Option]], wanted: Callable[[StopRule], bool]
) -> list[Option]:
    return [option for rule, option in found if wanted(rule)]


def _chosen(options: Sequence[Option], budget: float, halves: Sequence[Bools]) -> Option | None:
    """The mean over splits of what the chosen options return; None if a half can afford none."""
    right, tokens = (np.stack(columns) for columns in zip(*options, strict=True))
    best = [best_of_halves(right, tokens, np.full(len(h), budget), h) for h in halves]
    chosen = [(one, half) for one, half in zip(best, halves, strict=True) if one is not None]
    if len(chosen) < len(halves):
        return None
    accuracy, paid = (
        np.mean([on_other_halves(values, one, half) for one, half in chosen], axis=0)
        for values in (right, tokens)
    )
    return accuracy, paid
