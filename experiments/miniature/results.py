"""The contents of ``results.json``, from the recorded turns of every row. Pure."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from experiments.miniature.rows import HOW, VOTE_COUNTS, Row
from experiments.miniature.summary import AUROCS, Judged, chosen_entry, entry, gap_entry, values
from svr_lightning.analysis.choice import Chosen, Options, choose, draw, joined
from svr_lightning.analysis.table import Floats

BUDGETS = (70, 140, 280, 400, 560, 800)
"""Tokens per problem."""
CHECKED = ("svr", "svr_plus", "rlcr_fresh", "svr_fresh", "svr_plus_fresh")
"""Rows with a self-check that are compared with the methods that have none."""
FREE = "the best method without self-check under a free stop"
OWN = "its own fresh turns"
RIVALS: Mapping[str, Callable[[Row, Row], bool]] = {
    FREE: lambda row, _: row.trained and row.interface is None and not row.uses_labels,
    "the warm start's fresh turns": lambda row, ours: row.name == "warm_start_fresh" and ours.fresh,
    "RLCR's fresh turns": lambda row, ours: row.name == "rlcr_fresh" and ours.name != row.name,
    "SVR": lambda row, ours: row.name == "svr" and ours.name == "svr_plus",
    "SVR at its rate": lambda row, ours: row.name == "svr_fast" and ours.name == "svr_plus",
    OWN: lambda row, ours: row.name == f"{ours.name}_fresh",
}
"""Whether a row, the first argument, is among the rivals of a checked one, the second."""
Entry = dict[str, Any]


def row_entries(every: Sequence[Judged]) -> list[Entry]:
    """One entry per row in the order of the plan, majority voting behind the row it is over."""
    entries: list[Entry] = []
    for one in every:
        entries.append(row_entry(one))
        if one.votes:
            entries += vote_entries(one, one.votes)
    return entries


def row_entry(one: Judged) -> Entry:
    """Greedy and sampled metrics of a row, and its best number of turns."""
    right = np.stack([table.correct.T for table in one.turns["greedy"]], 1)
    turns = {str(k): (column, np.ones(column.shape)) for k, column in enumerate(right, 1)}
    fixed = _entries(values(turns, one.draws), one)
    best = max(fixed, key=lambda k: (fixed[k]["mean"], -int(k)))
    greedy, sampled = (_applicable(one.row, _entries(one.metrics[how], one)) for how in HOW)
    found = {"greedy": greedy, "best_fixed": {"budget": int(best), **fixed[best]}}
    return {**_identity(one, one.row.name, one.row.title), **found, "sampled": sampled}


def vote_entries(one: Judged, votes: Options) -> list[Entry]:
    """Majority voting of each number of samples as a row of its own."""
    entries = []
    for k, title, *found in zip(VOTE_COUNTS, votes.names, votes.right, votes.tokens, strict=True):
        (right, tokens), ones = found, np.ones(found[0].shape)
        terms = {"accuracy": (right, ones), "avg_total_tokens": (tokens, ones)}
        own = values({**terms, "tokens_per_correct": (tokens, right)}, one.draws)
        identity = _identity(one, f"{one.row.name}_maj{k}", title)
        entries.append({**identity, "greedy": _entries(own, one)})
    return entries


def common_seeds(one: Judged, other: Judged) -> list[int]:
    """The seeds of a row that another has too; an untrained one has any."""
    if not other.row.trained:
        return list(one.seeds)
    return [seed for seed in one.seeds if seed in other.seeds or not one.row.trained]


# --- within budgets ---------------------------------------------------------------------------


def budget_entries(every: Sequence[Judged]) -> Entry:
    """Accuracy within each budget: every row's, and the gap of checked ones to their rivals.

    Returns:
        ``curves``: title, name and ``points`` of every row that takes several turns or votes, its
        best option within each budget that allows for one.
        ``pairs``: of each of :data:`CHECKED` that is there and each of :data:`RIVALS`, the common
        seeds and ``points``; a point has ``budget``, ``ours``, ``pair`` (the rivals' best) and
        ``gap``, ours minus the pair, paired.
    """
    curves = [
        {
            "name": one.row.name,
            "title": one.row.title,
            "points": [
                {"budget": budget, **chosen_entry(found)}
                for budget, found in zip(BUDGETS, best_of((one,), one.seeds), strict=True)
                if found
            ],
        }
        for one in every
        if len(one.every.names) > 1
    ]
    pairs = [
        pair
        for one in every
        if one.row.name in CHECKED
        for against in RIVALS
        if (pair := pairs_of(one, every, against))["points"]
    ]
    return {"curves": curves, "pairs": pairs}


def pairs_of(ours: Judged, every: Sequence[Judged], against: str) -> Entry:
    """One of the checked rows against the best option of one of :data:`RIVALS`."""
    seeds, found = within(ours, rivals_of(ours, every, against))
    points = [
        {
            "budget": budget,
            "ours": chosen_entry(mine),
            "pair": chosen_entry(best),
            "gap": gap_entry(mine.accuracy - best.accuracy),
        }
        for budget, (mine, best) in found.items()
    ]
    named = {"name": ours.row.name, "title": ours.row.title, "against": against}
    return {**named, "seeds": seeds, "points": points}


def rivals_of(ours: Judged, every: Sequence[Judged], against: str) -> list[Judged]:
    """The rivals that have all of a row's seeds; where none has, all rivals."""
    rivals = [one for one in every if RIVALS[against](one.row, ours.row)]
    whole = [one for one in rivals if {*ours.seeds} <= {*one.seeds}]
    return whole or rivals


def within(
    ours: Judged, rivals: Sequence[Judged]
) -> tuple[list[int], dict[int, tuple[Chosen, Chosen]]]:
    """The common seeds, and the best of a row and of its rivals within each budget they allow."""
    seeds = [s for s in ours.seeds if all(s in common_seeds(ours, one) for one in rivals)]
    if not seeds or not rivals:
        return seeds, {}
    sides = (best_of(rows, tuple(seeds)) for rows in ((ours,), tuple(rivals)))
    pairs = zip(BUDGETS, *sides, strict=True)
    return seeds, {budget: (mine, best) for budget, mine, best in pairs if mine and best}


@cache
def best_of(rows: tuple[Judged, ...], seeds: tuple[int, ...]) -> list[Chosen | None]:
    """The best option of some rows with some seeds within each of :data:`BUDGETS`."""
    options = []
    for one in rows:
        chosen = one.index(seeds)
        right, tokens = one.every.right[:, chosen], one.every.tokens[:, chosen]
        options.append(Options(names=one.every.names, right=right, tokens=tokens))
    every, draws = joined(options), draw(rows[0].cluster, len(seeds))
    return [choose(every, budget, draws) for budget in BUDGETS]


def _entries(found: Mapping[str, Floats], one: Judged) -> Entry:
    return {name: entry(drawn, one.draws) for name, drawn in found.items()}


def _identity(one: Judged, name: str, title: str) -> Entry:
    return {
        "name": name,
        "title": title,
        "privileged": one.row.uses_labels,
        "self_check": one.row.interface,
        "trained_seeds": list(one.seeds) if one.row.trained else [],
        "problems": len(one.cluster),
    }


def _applicable(row: Row, metrics: Mapping[str, Any]) -> Entry:
    """The metrics that apply: a row without a self-check has none of its metrics."""
    absent = {"pse", "esr"} if row.interface is None or row.single else set()
    if row.interface not in ("joint", "confidence"):
        absent |= {"brier", *AUROCS}
    if row.interface not in ("joint", "verdict"):
        absent |= {"overconfidence"}
    return {name: value for name, value in metrics.items() if name not in absent}
