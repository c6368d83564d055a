"""``python -m experiments.qwen``: what the policies know, from the published recordings."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.qwen.certificates import certificates
from experiments.real.report import ALL, Array, Metric, compared, differing, says_correct
from svr_lightning.analysis.logs import read_recording
from svr_lightning.analysis.table import TurnTable
from svr_lightning.core.metrics import auroc
from svr_lightning.files import to_json

RESULTS = Path(__file__).parent / "results"


def scores(run: TurnTable) -> dict[str, Array]:
    """[N, T] What ranks the answers of N problems, T fresh turns each.

    No stop accepts a turn without a verdict, such as one that was cut off, so it ranks last.
    """
    ranked = {
        "stated": run.confidence,
        "p_correct": says_correct(run),
        "logprob_mean": run.solution_logprob,
        "logprob_sum": run.solution_logprob * run.completion_tokens,
    }
    cut_off = np.isnan(run.verdict_probability)
    return {name: np.where(cut_off, -np.inf, ranked[name]) for name in ranked}


def numbers(run: TurnTable) -> dict[str, Any]:
    """Of a start: right turns, the AUROC of each score, P(CORRECT) over the sum (``over_sum``)."""
    ranked = scores(run)

    def metric(name: str) -> Metric:
        return lambda run, rows: auroc(ranked[name][rows].ravel(), run.correct[rows].ravel())

    over_sum = differing([run], metric("p_correct"), [run], metric("logprob_sum"))
    return {
        "right": run.correct.mean(),
        **{name: metric(name)(run, ALL) for name in ranked},
        "over_sum": compared((0,), run.cluster, over_sum),
    }


def recordings() -> list[TurnTable]:
    """The first start of each seed, two later ways with seed 1, and the 1.5B without a start."""
    paths = sorted(RESULTS.glob("*-fresh.jsonl.gz"))
    return [run for path in paths for run in read_recording(path).tables.values()]


if __name__ == "__main__":
    runs = recordings()
    for row in (*map(numbers, runs), *certificates(runs[-1])):
        print(to_json(row))
