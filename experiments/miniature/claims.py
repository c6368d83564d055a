"""``python -m experiments.miniature.claims``: the paper's main claim and its AUROC, from outcomes.

Writes ``claims.json`` beside the outcomes of each task, in seconds. Adaptive inference is compared
with the best fixed number of turns of the same policy, and the AUROC is counted once per problem.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.miniature import summary
from experiments.miniature.recordings import FILE, Seeds, read_outcomes
from experiments.miniature.rows import BOTH, Task, published
from svr_lightning.analysis.intervals import percentile_interval
from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.table import TurnTable
from svr_lightning.core.metrics import auroc
from svr_lightning.core.stopping import FixedTurns

START = "warm_start"
ROWS = (START, "svr", "svr_plus")
KINDS = ("greedy", "sampled")


def claims(rows: Sequence[Seeds]) -> dict[str, Any]:
    """Per row and kind of turns ``adaptive_minus_fixed`` and ``auroc_first_turn``.

    The fixed number of turns is the best one on these problems, which favours it.
    """
    found = {one.row.name: one for one in rows if one.row.name in ROWS}
    return {
        name: {kind: _of(getattr(found[name], kind), getattr(found[START], kind)) for kind in KINDS}
        for name in ROWS
    }


def _of(tables: Sequence[TurnTable], start: Sequence[TurnTable]) -> dict[str, Any]:
    drawn = summary.draws(summary.clusters(tables[0]), len(tables))
    own = summary.answers_of(tables, [table.outcome for table in tables])
    fixed = [
        summary.answers_of(tables, [replay(table, FixedTurns(turns=k), k) for table in tables])
        for k in range(1, tables[0].correct.shape[1] + 1)
    ]
    best = max(fixed, key=lambda answers: answers.right.mean())
    value, resampled = _first_auroc(tables, drawn)
    before, before_resampled = _first_auroc(start, drawn)
    return {
        "adaptive_minus_fixed": summary.compare(own, best, drawn)["accuracy"],
        "auroc_first_turn": {
            "mean": value,
            "minus_start": value - before,
            "ci95": percentile_interval(resampled - before_resampled),
        },
    }


def _first_auroc(tables: Sequence[TurnTable], drawn: summary.Draws) -> tuple[float, summary.Floats]:
    """AUROC of the confidence at first turns, a mean over seeds; and resampled, [R]."""
    columns = [(table.confidence[:, 0], table.correct[:, 0]) for table in tables]
    picks = [np.repeat(np.arange(counts.size), counts) for counts in drawn.counts]
    resampled = np.array([[auroc(c[pick], y[pick]) for pick in picks] for c, y in columns])
    seeds = len(tables)
    weights = drawn.weights if seeds == drawn.weights.shape[1] else np.ones((len(picks), seeds))
    weights = weights / weights.sum(1, keepdims=True)
    mean = float(np.mean([auroc(c, y) for c, y in columns]))
    return mean, summary.weighted(resampled, weights)


def main(tasks: Sequence[Task] = BOTH) -> None:
    """Write the file of each task."""
    for task in tasks:
        folder = Path(published(task))
        text = json.dumps(claims(read_outcomes(folder / FILE)), indent=1)
        (folder / "claims.json").write_text(text + "\n", encoding="utf-8")
        print(f"{folder / 'claims.json'}")


if __name__ == "__main__":
    main()
