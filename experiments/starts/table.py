"""The table of the starts: each way's accuracy within the same tokens, before and after training.

Every start chooses its own rules, on other problems than it is measured on. There are two intervals
of a mean over starts: over starts (Student's t, what another start would give) and over problems (a
bootstrap over clusters of problems that all starts share, with the choice in every resample).

Shapes: S starts, R resamples, N problems, T fresh answers.
"""

import math
import statistics
from collections.abc import Mapping
from typing import Any

import mpmath
import numpy as np

from experiments.real.report import holm
from experiments.starts.outcomes import AFTER, BEFORE, EXACT, Arm, Outcomes
from svr_lightning.analysis.check_value import FREE, PROBABLE, STATED
from svr_lightning.analysis.choice import Draws, choose, draw
from svr_lightning.analysis.intervals import percentile_interval
from svr_lightning.analysis.table import Floats
from svr_lightning.core.metrics import auroc_of_counts

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)
"""The 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom."""
AUROC = "AUROC of the stated confidence"
DIFFERENCES = {
    "stated: after - before": ((STATED, AFTER), (STATED, BEFORE)),
    "stated - best free stop, after": ((STATED, AFTER), (FREE, AFTER)),
    "with the probability: after - before": ((PROBABLE, AFTER), (PROBABLE, BEFORE)),
    "with the probability - best free stop, after": ((PROBABLE, AFTER), (FREE, AFTER)),
    "AUROC of the stated confidence: after - before": ((AUROC, AFTER), (AUROC, BEFORE)),
}
EXACT_CREDIT = {
    "stated": ((STATED, EXACT), (STATED, AFTER)),
    "AUROC of the stated confidence": ((AUROC, EXACT), (AUROC, AFTER)),
}
"""What exact credit adds to SVR+; the p-values of these comparisons are corrected together."""
Measured = Mapping[int, Floats]
"""[1 + R] by the seed of the start."""


def table(outcomes: Outcomes) -> dict[str, Any]:
    """Every number of the table.

    Returns:
        ``starts``, ``problems`` and ``clusters``; ``budget``, the mean over starts; ``ways``:
        {way: {arm: :func:`entry`}}; ``auroc`` of what each arm states; ``differences`` and
        ``exact_credit``: paired, by name.
    """
    draws = draw(outcomes.cluster)
    measured, tokens = _measured(outcomes, draws)
    ways: dict[str, dict[str, Any]] = {way: {} for way in outcomes.starts[0].arms[AFTER].ways}
    for (way, arm), values in measured.items():
        ways.setdefault(way, {})[arm] = entry(values)
        if (way, arm) in tokens:
            ways[way][arm]["tokens"] = statistics.fmean(tokens[way, arm])
    auroc = ways.pop(AUROC)
    ways = {way: arms for way, arms in ways.items() if AFTER in arms}  # else over the budget
    exact = _differences(EXACT_CREDIT, measured)
    p_values = {name: p for name, one in exact.items() if (p := one["p"]) is not None}
    for name, adjusted in holm(p_values).items():
        exact[name]["p_holm"] = adjusted
    return {
        "starts": [start.seed for start in outcomes.starts],
        "problems": len(outcomes.ids),
        "clusters": draws.size,
        "budget": statistics.fmean(start.budget for start in outcomes.starts),
        "ways": ways,
        "auroc": auroc,
        "differences": _differences(DIFFERENCES, measured),
        "exact_credit": exact,
    }


def _measured(
    outcomes: Outcomes, draws: Draws
) -> tuple[dict[tuple[str, str], dict[int, Floats]], dict[tuple[str, str], list[float]]]:
    """By way and arm: the values of each start, and the tokens per problem.

    A way that is over the budget of some start is left out.
    """
    measured: dict[tuple[str, str], dict[int, Floats]] = {}
    tokens: dict[tuple[str, str], list[float]] = {}
    too_dear = set()
    for start in outcomes.starts:
        for name, arm in start.arms.items():
            measured.setdefault((AUROC, name), {})[start.seed] = stated_auroc(arm, draws)
            for way, options in arm.ways.items():
                best = choose(options, start.budget, draws)
                if best is None:
                    too_dear.add((way, name))
                    continue
                measured.setdefault((way, name), {})[start.seed] = best.accuracy
                tokens.setdefault((way, name), []).append(float(best.tokens[0]))
    return {key: values for key, values in measured.items() if key not in too_dear}, tokens


def stated_auroc(arm: Arm, draws: Draws) -> Floats:
    """[1 + R] AUROC of the stated confidence of all fresh answers."""
    levels, level = np.unique(arm.stated, return_inverse=True)
    level = level.reshape(arm.stated.shape)
    right = np.zeros((len(arm.stated), len(levels)))
    wrong = np.zeros_like(right)
    problems = np.arange(len(right))
    for turn in range(arm.stated.shape[1]):
        right[problems, level[:, turn]] += arm.correct[:, turn]
        wrong[problems, level[:, turn]] += ~arm.correct[:, turn]
    return auroc_of_counts(draws.counts @ right, draws.counts @ wrong)


def _differences(
    pairs: Mapping[str, tuple[tuple[str, str], tuple[str, str]]],
    measured: Mapping[tuple[str, str], Measured],
) -> dict[str, Any]:
    """Each difference over the starts that have both sides."""
    found = {}
    for name, (one, other) in pairs.items():
        left = measured.get(one, {})
        right = measured.get(other, {})
        both = {seed: left[seed] - right[seed] for seed in left if seed in right}
        if both:
            found[name] = {**entry(both), "p": p_value([float(one[0]) for one in both.values()])}
    return found


def entry(values: Measured) -> dict[str, Any]:
    """The ``mean`` over starts, ``by_start``, and both intervals."""
    by_start = {seed: float(one[0]) for seed, one in values.items()}
    return {
        "mean": statistics.fmean(by_start.values()),
        "over_starts": t_interval([*by_start.values()]),
        "over_problems": percentile_interval(np.stack([*values.values()])[:, 1:].mean(0)),
        "by_start": by_start,
    }


def t_interval(values: list[float]) -> list[float] | None:
    """The 95 % interval of the mean of independent values; None for fewer than two.

    Examples:
        >>> t_interval([0.0, 1.0])
        [-5.853, 6.853]
    """
    if len(values) < 2:
        return None
    centre = statistics.fmean(values)
    half = STUDENT[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return [round(centre - half, 6), round(centre + half, 6)]


def p_value(differences: list[float]) -> float | None:
    """Two-sided p-value of a mean of zero (Student's t); None for fewer than two unlike values."""
    if len(set(differences)) < 2:
        return None
    freedom = len(differences) - 1
    squared = (
        statistics.fmean(differences) ** 2 * len(differences) / statistics.variance(differences)
    )
    tail = freedom / (freedom + squared)
    return float(mpmath.betainc(freedom / 2, 0.5, 0, tail, regularized=True))
