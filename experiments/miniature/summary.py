"""Metrics of a row with their resamples, and what its recorded turns can return. Pure.

Shapes: S seeds, N problems, R resamples. Values are [S, 1 + R]: of each seed, first on the problems
themselves, then on each resample of clusters of problems.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.miniature.rows import HORIZON
from svr_lightning.analysis import calibration
from svr_lightning.analysis.choice import RESAMPLES, Chosen, Draws, Options, choose, draw, joined
from svr_lightning.analysis.intervals import level_resamples, percentile_interval, ratio_resamples
from svr_lightning.analysis.stops import ORACLE, families, options_of
from svr_lightning.analysis.table import Endings, TurnTable, cluster_codes, problem_table
from svr_lightning.core.metrics import DEFINITIONS

AUROCS = tuple(name for name, one in DEFINITIONS.items() if one.terms is None)
"""Of all observed turns, as the paper has it, of first turns and of returned turns."""
_RATIOS = (
    *("accuracy", "first_turn_accuracy", "turns", "avg_total_tokens"),
    *("esr", "pse", "brier", "overconfidence"),
)
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Ratios = Mapping[str, tuple[Floats, Floats]]


def clusters(table: TurnTable) -> Ints:
    """[N] equal numbers for problems that are drawn together.

    Of Countdown those of one set of numbers, whose ids ``SPLIT-NUMBERS-TARGET-ORDER`` differ in
    target and order; of other tasks the clusters of the data set.
    """
    if not all(re.fullmatch(r"[a-z]+(-\d+){4,}", name) for name in table.ids):
        return table.cluster
    return cluster_codes([name.rsplit("-", 2)[0] for name in table.ids])


def draws(cluster: Ints, seeds: int, resamples: int = RESAMPLES) -> Draws:
    """Resamples of clusters and of seeds, the same for every row with as many seeds."""
    return draw(cluster, seeds, resamples)


def metrics(runs: Sequence[tuple[TurnTable, Endings]], drawn: Draws) -> dict[str, Floats]:
    """Values of each metric of S runs; ``any_turn_accuracy`` is over all recorded turns."""
    ratios, areas = [], []
    for table, outcome in runs:
        problems = problem_table(table, outcome)
        one = np.ones(len(table.ids))
        nothing = (0 * one, 0 * one)
        known = dict.fromkeys(_RATIOS, nothing) | problems.ratios()
        found = {name: known[name] for name in _RATIOS}
        found["any_turn_accuracy"] = (table.correct.any(1).astype(float), one)
        found["tokens_per_correct"] = (found["avg_total_tokens"][0], found["accuracy"][0])
        ratios.append(found)
        areas.append(
            {
                name: level_resamples(problems.turns_of(name), drawn.counts, calibration.auroc)
                for name in AUROCS
            }
        )
    return values(ratios, drawn) | {name: np.stack([a[name] for a in areas]) for name in AUROCS}


def values(runs: Sequence[Ratios], drawn: Draws) -> dict[str, Floats]:
    """Values of ratios of sums over problems, of S runs."""
    found = [ratio_resamples(run, drawn.counts) for run in runs]
    return {name: np.stack([one[name] for one in found]) for name in runs[0]}


def turn_ratios(table: TurnTable) -> Ratios:
    """Accuracy of every turn that all problems have, by its number."""
    ran = table.length > 0
    width = int(table.length[ran].min()) if ran.any() else 0
    one = np.ones(len(ran))
    return {str(k + 1): (table.correct[:, k].astype(float), one) for k in range(width)}


def over_seeds(found: Floats, drawn: Draws) -> Floats:
    """[1 + R] the mean of values over seeds; undefined ones do not count."""
    known = ~np.isnan(found)
    total = (np.where(known, found, 0.0) * drawn.seeds.T).sum(0)
    share = (known * drawn.seeds.T).sum(0)
    return np.asarray(total / np.where(share > 0, share, np.nan))


def entry(found: Floats, drawn: Draws) -> dict[str, Any]:
    """Values as their ``mean`` over seeds, ``ci95``, and ``seeds``, that of each."""
    mean = over_seeds(found, drawn)
    single = found[:, 0]
    return {
        "mean": None if np.isnan(mean[0]) else float(mean[0]),
        "ci95": percentile_interval(mean[1:]),
        "seeds": [None if np.isnan(one) else float(one) for one in single],
    }


# --- what recorded turns can return -----------------------------------------------------------


def stop_options(tables: Sequence[TurnTable]) -> dict[str, Options]:
    """Each family of stopping rules on S recordings of every turn, for T_tr and for all turns.

    Thresholds of scores are quantiles over the first seed.
    """
    most = min(table.correct.shape[1] for table in tables)
    horizons = sorted({min(HORIZON, most), most})
    return {
        name: options_of(tables, rules, most)
        for name, rules in families(tables[0], most, horizons).items()
    }


def without_labels(title: str, found: Mapping[str, Options]) -> list[Options]:
    """The options of all families but the oracle, named after their row."""
    return [
        Options(
            names=tuple(f"{title}, {name}" for name in one.names),
            right=one.right,
            tokens=one.tokens,
        )
        for family, one in found.items()
        if family != ORACLE
    ]


def of_seeds(options: Options, chosen: Sequence[int]) -> Options:
    """The options of some seeds, by index; of a single seed, its own as often as needed."""
    index = [0] * len(chosen) if options.right.shape[1] == 1 else list(chosen)
    return Options(
        names=options.names, right=options.right[:, index], tokens=options.tokens[:, index]
    )


def best(
    options: Sequence[Options], budgets: Sequence[Floats | float], drawn: Draws
) -> list[Chosen | None]:
    """:func:`~svr_lightning.analysis.choice.choose` among all options together."""
    return choose(joined(options), budgets, drawn)


def chosen_entry(found: Chosen) -> dict[str, Any]:
    """``accuracy``, ``tokens`` and the most frequent ``options`` of what was chosen."""
    return {
        "accuracy": float(found.accuracy[0]),
        "tokens": float(found.tokens[0]),
        "options": list(found.names[:2]),
    }


def gap_entry(gap: Floats) -> dict[str, Any]:
    """A difference [1 + R] with its interval."""
    return {"difference": float(gap[0]), "ci95": percentile_interval(gap[1:])}
