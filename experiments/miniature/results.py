"""The contents of ``results.json``, from the recorded turns of every row. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from experiments.miniature import summary
from experiments.miniature.recordings import Seeds, same_problems
from experiments.miniature.rows import Row
from experiments.miniature.summary import Floats
from svr_lightning.analysis.choice import Chosen, Draws, Options, joined
from svr_lightning.analysis.table import Endings, TurnTable

BUDGETS = (70, 140, 280, 400, 560, 800)
"""Tokens per problem."""
CHECKED = ("svr", "svr_plus", "rlcr_fresh", "svr_fresh", "svr_plus_fresh")
"""Rows with a self-check that are compared with the methods that have none."""
FREE = "the best method without self-check under a free stop"
RIVALS: Mapping[str, Callable[[Row, Row], bool]] = {
    FREE: lambda row, _: row.trained and row.interface is None and not row.uses_labels,
    "RLCR's fresh turns": lambda row, ours: row.name == "rlcr_fresh" and ours.name != row.name,
    "SVR": lambda row, ours: row.name == "svr" and ours.name == "svr_plus",
    "SVR at its rate": lambda row, ours: row.name == "svr_fast" and ours.name == "svr_plus",
    "its own fresh turns": lambda row, ours: row.name == f"{ours.name}_fresh",
}
"""Whether a row, the first argument, is among the rivals of a checked one, the second."""
Entry = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Judged:
    """A row with what its recordings can return."""

    seeds: Seeds

    @property
    def row(self) -> Row:
        """The row."""
        return self.seeds.row

    @cached_property
    def draws(self) -> Draws:
        """Resamples of its problems and seeds."""
        return summary.draws(self.cluster, len(self.seeds.seeds))

    @cached_property
    def cluster(self) -> summary.Ints:
        """[N] of its problems."""
        return summary.clusters(self.seeds.greedy[0])

    @cached_property
    def greedy(self) -> dict[str, Options]:
        """By family, what greedy turns return."""
        return summary.stop_options(self.seeds.greedy)

    @cached_property
    def sampled(self) -> dict[str, Options]:
        """By family, what sampled turns return."""
        return summary.stop_options(self.seeds.sampled)

    @cached_property
    def every(self) -> Options:
        """All that it can return without labels: greedy, sampled or by votes."""
        title = self.row.title
        votes = [
            Options(names=(f"{title} Maj@{k}",), right=one.right[None], tokens=one.tokens[None])
            for k, one in self.seeds.votes.items()
        ]
        greedy = summary.without_labels(title, self.greedy)
        return joined([*greedy, *summary.without_labels(f"{title} sampled", self.sampled), *votes])

    def own(self, how: str) -> list[tuple[TurnTable, Endings]]:
        """Its tables, ``greedy`` or ``sampled``, under its own protocol."""
        return [(table, table.outcome) for table in getattr(self.seeds, how)]

    @cached_property
    def metrics(self) -> dict[str, dict[str, Floats]]:
        """Values of every metric, ``greedy`` and ``sampled``, under its own protocol."""
        return {how: summary.metrics(self.own(how), self.draws) for how in ("greedy", "sampled")}

    def index(self, seeds: Sequence[int]) -> list[int]:
        """Where some of its seeds are; an untrained row has the same values for every seed."""
        return [self.seeds.seeds.index(seed) if self.row.trained else 0 for seed in seeds]


def row_entries(every: Sequence[Judged]) -> list[Entry]:
    """One entry per row in the order of the plan, majority voting behind the row it is over.

    Raises:
        ConfigError: if two rows have different problems.
    """
    entries: list[Entry] = []
    for one in every:
        same_problems(every[0].seeds.greedy[0].ids, one.seeds.greedy[0].ids, one.row.name)
        entries += [row_entry(one), *(vote_entry(one, k) for k in one.seeds.votes)]
    return entries


def row_entry(one: Judged) -> Entry:
    """Greedy and sampled metrics of a row, and its best number of turns."""
    fixed = _entries(summary.values([*map(summary.turn_ratios, one.seeds.greedy)], one.draws), one)
    best = max(fixed, key=lambda k: (fixed[k]["mean"], -int(k)))
    row = one.row
    return {
        **_identity(row, row.name, row.title),
        "trained_seeds": list(one.seeds.seeds) if row.trained else [],
        "problems": len(one.cluster),
        "greedy": _applicable(row, _entries(one.metrics["greedy"], one)),
        "best_fixed": {"budget": int(best), **fixed[best]},
        "sampled": _applicable(row, _entries(one.metrics["sampled"], one)),
    }


def vote_entry(one: Judged, k: int) -> Entry:
    """Majority voting of ``k`` samples as a row of its own."""
    voted = one.seeds.votes[k]
    ones = np.ones(voted.right.shape[1])
    runs = [
        {
            "accuracy": (right, ones),
            "avg_total_tokens": (tokens, ones),
            "tokens_per_correct": (tokens, right),
        }
        for right, tokens in zip(voted.right, voted.tokens, strict=True)
    ]
    return {
        **_identity(one.row, f"{one.row.name}_maj{k}", f"{one.row.title} Maj@{k}"),
        "trained_seeds": list(one.seeds.seeds),
        "problems": len(ones),
        "greedy": _entries(summary.values(runs, one.draws), one),
    }


def common_seeds(one: Judged, other: Judged) -> list[int]:
    """The seeds of a row that another has too; an untrained one has any."""
    if not other.row.trained:
        return list(one.seeds.seeds)
    return [seed for seed in one.seeds.seeds if seed in other.seeds.seeds or not one.row.trained]


# --- within budgets ---------------------------------------------------------------------------


def budget_entries(every: Sequence[Judged]) -> Entry:
    """Accuracy within each budget: every row's, and the gap of checked ones to their rivals.

    Returns:
        ``curves``: title, name and ``points`` of every row that takes several turns or votes.
        ``pairs``: of each of :data:`CHECKED` that is there and each of :data:`RIVALS`, the common
        seeds and ``points``; a point has ``budget``, ``ours``, ``pair`` (the rivals' best) and
        ``gap``, ours minus the pair, paired.
    """
    curves = [
        _curve(one, best_of((one,), one.seeds.seeds)) for one in every if len(one.every.names) > 1
    ]
    pairs = [
        pair
        for one in every
        if one.row.name in CHECKED
        for against in RIVALS
        if (pair := pairs_of(one, every, against))["points"]
    ]
    return {"curves": curves, "pairs": pairs}


def _curve(one: Judged, best: Sequence[Chosen | None]) -> Entry:
    """A row's best option within each budget that allows for one."""
    points = [
        {"budget": budget, **summary.chosen_entry(found)}
        for budget, found in zip(BUDGETS, best, strict=True)
        if found
    ]
    return {"name": one.row.name, "title": one.row.title, "points": points}


def pairs_of(ours: Judged, every: Sequence[Judged], against: str) -> Entry:
    """One of the checked rows against the best option of one of :data:`RIVALS`."""
    seeds, found = within(ours, rivals_of(ours, every, against))
    points = [
        {
            "budget": budget,
            "ours": summary.chosen_entry(mine),
            "pair": summary.chosen_entry(best),
            "gap": summary.gap_entry(mine.accuracy - best.accuracy),
        }
        for budget, (mine, best) in found.items()
    ]
    named = {"name": ours.row.name, "title": ours.row.title, "against": against}
    return {**named, "seeds": seeds, "points": points}


def rivals_of(ours: Judged, every: Sequence[Judged], against: str) -> list[Judged]:
    """The rivals that have all of a row's seeds; where none has, all rivals."""
    rivals = [one for one in every if RIVALS[against](one.row, ours.row)]
    whole = [one for one in rivals if set(ours.seeds.seeds) <= {*one.seeds.seeds}]
    return whole or rivals


def within(
    ours: Judged, rivals: Sequence[Judged]
) -> tuple[list[int], dict[int, tuple[Chosen, Chosen]]]:
    """The common seeds, and the best of a row and of its rivals within each budget they allow."""
    seeds = [s for s in ours.seeds.seeds if all(s in common_seeds(ours, one) for one in rivals)]
    if not seeds or not rivals:
        return seeds, {}
    sides = (best_of(rows, tuple(seeds)) for rows in ((ours,), tuple(rivals)))
    pairs = zip(BUDGETS, *sides, strict=True)
    return seeds, {budget: (mine, best) for budget, mine, best in pairs if mine and best}


@cache
def best_of(rows: tuple[Judged, ...], seeds: tuple[int, ...]) -> list[Chosen | None]:
    """The best option of some rows with some seeds within each of :data:`BUDGETS`."""
    options = [summary.of_seeds(one.every, one.index(seeds)) for one in rows]
    return summary.best(options, BUDGETS, summary.draws(rows[0].cluster, len(seeds)))


def _entries(found: Mapping[str, Floats], one: Judged) -> Entry:
    return {name: summary.entry(values, one.draws) for name, values in found.items()}


def _identity(row: Row, name: str, title: str) -> Entry:
    return {
        "name": name,
        "title": title,
        "group": row.group,
        "privileged": row.uses_labels,
        "self_check": row.interface,
    }


def _applicable(row: Row, metrics: Mapping[str, Any]) -> Entry:
    """The metrics that apply: a row without a self-check has none of its metrics."""
    absent: set[str] = set()
    if row.interface is None or row.single:
        absent |= {"pse", "esr"}
    if row.interface not in ("joint", "confidence"):
        absent |= {"brier", *summary.AUROCS}
    if row.interface not in ("joint", "verdict"):
        absent |= {"overconfidence"}
    return {name: value for name, value in metrics.items() if name not in absent}
