"""A row's evaluations, and values with their resamples: metrics, and what its turns can return.

Shapes: S seeds, N problems, R resamples. Values are [S, 1 + R]: of each seed, first on the problems
themselves, then on each resample of clusters of problems.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from experiments.miniature.rows import HORIZON, Row
from svr_lightning.analysis.choice import Chosen, Draws, Options, draw, joined
from svr_lightning.analysis.intervals import auroc_resamples, percentile_interval, ratio_resamples
from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.stops import ORACLE, families, options_of
from svr_lightning.analysis.table import Floats, Ints, TurnTable, cluster_codes, problem_table
from svr_lightning.core.metrics import DEFINITIONS

AUROCS = tuple(name for name, one in DEFINITIONS.items() if one.terms is None)
"""Of all observed turns, as the paper has it, of first turns and of returned turns."""
_RATIOS = (
    *("accuracy", "first_turn_accuracy", "turns", "avg_total_tokens"),
    *("esr", "pse", "brier", "overconfidence"),
)
Ratios = Mapping[str, tuple[Floats, Floats]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """A row's evaluations. Every table holds all turns."""

    row: Row
    seeds: tuple[int, ...]
    turns: Mapping[str, tuple[TurnTable, ...]]
    """[S] of ``greedy`` and of ``sampled`` turns."""
    votes: Options | None = None
    """Majority voting with each of :data:`~experiments.miniature.rows.VOTE_COUNTS`."""

    @cached_property
    def cluster(self) -> Ints:
        """[N] of its problems."""
        return clusters(self.turns["greedy"][0])

    @cached_property
    def draws(self) -> Draws:
        """Resamples of its problems and seeds."""
        return draw(self.cluster, len(self.seeds))

    @cached_property
    def options(self) -> dict[str, dict[str, Options]]:
        """What greedy and sampled turns return, by family of stopping rules."""
        return {how: stop_options(tables) for how, tables in self.turns.items()}

    @cached_property
    def every(self) -> Options:
        """All that it can return without labels: greedy, sampled or by votes."""
        titles = {"greedy": self.row.title, "sampled": f"{self.row.title} sampled"}
        free = [
            replace(one, names=tuple(f"{title}, {name}" for name in one.names))
            for how, title in titles.items()
            for family, one in self.options[how].items()
            if family != ORACLE
        ]
        return joined([*free, *([self.votes] if self.votes else [])])

    @cached_property
    def metrics(self) -> dict[str, dict[str, Floats]]:
        """Values of every metric of greedy and of sampled turns, under its own protocol."""

        def ended(table: TurnTable) -> TurnTable:
            width = table.correct.shape[1]
            return replace(table, outcome=replay(table, self.row.rule, width))

        return {how: metrics([*map(ended, t)], self.draws) for how, t in self.turns.items()}

    def index(self, seeds: Sequence[int]) -> list[int]:
        """Where some of its seeds are; an untrained row has the same values for every seed."""
        return [self.seeds.index(seed) if self.row.trained else 0 for seed in seeds]


def clusters(table: TurnTable) -> Ints:
    """[N] equal numbers for problems that are drawn together.

    Of Countdown those of one set of numbers, whose ids ``SPLIT-NUMBERS-TARGET-ORDER`` differ in
    target and order; of other tasks the clusters of the data set.
    """
    if not all(re.fullmatch(r"[a-z]+(-\d+){4,}", name) for name in table.ids):
        return table.cluster
    return cluster_codes([name.rsplit("-", 2)[0] for name in table.ids])


def metrics(tables: Sequence[TurnTable], drawn: Draws) -> dict[str, Floats]:
    """Values of each metric of S runs; ``any_turn_accuracy`` is over all recorded turns."""
    ratios, areas = [], []
    for table in tables:
        problems = problem_table(table, table.outcome)
        one = np.ones(len(table.ids))
        known = dict.fromkeys(_RATIOS, (0 * one, 0 * one)) | problems.ratios()
        found = {name: known[name] for name in _RATIOS}
        found["any_turn_accuracy"] = (table.correct.any(1).astype(float), one)
        found["tokens_per_correct"] = (found["avg_total_tokens"][0], found["accuracy"][0])
        ratios.append(found)
        turns = {name: problems.turns_of(name) for name in AUROCS}
        areas.append([auroc_resamples(t, drawn.counts) for t in turns.values()])
    return values(ratios, drawn) | dict(zip(AUROCS, np.stack(areas, 1), strict=True))


def values(runs: Sequence[Ratios], drawn: Draws) -> dict[str, Floats]:
    """Values of ratios of sums over problems, of S runs."""
    found = [ratio_resamples(run, drawn.counts) for run in runs]
    return {name: np.stack([one[name] for one in found]) for name in runs[0]}


def stop_options(tables: Sequence[TurnTable]) -> dict[str, Options]:
    """Each family of stopping rules on S recordings of every turn, for T_tr and for all turns.

    Thresholds of scores are quantiles over the first seed.
    """
    most = min(table.correct.shape[1] for table in tables)
    horizons = sorted({min(HORIZON, most), most})
    rules = families(tables[0], most, horizons)
    return {name: options_of(tables, some, most) for name, some in rules.items()}


def over_seeds(found: Floats, drawn: Draws) -> Floats:
    """[1 + R] the mean of values over seeds; undefined ones do not count."""
    known = ~np.isnan(found)
    total = (np.where(known, found, 0.0) * drawn.seeds.T).sum(0)
    share = (known * drawn.seeds.T).sum(0)
    return np.asarray(total / np.where(share > 0, share, np.nan))


# --- entries of results.json --------------------------------------------------------------------


def entry(found: Floats, drawn: Draws) -> dict[str, Any]:
    """Values as their ``mean`` over seeds, ``ci95``, and ``seeds``, that of each."""
    mean = over_seeds(found, drawn)
    first, *single = (None if np.isnan(one) else float(one) for one in (mean[0], *found[:, 0]))
    return {"mean": first, "ci95": percentile_interval(mean[1:]), "seeds": single}


def chosen_entry(found: Chosen) -> dict[str, Any]:
    """``accuracy``, ``tokens`` and the most frequent ``options`` of what was chosen."""
    accuracy, tokens = float(found.accuracy[0]), float(found.tokens[0])
    return {"accuracy": accuracy, "tokens": tokens, "options": list(found.names[:2])}


def gap_entry(gap: Floats) -> dict[str, Any]:
    """A difference [1 + R] with its interval."""
    return {"difference": float(gap[0]), "ci95": percentile_interval(gap[1:])}
