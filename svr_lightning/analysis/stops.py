"""Families of stopping rules compared at equal tokens, from recordings of every turn."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from svr_lightning.analysis.choice import Options, choose, draw, gap, measured
from svr_lightning.analysis.replay import Row, Tables, replay, require_tokens
from svr_lightning.analysis.table import (
    AnyRule,
    FirstRight,
    TurnTable,
    at_turn,
    pool,
    spent_by_turn,
)
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
POSTERIORS = (0.5, 0.7, 0.85, 0.95, 0.99, 0.9999)
"""How probable votes and a score must make an answer; the last takes nearly all turns."""
ALTERNATIVES = (3, 30)
"""Numbers of wrong answers that a turn could give, for posteriors by confidences."""
_WEIGHTS: Mapping[str, Score] = {
    "votes and P(CORRECT)": "verdict_probability",
    "votes and log-probabilities": "solution_logprob",
}
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
_OF_LOGS = ("fixed turns", "confidence", ORACLE)
"""Families that read nothing but what every log holds."""
_OF_ANSWERS = ("repeated answer", "equal answers", "majority")
"""Families that read answers alone."""


def compare_stops(
    tables: Tables,
    rule: StopRule,
    max_turns: int,
    budget: float | None = None,
    *,
    is_log: bool = False,
) -> Row:
    """Families of stopping rules at equal tokens, as averages over ``tables``.

    Each family has a grid of settings, T_max up to ``max_turns`` among them. The best setting
    within the budget is chosen on other problems than it is measured on, see
    :mod:`svr_lightning.analysis.choice`. ``budget`` is in mean tokens per problem, over all turns
    that were generated; None takes what ``rule`` takes. Every problem that ran needs ``max_turns``
    turns. Of a log no verdicts are known, and often no answers: rules that read them are left out.

    Returns:
        ``budget``; ``winner``, the family with the highest ``accuracy`` that reads no labels, or
        None; ``rows``, one per family: the ``settings`` chosen, the most frequent first,
        ``accuracy`` and ``tokens`` where they were not chosen, and the ``gap`` to the winner
        (paired), all None if it is over budget.

    Raises:
        ValueError: naming a problem whose turns are missing, or if tokens are.
    """
    sizes = [len(one.ids) for one in tables.values()]
    shares = [float(math.lcm(*sizes) // size) for size in sizes]  # integers: sums are exact
    weight = np.repeat(shares, sizes)
    table = pool(tables)
    require_tokens(table, "a comparison at equal tokens")
    ended = replay(table, rule, max_turns)
    spent = ended.total_tokens if budget is None else budget
    rules = families(table, max_turns)
    if is_log:
        answered = (table.answer[:, :max_turns] != np.arange(1, max_turns + 1)).any()
        known = (*_OF_LOGS, *_OF_ANSWERS) if answered else _OF_LOGS
        rules = {name: some for name, some in rules.items() if name in known}
    draws = draw(table.cluster, weight=weight)
    chosen = {name: choose(options_of([table], some), spent, draws) for name, some in rules.items()}
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
    each = np.broadcast_to(spent, weight.shape)
    return {"budget": float(np.average(each, weights=weight)), "winner": winner, "rows": rows}


def options_of(tables: Sequence[TurnTable], rules: Sequence[tuple[AnyRule, int]]) -> Options:
    """What rules with their T_max return on the recordings of S training seeds."""
    names = tuple(f"{rule}, at most {turns} turn{'s' * (turns > 1)}" for rule, turns in rules)
    right = np.empty((len(rules), len(tables), len(tables[0].ids)), dtype=np.bool_)
    tokens = np.empty(right.shape)
    for seed, table in enumerate(tables):
        spent = spent_by_turn(table.turn_tokens)
        # In the order of T_max, since a majority of other certainty has the same votes.
        for option, (rule, turns) in sorted(enumerate(rules), key=lambda each: each[1][1]):
            ended = replay(table, rule, turns)
            right[option, seed] = table.right_at(ended.returned)
            tokens[option, seed] = at_turn(spent, ended.observed)
    return Options(names=names, right=right, tokens=tokens)


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
            for level in POSTERIORS
            for count in ALTERNATIVES
        ],
    }
    for name, score in _WEIGHTS.items():
        if not np.isnan(getattr(table, score)).all():
            rules[name] = [Posterior(threshold=level, score=score) for level in POSTERIORS]
    for name, (score, needs_correct) in _SCORES.items():
        values = getattr(table, score)
        known = values[~np.isnan(values)]
        if known.size:
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
