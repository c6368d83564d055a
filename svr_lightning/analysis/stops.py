"""Families of stopping rules compared at equal tokens, from recordings of every turn."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from svr_lightning.analysis.choice import Options, best_within, gap, measured
from svr_lightning.analysis.replay import FirstRight, Row, Tables, replay
from svr_lightning.analysis.table import TurnTable, pool
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
"""How sure a majority must be; 0.95 is the value of adaptive consistency."""
ALTERNATIVES = (3, 30)
"""Numbers of wrong answers that a turn could give, for posteriors."""
_SCORES: Mapping[str, tuple[Score, bool]] = {
    "verdict and confidence": ("confidence", True),
    "confidence": ("confidence", False),
    "verdict's probability": ("verdict_probability", True),
    "answer's log-probability": ("answer_logprob", False),
    "completion's log-probability": ("completion_logprob", False),
    "solution's log-probability": ("solution_logprob", False),
}
_LEVELS = 11
"""Thresholds of a score, at equal shares of its recorded values."""
ORACLE = "oracle (reads labels)"
AnyRule = StopRule | FirstRight


def compare_stops(
    tables: Tables, rule: StopRule, max_turns: int, budget: float | None = None
) -> Row:
    """Families of stopping rules at equal tokens, over the problems of all ``tables`` together.

    Each family has a grid of settings, T_max up to ``max_turns`` among them. The best setting
    within the budget is chosen on other problems than it is measured on, see
    :mod:`svr_lightning.analysis.choice`. ``budget`` is in mean tokens per problem, over all turns
    that were generated; None takes what ``rule`` takes. Every problem that ran needs ``max_turns``
    turns.

    Returns:
        ``budget``; ``winner``, the family with the highest ``accuracy`` that reads no labels, or
        None; ``rows``, one per family: the ``settings`` chosen, the most frequent first,
        ``accuracy`` and ``tokens`` where they were not chosen, and the ``gap`` to the winner
        (paired), all None if it is over budget.

    Raises:
        ValueError: naming a problem whose turns are missing.
    """
    table = pool(tables)
    ended = replay(table, rule, max_turns)
    spent = ended.problems["total_tokens"].astype(float) if budget is None else budget
    chosen = best_within(_ways(table, max_turns), spent, table.cluster)
    rivals = {name: best for name, best in chosen.items() if best and name != ORACLE}
    winner = max(
        rivals,
        key=lambda name: (rivals[name].accuracy[0], -rivals[name].tokens[0]),
        default=None,
    )
    first = None if winner is None else rivals[winner]
    rows = []
    for name, best in chosen.items():
        settings = None if best is None else list(best.names)
        rows.append({"name": name, "settings": settings, **measured(best), **gap(best, first)})
    return {"budget": float(np.mean(spent)), "winner": winner, "rows": rows}


def _ways(table: TurnTable, max_turns: int) -> dict[str, Options]:
    """What every rule of each family of :func:`families` returns."""
    found = families(table, max_turns)
    return {name: options_of([table], rules, max_turns) for name, rules in found.items()}


def options_of(
    tables: Sequence[TurnTable], rules: Sequence[tuple[AnyRule, int]], max_turns: int
) -> Options:
    """What rules with their T_max return on the recordings of S training seeds."""
    right, tokens = [], []
    for ended in zip(*(outcomes(table, rules, max_turns) for table in tables), strict=True):
        right.append([table.problems["final_correct"] for table in ended])
        tokens.append([table.problems["total_tokens"] for table in ended])
    shape = (len(rules), len(tables), len(tables[0].ids))
    return Options(
        names=tuple(f"{rule}, at most {turns} turns" for rule, turns in rules),
        right=np.array(right, float).reshape(shape),
        tokens=np.array(tokens, float).reshape(shape),
    )


def outcomes(
    table: TurnTable, rules: Sequence[tuple[AnyRule, int]], max_turns: int
) -> Iterator[TurnTable]:
    """The table under each rule of :func:`families` with its T_max.

    A majority depends on the number of remaining turns, and both kinds of votes return an earlier
    turn if nothing stops. The others return the turn at which they stop, so one replay of all
    turns, cut at T_max, gives every T_max.
    """
    whole: dict[AnyRule, TurnTable] = {}
    for rule, turns in rules:
        if isinstance(rule, Majority | Posterior):
            yield replay(table, rule, turns)
            continue
        if rule not in whole:
            whole[rule] = replay(table, rule, max_turns)
        ended = whole[rule]
        yield replace(
            ended,
            returned=np.minimum(ended.returned, turns),
            observed=np.minimum(ended.observed, turns),
            stopped_early=ended.stopped_early & (ended.observed < turns),
            accepted=ended.accepted & (ended.observed <= turns),
            max_turns=turns,
        )


def families(
    table: TurnTable, max_turns: int, horizons: Sequence[int] = ()
) -> dict[str, list[tuple[AnyRule, int]]]:
    """Families of rules by name, each rule with each T_max of ``horizons``.

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
    fixed: list[tuple[AnyRule, int]] = [(FixedTurns(turns=turns), turns) for turns in every]
    return {"fixed turns": fixed} | {
        name: [(one, turns) for one in some for turns in horizons or every]
        for name, some in rules.items()
        if some
    }


def frontiers(table: TurnTable, max_turns: int) -> list[Row]:
    """Each family's accuracy over tokens at the settings that are best on these very problems.

    Returns:
        ``name`` and ``points``, by increasing ``tokens``, that no cheaper one equals.
    """
    found = []
    for name, options in _ways(table, max_turns).items():
        tokens, accuracy = options.tokens.mean((1, 2)), options.right.mean((1, 2))
        points: list[Row] = []
        for index in np.lexsort((-accuracy, tokens)):
            if not points or accuracy[index] > points[-1]["accuracy"]:
                values = {"tokens": float(tokens[index]), "accuracy": float(accuracy[index])}
                points.append({"setting": options.names[index], **values})
        found.append({"name": name, "points": points})
    return found
