"""The best option within a budget, measured on other problems than those it was chosen on.

On one half of the clusters of problems, the most accurate option within the budget is chosen; it is
measured on the other half, and the reverse: on its own problems a winner looks too good. A single
split would be a matter of luck, so the result is the mean over :data:`SPLITS` splits. Every
resample of the bootstrap chooses anew, so that intervals include the choice.

Shapes: K options, S training seeds, N problems, R resamples, J splits.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from svr_lightning.analysis.intervals import (
    percentile_interval,
    resample_counts,
    share_interval,
    split_clusters,
)
from svr_lightning.analysis.table import Bools, Floats, Ints

SPLITS = 20
RESAMPLES = 400
"""Resamples of intervals that include a choice: each chooses 2 x :data:`SPLITS` times."""
_TOGETHER = 7
"""Splits whose 2**7 combinations of halves share their sums."""


@dataclass(frozen=True, kw_only=True)
class Draws:
    """A bootstrap over clusters of problems and, independently, over training seeds.

    The first draw is the sample itself: value 0 of an estimate is the point estimate.
    """

    counts: Floats
    """[1 + R, N] how often each problem is drawn; problems of a cluster come together."""
    seeds: Floats
    """[1 + R, S] how often each seed is drawn."""
    weight: Floats
    """[N] how much each problem counts."""
    halves: Bools
    """[J, N] the first half of each split."""
    size: int
    """The number of clusters."""


def draw(
    cluster: Ints,
    seeds: int = 1,
    resamples: int = RESAMPLES,
    weight: Floats | None = None,
) -> Draws:
    """Resamples of clusters and of ``seeds`` training seeds, and splits of the clusters.

    Without ``weight`` all problems count the same.
    """

    def drawn(units: Ints, seed: int) -> Floats:
        counts = resample_counts(units, resamples, seed)
        # Problem by problem in memory, as sums read them.
        return np.asfortranarray(np.vstack([np.ones_like(counts[:1]), counts]))

    return Draws(
        counts=drawn(cluster, 0),
        seeds=drawn(np.arange(seeds), 1),
        weight=np.ones(len(cluster)) if weight is None else weight,
        halves=np.stack([split_clusters(cluster, 0.5, number) for number in range(SPLITS)]),
        size=len(np.unique(cluster)),
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    """What each option returns."""

    names: tuple[str, ...]
    """[K]"""
    right: Floats | Bools
    """[K, S, N] in [0, 1]."""
    tokens: Floats
    """[K, S, N]"""


def joined(parts: Sequence[Options]) -> Options:
    """All options together; of those that return the same, the first."""
    kept: dict[bytes, tuple[str, Floats | Bools, Floats]] = {}
    for part in parts:
        for name, right, tokens in zip(part.names, part.right, part.tokens, strict=True):
            returned = hashlib.sha256(right.tobytes() + tokens.tobytes()).digest()
            kept.setdefault(returned, (name, right, tokens))
    names, rights, spent = zip(*kept.values(), strict=True)
    return Options(names=names, right=np.array(rights), tokens=np.array(spent))


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What the chosen options return on the halves where they were not chosen."""

    accuracy: Floats
    """[1 + R]"""
    tokens: Floats
    """[1 + R] mean per problem."""
    names: tuple[str, ...]
    """The options chosen on the sample itself, the most frequent one first."""
    size: int
    """The number of clusters of problems."""


def choose(options: Options, budget: Floats | float, draws: Draws) -> Chosen | None:
    """The best option within a budget.

    Args:
        options: to choose from; among equally accurate ones the cheaper one is taken.
        budget: tokens per problem, or [S, N] tokens whose mean over a half counts. Where no option
            is within the budget on a half, the cheapest one is taken.
        draws: for the same problems and seeds.

    Returns:
        None if no option is within the budget on all problems, or if there are fewer than two
        clusters.
    """
    count = len(options.names)
    shape = (1, *options.tokens.shape[1:])
    limits = np.full(shape, budget, float)
    sums = _sums((options.right, options.tokens, limits, np.ones(shape)), draws)
    *costs, most, _ = sums[-1, count:, 0].tolist()  # of all problems
    if draws.size < 2 or not any(cost <= most for cost in costs):
        return None
    accuracy, tokens = np.empty((2, len(draws.counts)))
    picked = Counter[int]()
    for row in range(len(draws.counts)):
        *first, whole = sums[..., row]
        halves = np.stack([np.array(first), whole - first]).swapaxes(1, 2)  # [2, 2K + 2, J]
        right, spent, limit, size = np.split(halves, [count, 2 * count, -1], axis=1)
        each = np.maximum(size, 1)
        best = _best(right / each, spent / each, limit / each)
        if row == 0:
            picked.update(best.ravel().tolist())
        accuracy[row] = _measured_elsewhere(right, best) / size.sum()
        tokens[row] = _measured_elsewhere(spent, best) / size.sum()
    return Chosen(
        accuracy=accuracy,
        tokens=tokens,
        names=tuple(options.names[option] for option, _ in picked.most_common()),
        size=draws.size,
    )


def _sums(columns: Sequence[Floats | Bools], draws: Draws) -> Floats:
    """[J + 1, M, 1 + R] sums of columns over the first half of each split, and over all problems.

    Splits go a few at a time: what is added up over the problems that lie in the same halves of
    all of them serves each one.

    Args:
        columns: M in all, [m, S, N] each.
        draws: of S seeds.
    """
    parts = np.vstack([draws.halves, np.ones_like(draws.halves[:1])])
    sums = np.zeros((len(parts), sum(map(len, columns)), len(draws.counts)))
    for start in range(0, len(parts), _TOGETHER):
        group = parts[start : start + _TOGETHER]
        number = 2 ** np.arange(len(group)) @ group  # [N] of the combination of halves
        for one in np.unique(number):
            problems = np.flatnonzero(number == one)
            values = np.concatenate([column[..., problems] for column in columns])
            values = (values * draws.weight[problems]).T  # [n, S, M]
            weights = draws.counts.T[problems, None] * draws.seeds.T.astype(float)  # [n, S, 1 + R]
            total = _rows(values).T @ _rows(weights)
            for part in np.flatnonzero(group[:, problems[0]]):
                sums[start + part] += total
    return sums


def _rows(values: Floats) -> Floats:
    """[n * S, M] of [n, S, M]."""
    return values.reshape(-1, values.shape[2])


def _measured_elsewhere(sums: Floats, best: Ints) -> float:
    """The sum of [2, K, J] over splits and halves, each of the option that the other half chose."""
    return float(np.take_along_axis(sums[::-1], best[:, None], 1).sum())


def _best(right: Floats, cost: Floats, limit: Floats) -> Ints:
    """[2, J] the option of [2, K, J] that is best within ``limit``, [2, 1, J]."""
    accuracy = np.where(cost <= limit, right, -1.0)
    best = accuracy == accuracy.max(1, keepdims=True)
    return np.asarray(np.where(best, cost, np.inf).argmin(1))


def measured(chosen: Chosen | None) -> dict[str, Any]:
    """``accuracy`` with ``ci95``, and ``tokens``; all None where nothing was chosen."""
    if chosen is None:
        return dict.fromkeys(("accuracy", "ci95", "tokens"))
    accuracy = float(chosen.accuracy[0])
    return {
        "accuracy": accuracy,
        "ci95": share_interval(accuracy, chosen.accuracy[1:], chosen.size),
        "tokens": float(chosen.tokens[0]),
    }


def gap(one: Chosen | None, other: Chosen | None) -> dict[str, Any]:
    """``gap`` of the accuracies, paired, with ``gap_ci95``; None where nothing was chosen."""
    if one is None or other is None:
        return dict.fromkeys(("gap", "gap_ci95"))
    difference = one.accuracy - other.accuracy
    interval = percentile_interval(difference[1:])
    if all((each.accuracy == each.accuracy[0]).all() for each in (one, other)):
        # All right or all wrong: the square-and-add interval of Newcombe.
        (low, high), (least, most) = (measured(each)["ci95"] for each in (one, other))
        below = math.hypot(one.accuracy[0] - low, most - other.accuracy[0])
        above = math.hypot(high - one.accuracy[0], other.accuracy[0] - least)
        interval = [float(difference[0]) - below, float(difference[0]) + above]
    return {"gap": float(difference[0]), "gap_ci95": interval}
