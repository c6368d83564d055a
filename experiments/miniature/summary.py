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
from svr_lightning.analysis.intervals import percentile_interval
from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.stops import ORACLE, families, options_of
from svr_lightning.analysis.table import Floats, Ints, TurnTable, cluster_codes
from svr_lightning.core.metrics import DEFINITIONS, auroc, auroc_of_counts

AUROCS = tuple(name for name, one in DEFINITIONS.items() if one.terms is auroc)
"""Of all observed turns, as the paper has it, of first turns and of returned turns."""
_RATIOS = (
    "accuracy",
    "first_turn_accuracy",
    "turns",
    "avg_total_tokens",
    "esr",
    "pse",
    "brier",
    "overconfidence",
)


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
        return {
            how: metrics([replay(t, self.row.rule, t.correct.shape[1]) for t in tables], self.draws)
            for how, tables in self.turns.items()
        }

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
    found = {name: np.stack([_sums(table, name) for table in tables], 1) for name in _RATIOS}
    tokens, (right, problems) = found["avg_total_tokens"][0], found["accuracy"]
    every = np.stack([table.correct.any(1) for table in tables])
    others = {"any_turn_accuracy": (every, problems), "tokens_per_correct": (tokens, right)}
    areas = {name: np.stack([_area(table, name, drawn) for table in tables]) for name in AUROCS}
    return values({**found, **others}, drawn) | areas


def values(ratios: Mapping[str, Any], drawn: Draws) -> dict[str, Floats]:
    """Values of sums over problems divided by others, from [S, N] terms of both."""
    found = {}
    for name, terms in ratios.items():
        above, below = np.split(drawn.counts @ np.concatenate(terms).T, 2, axis=1)
        found[name] = (above / np.where(below > 0, below, np.nan)).T
    return found


def _sums(table: TurnTable, metric: str) -> list[Any]:
    """[N] numerators and [N] denominators of a metric."""
    rows, definition = table.rows_of(metric), DEFINITIONS[metric]
    parts = definition.terms(*(rows[name] for name in definition.columns))
    assert isinstance(parts, tuple), metric
    return [np.bincount(rows["row"], part, len(table.ids)) for part in parts]


def _area(table: TurnTable, metric: str, drawn: Draws) -> Floats:
    """[1 + R] AUROC of confidences."""
    rows = table.rows_of(metric)
    levels, level = np.unique(rows["confidence"], return_inverse=True)
    turns = np.zeros((2, len(table.ids), len(levels)))
    np.add.at(turns, (rows["correct"], rows["row"], level), 1)
    wrong, right = drawn.counts @ turns
    return auroc_of_counts(right, wrong)


def stop_options(tables: Sequence[TurnTable]) -> dict[str, Options]:
    """Each family of stopping rules on S recordings of every turn, for T_tr and for all turns.

    Thresholds of scores are quantiles over the first seed.
    """
    most = min(table.correct.shape[1] for table in tables)
    horizons = sorted({min(HORIZON, most), most})
    rules = families(tables[0], most, horizons)
    return {name: options_of(tables, some) for name, some in rules.items()}


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
