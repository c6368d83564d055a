"""Means over seeds, their intervals, and paired comparisons, from recorded turns. Pure.

Shapes: S seeds, N problems, C clusters of problems, R resamples. A cluster is one set of numbers
with all the targets and orders that were asked of it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.miniature.rows import HORIZON
from svr_lightning.analysis import calibration
from svr_lightning.analysis.intervals import (
    level_resamples,
    percentile_interval,
    ratio_resamples,
    resample_counts,
)
from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.stops import best_of_halves, families, measured
from svr_lightning.analysis.table import Endings, TurnTable, cluster_codes, problem_table
from svr_lightning.core.metrics import DEFINITIONS, VERDICT_CODES
from svr_lightning.core.types import Verdict

RESAMPLES = 2000
LATER = ("votes and confidences",)
"""Families of stopping rules that are younger than the published tables, which lack them."""
RATIOS = (
    "accuracy",
    "first_turn_accuracy",
    "any_turn_accuracy",
    "turns",
    "tokens",
    "tokens_per_correct",
    "esr",
    "pse",
    "brier",
    "overconfidence",
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Ratios = Mapping[str, tuple[Floats, Floats]]


@dataclass(frozen=True, kw_only=True)
class Draws:
    """A two-level bootstrap: the same resamples of problems and of seeds for every row."""

    counts: NDArray[np.int32]
    """[R, N] how often each problem is in a resample; problems of a cluster come together."""
    weights: Floats
    """[R, S] how often each seed is, divided by S."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a row returned."""

    right: Floats
    """[S, N] in [0, 1]."""
    tokens: Floats
    """[S, N] prompt and completion tokens of all turns."""


def clusters(table: TurnTable) -> Ints:
    """[N] equal numbers for problems that are drawn together.

    Of Countdown those of one set of numbers, whose ids ``SPLIT-NUMBERS-TARGET-ORDER`` differ in
    target and order; of other tasks the clusters of the data set.
    """
    if not all(re.fullmatch(r"[a-z]+(-\d+){4,}", name) for name in table.ids):
        return table.cluster
    return cluster_codes([name.rsplit("-", 2)[0] for name in table.ids])


def draws(cluster: Ints, seeds: int, resamples: int = RESAMPLES, seed: int = 0) -> Draws:
    """Resamples of C clusters, and independently of the seeds."""
    counts = resample_counts(cluster, resamples, seed)
    weights = resample_counts(np.arange(seeds), resamples, seed + 1) / seeds
    return Draws(counts=counts, weights=weights)


def ratios_of(table: TurnTable, outcome: Endings) -> dict[str, tuple[Floats, Floats]]:
    """Each metric as a sum over problems divided by another, by name: two columns [N].

    ``any_turn_accuracy`` is over all recorded turns. The others are the paper's.
    """
    problems = problem_table(table, outcome)
    nothing = (np.zeros(len(table.ids)), np.zeros(len(table.ids)))
    found = dict.fromkeys(DEFINITIONS, nothing) | problems.ratios()
    found["tokens"] = found.pop("avg_total_tokens")
    found["tokens_per_correct"] = (found["tokens"][0], found["accuracy"][0])
    any_right = np.asarray(table.correct.any(1), dtype=np.float64)
    found["any_turn_accuracy"] = (any_right, found["accuracy"][1])
    return {name: found[name] for name in RATIOS}


def budget_ratios(table: TurnTable) -> dict[str, tuple[Floats, Floats]]:
    """Accuracy of every turn that all problems have, by its number."""
    ran = table.length > 0
    width = int(table.length[ran].min()) if ran.any() else 0
    one = np.ones(len(ran))
    return {str(k + 1): (table.correct[:, k].astype(np.float64), one) for k in range(width)}


def change_ratios(table: TurnTable) -> Ratios:
    """What turns 2, 3 and later ones change of the answer before; nothing for single turns.

    Returns:
        By ``2/changed``, ``2/corrected``, ``2/broken`` and so on: answers that differ, of all;
        right ones, of those behind a wrong one; wrong ones, of those behind a right one. With a
        self-check also ``1/wrong_called_correct``, of the wrong first answers.
    """
    turns = table.correct.shape[1]
    answers = np.zeros(table.correct.shape, dtype=np.int64)
    for row, signals in enumerate(table.signals):
        answers[row, : len(signals)] = [turn.answer for turn in signals]
    there = table.length[:, None] > np.arange(1, turns)
    was, now = table.correct[:, :-1], table.correct[:, 1:]
    counts = {
        "changed": (answers[:, 1:] != answers[:, :-1], there),
        "corrected": (now & ~was, there & ~was),
        "broken": (~now & was, there & was),
    }
    spans = {"2": slice(0, 1), "3": slice(1, 2), "later": slice(2, turns)}
    found = {
        f"{name}/{what}": _sums(top[:, span] & of[:, span], of[:, span])
        for name, span in spans.items()
        if span.start < turns - 1
        for what, (top, of) in counts.items()
    }
    if found and table.self_checked:
        wrong = (table.length > 0) & ~table.correct[:, 0]
        called = wrong & (table.verdict[:, 0] == VERDICT_CODES[Verdict.CORRECT])
        found["1/wrong_called_correct"] = _sums(called[:, None], wrong[:, None])
    return found


def _sums(*columns: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    top, bottom = (column.sum(1).astype(np.float64) for column in columns)
    return top, bottom


def mean_over_seeds(runs: Sequence[Ratios], drawn: Draws) -> dict[str, dict[str, Any]]:
    """Of each metric ``mean`` over seeds, ``ci95``, and ``seeds``, the value of each.

    Args:
        runs: [S] of one row.
        drawn: for as many seeds, or for one seed alone.
    """
    whole = np.ones((1, drawn.counts.shape[1]), dtype=np.int32)
    values = [ratio_resamples(run, whole) for run in runs]
    resampled = [ratio_resamples(run, drawn.counts) for run in runs]
    return {
        name: entry([v[name][0] for v in values], np.stack([r[name] for r in resampled]), drawn)
        for name in runs[0]
    }


def auroc_over_seeds(runs: Sequence[tuple[TurnTable, Endings]], drawn: Draws) -> dict[str, Any]:
    """The same of the confidence's AUROC over observed turns."""
    whole = np.ones((1, drawn.counts.shape[1]), dtype=np.int32)
    values: list[Floats] = []
    resampled: list[Floats] = []
    for table, outcome in runs:
        for counts, kept in ((whole, values), (drawn.counts, resampled)):
            turns = problem_table(table, outcome).turns
            found = level_resamples(
                turns, counts, lambda levels: {"auroc": calibration.auroc(levels)}
            )
            kept.append(found["auroc"])
    return entry([value[0] for value in values], np.stack(resampled), drawn)


def entry(values: Sequence[float], resampled: Floats, drawn: Draws) -> dict[str, Any]:
    """A metric's mean, interval and single values; undefined seeds are left out.

    Args:
        values: [S].
        resampled: [S, R].
        drawn: its weights say how often each resample has each seed.
    """
    defined = [float(value) for value in values if not np.isnan(value)]
    spread = weighted(resampled, drawn.weights)
    return {
        "mean": float(np.mean(defined)) if defined else None,
        "ci95": percentile_interval(spread),
        "seeds": [None if np.isnan(value) else float(value) for value in values],
    }


def weighted(resampled: Floats, weights: Floats) -> Floats:
    """[R] the mean over the seeds of each resample of [S, R]; undefined values do not count."""
    known = ~np.isnan(resampled)
    total = (np.where(known, resampled, 0.0) * weights.T).sum(0)
    share = (known * weights.T).sum(0)
    return np.asarray(total / np.where(share > 0, share, np.nan))


# --- comparisons ------------------------------------------------------------------------------


def compare(ours: Answers, other: Answers, drawn: Draws) -> dict[str, Any]:
    """Ours minus the other row on the same problems and seeds.

    Returns:
        ``accuracy`` and ``tokens``: ``difference``, ``seeds`` (that of each) and ``ci95``.
    """
    result: dict[str, Any] = {}
    for name in ("accuracy", "tokens"):
        column = "right" if name == "accuracy" else "tokens"
        gap = getattr(ours, column) - getattr(other, column)
        sums = drawn.counts.sum(1)
        resampled = (drawn.weights @ gap * drawn.counts).sum(1) / sums
        result[name] = {
            "difference": float(gap.mean()),
            "seeds": gap.mean(1).tolist(),
            "ci95": percentile_interval(resampled),
        }
    return result


# --- one row at another row's cost ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """All outcomes that one row's recorded turns can give."""

    names: tuple[str, ...]
    """[O] a stopping rule with its number of turns, or a number of votes."""
    answers: tuple[Answers, ...]
    """[O]"""


def _frontier(options: Sequence[tuple[str, Answers]]) -> Frontier:
    names, answers = zip(*options, strict=True)
    return Frontier(names=names, answers=answers)


def stop_families(tables: Sequence[TurnTable]) -> dict[str, Frontier]:
    """The families of stopping rules of [S] uncensored recordings, for T_tr and for all turns.

    Thresholds of scores are quantiles over the first seed.
    """
    most = min(table.correct.shape[1] for table in tables)
    horizons = sorted({min(HORIZON, most), most})
    return {
        name: _frontier(
            [
                (
                    f"{rule}, at most {turns} turns",
                    answers_of(tables, [replay(table, rule, turns) for table in tables]),
                )
                for rule, turns in rules
            ]
        )
        for name, rules in families(tables[0], most, horizons).items()
        if name not in LATER
    }


def answers_of(tables: Sequence[TurnTable], outcomes: Sequence[Endings]) -> Answers:
    """[S] outcomes as columns."""
    found = [measured(table, out) for table, out in zip(tables, outcomes, strict=True)]
    right, tokens = (np.stack(columns) for columns in zip(*found, strict=True))
    return Answers(right=right, tokens=tokens)


def within(options: Frontier, budget: Floats, cluster: Ints) -> tuple[Answers, list[str]] | None:
    """The most accurate option within a budget, chosen on other problems.

    On each half of the clusters the option is chosen whose mean tokens there, over seeds too, are
    within the mean of ``budget`` there ([N] tokens), and it is measured on the other half: a
    winner's own problems would flatter it.

    Returns:
        What both halves returned, and the names of the two options. None if no option is as cheap.
    """
    right = np.stack([option.right.mean(0) for option in options.answers])  # [O, N]
    tokens = np.stack([option.tokens.mean(0) for option in options.answers])
    even = cluster % 2 == 0
    found = best_of_halves(right, tokens, budget, even)
    if found is None:
        return None
    by_even, by_odd = (options.answers[option] for option in found)
    taken = Answers(
        right=np.where(even, by_odd.right, by_even.right),
        tokens=np.where(even, by_odd.tokens, by_even.tokens),
    )
    return taken, [options.names[option] for option in found]


def at_cost(
    options: Frontier, other: Answers, cluster: Ints, drawn: Draws
) -> dict[str, Any] | None:
    """The most accurate option at another row's cost, as :func:`within` finds it.

    Returns:
        ``accuracy`` and ``tokens``, means over both halves; ``options``, the two that were chosen;
        ``gap``, the option minus the other row, as ``accuracy`` of :func:`compare` has it. None
        if no option is as cheap.
    """
    found = within(options, other.tokens.mean(0), cluster)
    if found is None:
        return None
    taken, names = found
    return {
        "accuracy": float(taken.right.mean()),
        "tokens": float(taken.tokens.mean()),
        "options": names,
        "gap": compare(taken, other, drawn)["accuracy"],
    }
