"""Families of stopping rules compared at equal tokens, from recordings of every turn."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from svr_lightning.analysis.intervals import (
    RESAMPLES,
    percentile_interval,
    resample_counts,
    split_clusters,
)
from svr_lightning.analysis.replay import FirstRight, Row, Tables, replay
from svr_lightning.analysis.table import Bools, Endings, Floats, TurnTable, pool, problem_table
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
AnyRule = StopRule | FirstRight


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
        (paired), all None if it is over budget; ``points``: the frontier on all problems, which is
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
        found = [measured(table, outcome) for outcome in outcomes(table, rules, max_turns)]
        right, tokens = (np.stack(column) for column in zip(*found, strict=True))
        best = best_of_halves(right, tokens, np.full(len(half), budget), half)
        if best is not None:
            chosen[name] = on_other_halves(right, best, half), on_other_halves(tokens, best, half)
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
        row["accuracy"], row["ci95"] = mean_and_interval(answers, counts)
        row["tokens"], _ = mean_and_interval(paid, counts)
        row["gap"], row["gap_ci95"] = mean_and_interval(gap, counts)
    return {"budget": budget, "winner": winner, "rows": rows}


def outcomes(
    table: TurnTable, rules: Sequence[tuple[AnyRule, int]], max_turns: int
) -> Iterator[Endings]:
    """The outcome of each rule of :func:`families` with its T_max.

    A majority depends on the number of remaining turns, and both kinds of votes return an earlier
    turn if nothing stops. The others return the turn at which they stop, so one replay of all
    turns, cut at T_max, gives every T_max.
    """
    whole: dict[AnyRule, Endings] = {}
    for rule, turns in rules:
        if isinstance(rule, Majority | Posterior):
            yield replay(table, rule, turns)
            continue
        if rule not in whole:
            whole[rule] = replay(table, rule, max_turns)
        yield Endings(
            returned=np.minimum(whole[rule].returned, turns),
            observed=np.minimum(whole[rule].observed, turns),
            stopped_early=whole[rule].stopped_early & (whole[rule].observed < turns),
        )


def measured(table: TurnTable, outcome: Endings) -> tuple[Floats, Floats]:
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


def on_other_halves(values: Floats, best: Sequence[int], half: Bools) -> Floats:
    """[N] of [K, N] values, those of the option that :func:`best_of_halves` chose elsewhere."""
    return np.where(half, values[best[1]], values[best[0]])


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
) -> dict[str, list[tuple[AnyRule, int]]]:
    """By name, rules with each T_max of ``horizons``.

    Scores that were not recorded, and repetition in a single turn, are left out. Thresholds are
    quantiles of the table's scores. Without ``horizons``: 1 to ``max_turns``.
    """
    counts = range(2, max_turns + 1)
    rules: dict[str, list[AnyRule]] = {
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
    rules[ORACLE] = [FirstRight()]
    every = range(1, max_turns + 1)
    horizons = horizons or every
    found: dict[str, list[tuple[AnyRule, int]]] = {
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


def mean_and_interval(
    values: Floats | None, counts: NDArray[np.int32]
) -> tuple[float | None, list[float] | None]:
    """The mean of [N] values and its interval over [R, N] resamples."""
    if values is None:
        return None, None
    return float(values.mean()), percentile_interval(counts @ values / counts.sum(1))
