"""Every operating point of a policy, from one recording of all turns.

Rows are plain dictionaries: which point it is, then the metrics of each data set and of the macro
averages, as results files have them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.analysis.intervals import (
    RESAMPLES,
    percentile_interval,
    resample_counts,
    split_clusters,
)
from svr_lightning.analysis.metrics import measure_all
from svr_lightning.analysis.replay import Oracle, replay, replayed
from svr_lightning.analysis.table import Bools, Floats, Outcome, TurnTable, pool, problem_table
from svr_lightning.core.stopping import (
    DEFAULT_THRESHOLD,
    Confident,
    FixedTurns,
    Majority,
    Posterior,
    RepeatedAnswer,
    Score,
    StopRule,
)

THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""The paper's grid, 0.50 to 0.95."""
CERTAINTIES = (0.8, 0.9, 0.95, 0.99, 1.0)
"""Of majorities; 0.95 is the value of adaptive consistency."""
ALTERNATIVES = (3, 30)
"""Wrong answers that a turn could give, of posteriors."""
_SCORES: Mapping[str, tuple[Score, bool]] = {
    "verdict and confidence": ("confidence", True),
    "confidence": ("confidence", False),
    "verdict's probability": ("verdict_probability", True),
    "answer's log-probability": ("answer_logprob", False),
    "completion's log-probability": ("completion_logprob", False),
}
_LEVELS = 11
"""Thresholds of a score, at equal shares of its recorded values."""
ORACLE = "oracle (reads labels)"
Tables = Mapping[str, TurnTable]
Row = dict[str, Any]


def sweep(tables: Tables, rule: Confident, max_turns: int, thresholds: Sequence[float]) -> Row:
    """All curves.

    Args:
        tables: with ``max_turns`` turns of every problem that could be run.
        rule: the operating point; each curve changes one of its settings.
        max_turns: T_max, and the largest fixed budget.
        thresholds: gamma of the curves.

    Returns:
        ``operating_point``: its row. ``fixed``: K = 1 to ``max_turns``. ``thresholds``: gamma at
        T_max. ``verdict_only``: one row. ``confidence_only``: gamma. ``max_turns``: T_max = 1 to
        ``max_turns`` at each gamma. ``transitions``: {data set: one 2 x 2 table per turn boundary},
        see :func:`transitions`.

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
        "verdict_only": adaptive_row(tables, replace(rule, threshold=0.0), max_turns),
        "confidence_only": [
            adaptive_row(tables, replace(rule, needs_correct=False, threshold=gamma), max_turns)
            for gamma in thresholds
        ],
        "max_turns": grid,
        "transitions": {name: transitions(table) for name, table in tables.items()},
    }


def adaptive_row(tables: Tables, rule: Confident, max_turns: int) -> Row:
    """The metrics of adaptive inference with ``rule`` and T_max = ``max_turns``."""
    found = measure_all(replayed(tables, rule, max_turns))
    return {**asdict(rule), "max_turns": max_turns, **found}


def fixed_row(tables: Tables, budget: int) -> Row:
    """The metrics of a fixed budget of K turns. ``esr`` and ``pse`` are 0: nothing stops early."""
    return {"budget": budget, **measure_all(replayed(tables, None, budget))}


def compare_stops(
    tables: Tables,
    rule: StopRule,
    max_turns: int,
    budget: float | None = None,
    *,
    seed: int = 0,
) -> Row:
    """Families of stopping rules at equal tokens, over the problems of all data sets.

    Each family has a grid of settings, T_max up to ``max_turns`` among them. Of the settings within
    the budget on half of the clusters, the most accurate one there is measured on the other half,
    and the reverse, since a choice is optimistic on its own problems. ``budget`` is in
    mean tokens per problem, over all turns that were generated; None takes what ``rule`` takes.
    ``seed`` splits and resamples clusters. Every problem that ran needs ``max_turns`` turns.

    Returns:
        ``budget``; ``winner``, the family with the highest ``accuracy`` that reads no labels, or
        None; ``rows``, one per family: whether it reads labels or a self-check; ``settings`` chosen
        on either half, ``accuracy`` and ``tokens`` measured on the other, ``gap`` to the winner
        (paired), all None if it is too dear; ``points``: the frontier on all problems, which is
        optimistic.

    Raises:
        ValueError: naming a problem whose turns are missing.
    """
    table = pool(tables)
    if budget is None:
        budget = float(measured(table, replay(table, rule, max_turns))[1].mean())
    half = split_clusters(table.cluster, 0.5, seed)
    rows: list[Row] = []
    chosen: dict[str, tuple[Floats, ...]] = {}
    for name, rules in families(table, max_turns).items():
        settings = [f"{one}, at most {turns} turns" for one, turns in rules]
        found = [measured(table, outcome) for outcome in _outcomes(table, rules, max_turns)]
        right, tokens = (np.stack(column) for column in zip(*found, strict=True))
        best = best_of_halves(right, tokens, np.full(len(half), budget), half)
        if best is not None:
            chosen[name] = tuple(
                np.where(half, one[best[1]], one[best[0]]) for one in (right, tokens)
            )
        rows.append(
            {
                "name": name,
                "reads_labels": name == ORACLE,
                "self_check": any(isinstance(r, StopRule) and r.reads_self_check for r, _ in rules),
                "settings": None if best is None else [settings[option] for option in best],
                "points": _frontier(settings, tokens.mean(1), right.mean(1)),
            }
        )
    free = {name: values for name, values in chosen.items() if name != ORACLE}
    winner = max(free, key=lambda n: (free[n][0].mean(), -free[n][1].mean()), default=None)
    counts = resample_counts(table.cluster, RESAMPLES, seed)
    for row in rows:
        answers, paid = chosen.get(row["name"], (None, None))
        gap = None if answers is None or winner is None else answers - chosen[winner][0]
        row["accuracy"], row["ci95"] = _mean(answers, counts)
        row["tokens"], _ = _mean(paid, counts)
        row["gap"], row["gap_ci95"] = _mean(gap, counts)
    return {"budget": budget, "winner": winner, "rows": rows}


def _outcomes(
    table: TurnTable, rules: Sequence[tuple[StopRule | Oracle, int]], max_turns: int
) -> Iterator[Outcome]:
    """The outcome of each rule of :func:`families` with its T_max.

    A majority depends on the number of remaining turns, and both kinds of votes return an earlier
    turn if nothing stops. The others return the turn at which they stop, so one replay of all
    turns, cut at T_max, gives every T_max.
    """
    whole: dict[StopRule | Oracle, Outcome] = {}
    for rule, turns in rules:
        if isinstance(rule, Majority | Posterior):
            yield replay(table, rule, turns)
            continue
        if rule not in whole:
            whole[rule] = replay(table, rule, max_turns)
        yield Outcome(
            returned=np.minimum(whole[rule].returned, turns),
            observed=np.minimum(whole[rule].observed, turns),
            stopped_early=whole[rule].stopped_early & (whole[rule].observed < turns),
        )


def measured(table: TurnTable, outcome: Outcome) -> tuple[Floats, Floats]:
    """[N] whether the returned answer is correct, and the tokens of all turns up to the stop."""
    problems = problem_table(table, outcome).problems
    return problems["final_correct"].astype(float), problems["total_tokens"].astype(float)


def best_of_halves(right: Floats, tokens: Floats, budget: Floats, half: Bools) -> list[int] | None:
    """:func:`best_option` of the problems in ``half`` and of the others; None if one has none.

    Each is to be measured on the other half: on its own problems a winner is optimistic.
    """
    found = [best_option(right[:, h], tokens[:, h], budget[h]) for h in (half, ~half)]
    best = [option for option in found if option is not None]
    return best if len(best) == len(found) else None


def best_option(right: Floats, tokens: Floats, budget: Floats) -> int | None:
    """The most accurate of K options within a budget; among equals the cheaper one.

    Args:
        right: [K, N] accuracy of each option on each problem.
        tokens: [K, N]
        budget: [N] tokens that may be spent; their mean counts.

    Returns:
        None without a problem, or if no option is cheap enough.
    """
    if not right.size:
        return None
    cost, accuracy = tokens.mean(1), right.mean(1)
    cheap = cost <= budget.mean()
    return int(np.lexsort((cost, -np.where(cheap, accuracy, -1.0)))[0]) if cheap.any() else None


def families(
    table: TurnTable, max_turns: int, horizons: Sequence[int] = ()
) -> dict[str, list[tuple[StopRule | Oracle, int]]]:
    """By name, rules with each T_max of ``horizons``.

    Scores that were not recorded, and repetition in a single turn, are left out. Thresholds are
    quantiles of the table's scores. Without ``horizons``: 1 to ``max_turns``.
    """
    counts = range(2, max_turns + 1)
    rules: dict[str, list[StopRule | Oracle]] = {
        "repeated answer": [RepeatedAnswer(times=count) for count in counts],
        "equal answers": [RepeatedAnswer(times=count, in_a_row=False) for count in counts],
        "majority": [Majority(certainty=certainty) for certainty in CERTAINTIES],
        "votes and confidences": [
            Posterior(threshold=level, alternatives=count)
            for level in (0.5, 0.7, 0.85, 0.95, 0.99)
            for count in ALTERNATIVES
        ],
    }
    for name, (score, needs_correct) in _SCORES.items():
        values = [getattr(turn, score) for turns in table.signals for turn in turns]
        known = [value for value in values if value is not None]
        if known:
            levels = np.quantile(known, np.linspace(0, 1, _LEVELS), method="lower").tolist()
            levels += [DEFAULT_THRESHOLD] * (score == "confidence")
            rules[name] = [
                Confident(threshold=level, score=score, needs_correct=needs_correct)
                for level in sorted(set(levels))
            ]
    rules[ORACLE] = [Oracle()]
    every = range(1, max_turns + 1)
    horizons = horizons or every
    found: dict[str, list[tuple[StopRule | Oracle, int]]] = {
        "fixed turns": [(FixedTurns(turns=turns), turns) for turns in every]
    }
    for name, some in rules.items():
        if some:
            found[name] = [(one, turns) for one in some for turns in horizons]
    return found


def _frontier(settings: Sequence[str], tokens: Floats, accuracy: Floats) -> list[Row]:
    """The points that no cheaper one equals, by increasing cost."""
    points: list[Row] = []
    for index in np.lexsort((-accuracy, tokens)):
        if not points or accuracy[index] > points[-1]["accuracy"]:
            values = {"tokens": float(tokens[index]), "accuracy": float(accuracy[index])}
            points.append({"setting": settings[index], **values})
    return points


def _mean(
    values: Floats | None, counts: NDArray[np.int32]
) -> tuple[float | None, list[float] | None]:
    """The mean of [N] values and its interval over [R, N] resamples."""
    if values is None:
        return None, None
    return float(values.mean()), percentile_interval(counts @ values / counts.sum(1))


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
