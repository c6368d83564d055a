"""Every row's best option within the same tokens, and ours against the best pair of the others.

A pair is a method without a self-check and a stopping rule that needs none. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from svr_lightning.evaluation.sweep import ORACLE
from tools.miniature import summary
from tools.miniature.reading import Seeds
from tools.miniature.summary import Answers, Frontier

BUDGETS = (50, 70, 100, 140, 200, 280, 400, 560, 800, 1120)
"""Tokens per problem, each about 1.4 times the one before."""
OURS = ("svr", "svr_plus")
Families = Mapping[str, Frontier]
"""Of one row, by the name of a stopping rule."""
Entry = dict[str, Any]


def budget_entries(rows: Sequence[tuple[Seeds, Frontier]]) -> Entry:
    """Accuracy within each budget: every row's, and the gap of ours to the best pair.

    Args:
        rows: with all that each can return greedily, see :func:`options_of`. Sampled turns and
            votes are options too.

    Returns:
        ``curves``: title, name and ``points`` of every row that takes several turns or votes.
        ``pairs``: of each of :data:`OURS` that is there, its seeds and ``points``; a point has
        ``budget``, ``ours``, ``pair`` and ``gap``, ours minus the pair, paired, as ``accuracy`` of
        :func:`~tools.miniature.summary.compare` has it.
    """
    every = [(seeds, _whole(seeds, options)) for seeds, options in rows]
    curves = [
        {"name": seeds.row.name, "title": seeds.row.title, "points": curve(seeds, options)}
        for seeds, options in every
        if len(options.names) > 1
    ]
    pairs = [pairs_of(one, own, every) for one, own in every if one.row.name in OURS]
    return {"curves": curves, "pairs": pairs}


def options_of(title: str, families: Families) -> Frontier:
    """All that a row can return without a label: each of its stopping rules."""
    options = [
        (f"{title}, {name}", answers)
        for family, found in families.items()
        if family != ORACLE
        for name, answers in zip(found.names, found.answers, strict=True)
    ]
    names, answers = zip(*options, strict=True)
    return Frontier(names=names, answers=answers)


def curve(seeds: Seeds, options: Frontier) -> list[Entry]:
    """A row's best option within each budget that allows for one."""
    cluster = summary.clusters(seeds.tables[0])
    points = []
    for budget in BUDGETS:
        found = summary.within(options, np.full(len(cluster), float(budget)), cluster)
        if found is not None:
            points.append({"budget": budget, **_measured(*found)})
    return points


def pairs_of(ours: Seeds, own: Frontier, every: Sequence[tuple[Seeds, Frontier]]) -> Entry:
    """One of our rows against the best pair of all rows that have its seeds."""
    rivals = [
        _with_seeds(seeds, options, ours.seeds)
        for seeds, options in every
        if is_rival(seeds) and set(ours.seeds) <= set(seeds.seeds)
    ]
    entry: Entry = {"name": ours.row.name, "title": ours.row.title, "seeds": list(ours.seeds)}
    if not rivals:
        return {**entry, "points": []}
    pool = Frontier(
        names=tuple(name for options in rivals for name in options.names),
        answers=tuple(answers for options in rivals for answers in options.answers),
    )
    cluster = summary.clusters(ours.tables[0])
    drawn = summary.draws(cluster, len(ours.seeds))
    points = []
    for budget in BUDGETS:
        allowed = np.full(len(cluster), float(budget))
        mine, theirs = (summary.within(options, allowed, cluster) for options in (own, pool))
        if mine is not None and theirs is not None:
            gap = summary.compare(mine[0], theirs[0], drawn)["accuracy"]
            both = {"ours": _measured(*mine), "pair": _measured(*theirs)}
            points.append({"budget": budget, **both, "gap": gap})
    return {**entry, "points": points}


def is_rival(seeds: Seeds) -> bool:
    """Whether a row is a trained method without labels in its prompts and without self-check."""
    row = seeds.row
    return row.trained and row.interface is None and not row.uses_labels


def _whole(seeds: Seeds, greedy: Frontier) -> Frontier:
    """The greedy options of a row, the same of its sampled turns, and its votes."""
    title = seeds.row.title
    names, answers = [*greedy.names], [*greedy.answers]
    if seeds.sampled:
        families = summary.stop_families([recording.table for recording in seeds.sampled])
        sampled = options_of(f"{title} sampled", families)
        names += sampled.names
        answers += sampled.answers
    names += [f"{title} Maj@{k}" for k in seeds.votes]
    return Frontier(names=tuple(names), answers=(*answers, *seeds.votes.values()))


def _with_seeds(seeds: Seeds, options: Frontier, wanted: Sequence[int]) -> Frontier:
    rows = [seeds.seeds.index(seed) for seed in wanted]
    answers = tuple(Answers(right=a.right[rows], tokens=a.tokens[rows]) for a in options.answers)
    return Frontier(names=options.names, answers=answers)


def _measured(taken: Answers, names: Sequence[str]) -> Entry:
    accuracy, tokens = float(taken.right.mean()), float(taken.tokens.mean())
    return {"accuracy": accuracy, "tokens": tokens, "options": list(names)}
