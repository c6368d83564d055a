"""``python -m experiments.qwen``: what the starts know, from the published recordings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.real.report import read, says_correct
from svr_lightning.analysis.intervals import percentile_interval
from svr_lightning.analysis.table import TurnTable
from svr_lightning.core.metrics import auroc
from svr_lightning.files import to_json

RESULTS = Path(__file__).parent / "results"
RESAMPLES = 2000
Array = NDArray[Any]


def scores(run: TurnTable) -> dict[str, Array]:
    """[N, T] What ranks the answers of N problems, T fresh turns each."""
    return {
        "stated": np.nan_to_num(run.confidence),
        # A turn that was cut off states nothing.
        "p_correct": np.where(np.isnan(run.verdict_probability), 0.0, says_correct(run)),
        "logprob_mean": run.solution_logprob,
        "logprob_sum": run.solution_logprob * run.completion_tokens,
    }


def gap_interval(first: Array, second: Array, right: Array) -> list[float] | None:
    """Of the difference of two AUROCs over all turns, from resampled problems."""
    rng = np.random.default_rng(0)
    gaps = []
    for _ in range(RESAMPLES):
        drawn = rng.integers(len(right), size=len(right))
        labels = right[drawn].ravel()
        gaps.append(auroc(first[drawn].ravel(), labels) - auroc(second[drawn].ravel(), labels))
    return percentile_interval(np.array(gaps))


def starts() -> Iterator[dict[str, Any]]:
    """By start: the share of right turns, the AUROC of each score, and P(CORRECT) over the sum."""
    for path in sorted(RESULTS.glob("start*-fresh.jsonl.gz")):
        (run,) = read(path).values()
        right = np.asarray(run.correct, dtype=bool)
        found = scores(run)
        aurocs = {name: auroc(values.ravel(), right.ravel()) for name, values in found.items()}
        yield {
            "right": right.mean(),
            **aurocs,
            "over_sum": aurocs["p_correct"] - aurocs["logprob_sum"],
            "ci95": gap_interval(found["p_correct"], found["logprob_sum"], right),
        }


if __name__ == "__main__":
    for start in starts():
        print(to_json(start))
