"""Every row's best option within the same tokens, and ours against the best of its rivals. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.miniature import summary
from experiments.miniature.recordings import Seeds
from experiments.miniature.rows import Row
from experiments.miniature.summary import Answers, Frontier
from svr_lightning.analysis.stops import ORACLE

BUDGETS = (50, 70, 100, 140, 200, 280, 400, 560, 800, 1120)
"""Tokens per problem, each about 1.4 times the one before."""
OURS = ("svr", "svr_plus")
CHECKED = (*OURS, "rlcr_fresh", "svr_fresh", "svr_plus_fresh")
"""Rows with a self-check that are compared with the methods that have none."""
RIVALS: Mapping[str, Callable[[Row, Row], bool]] = {
    "the best pair of a method without self-check and a free stop": lambda row, _: is_rival(row),
    "RLCR's fresh turns": lambda row, ours: row.name == "rlcr_fresh" and ours.name != row.name,
    "SVR": lambda row, ours: row.name == "svr" and ours.name == "svr_plus",
    "SVR at its rate": lambda row, ours: row.name == "svr_fast" and ours.name == "svr_plus",
    "its own fresh turns": lambda row, ours: row.name == f"{ours.name}_fresh",
}
"""Whether a row, the first argument, is among the rivals of a checked one, the second."""
Families = Mapping[str, Frontier]
"""Of one row, by the name of a stopping rule."""
Entry = dict[str, Any]


def budget_entries(rows: Sequence[tuple[Seeds, Frontier, Families]]) -> Entry:
    """Accuracy within each budget: every row's, and the gap of ours to the best pair.

    Args:
        rows: each with all that it can return greedily, see :func:`options_of`, and the stopping
            rules on its sampled turns. These and votes are options too.

    Returns:
        ``curves``: title, name and ``points`` of every row that takes several turns or votes.
        ``pairs``: of each of :data:`CHECKED` that is there and each of :data:`RIVALS`, the common
        seeds and ``points``; a point has ``budget``, ``ours``, ``pair`` (the rivals' best) and
        ``gap``, ours minus the pair, paired, as ``accuracy`` of
        :func:`~experiments.miniature.summary.compare` has it.
        ``oracles``: like ``curves``, fresh turns
        up to the first right answer. This reads labels; where a program can check an answer, as on
        Countdown, it is what the program gives.
    """
    every = [(seeds, _whole(seeds, greedy, sampled)) for seeds, greedy, sampled in rows]
    curves = [
        {"name": seeds.row.name, "title": seeds.row.title, "points": curve(seeds, options)}
        for seeds, options in every
        if len(options.names) > 1
    ]
    pairs = [
        pair
        for one, own in every
        if one.row.name in CHECKED
        for against in RIVALS
        if (pair := pairs_of(one, own, every, against))["points"]
    ]
    oracles = [
        {"name": seeds.row.name, "title": seeds.row.title, "points": curve(seeds, sampled[ORACLE])}
        for seeds, _, sampled in rows
        if seeds.row.fresh
    ]
    return {"curves": curves, "pairs": pairs, "oracles": oracles}


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
    cluster = summary.clusters(seeds.greedy[0])
    points = []
    for budget in BUDGETS:
        found = summary.within(options, np.full(len(cluster), float(budget)), cluster)
        if found is not None:
            points.append({"budget": budget, **_measured(*found)})
    return points


def pairs_of(
    ours: Seeds, own: Frontier, every: Sequence[tuple[Seeds, Frontier]], against: str
) -> Entry:
    """One of our rows against the best option of one of :data:`RIVALS`, over common seeds.

    Rivals that lack some of our seeds are left out if others have all of them.
    """
    rivals = [(seeds, options) for seeds, options in every if RIVALS[against](seeds.row, ours.row)]
    whole = [one for one in rivals if set(ours.seeds) <= set(one[0].seeds)]
    rivals = whole or rivals
    common = [seed for seed in ours.seeds if all(seed in one.seeds for one, _ in rivals)]
    entry: Entry = {"name": ours.row.name, "title": ours.row.title, "against": against}
    entry |= {"seeds": common, "points": []}
    if not rivals or not common:
        return entry
    own = _with_seeds(ours, own, common)
    theirs = [_with_seeds(seeds, options, common) for seeds, options in rivals]
    pool = Frontier(
        names=tuple(name for options in theirs for name in options.names),
        answers=tuple(answers for options in theirs for answers in options.answers),
    )
    cluster = summary.clusters(ours.greedy[0])
    drawn = summary.draws(cluster, len(common))
    for budget in BUDGETS:
        allowed = np.full(len(cluster), float(budget))
        mine, best = (summary.within(options, allowed, cluster) for options in (own, pool))
        if mine is not None and best is not None:
            gap = summary.compare(mine[0], best[0], drawn)["accuracy"]
            both = {"ours": _measured(*mine), "pair": _measured(*best)}
            entry["points"].append({"budget": budget, **both, "gap": gap})
    return entry


def is_rival(row: Row) -> bool:
    """Whether a row is a trained method without labels in its prompts and without self-check."""
    return row.trained and row.interface is None and not row.uses_labels


def _whole(seeds: Seeds, greedy: Frontier, sampled: Families) -> Frontier:
    """The greedy options of a row, the same of its sampled turns, and its votes."""
    title = seeds.row.title
    parts = [greedy, options_of(f"{title} sampled", sampled)] if sampled else [greedy]
    names = [name for part in parts for name in part.names]
    answers = [answers for part in parts for answers in part.answers]
    names += [f"{title} Maj@{k}" for k in seeds.votes]
    return Frontier(names=tuple(names), answers=(*answers, *seeds.votes.values()))


def _with_seeds(seeds: Seeds, options: Frontier, wanted: Sequence[int]) -> Frontier:
    rows = [seeds.seeds.index(seed) for seed in wanted]
    answers = tuple(Answers(right=a.right[rows], tokens=a.tokens[rows]) for a in options.answers)
    return Frontier(names=options.names, answers=answers)


def _measured(taken: Answers, names: Sequence[str]) -> Entry:
    accuracy, tokens = float(taken.right.mean()), float(taken.tokens.mean())
    return {"accuracy": accuracy, "tokens": tokens, "options": list(names)}
