"""SVR in lm-evaluation-harness: the task ``svr``, through ``python -m svr_lightning serve``.

The server runs the turns, and the harness sees only the returned one: whether its answer is
correct, and how well verdict and confidence predict it. ``svr.yaml`` beside this file is the task,
and ``--metadata`` names the data set. It needs a server with ``--otherwise answer`` (the default),
or answers that were given up count as wrong and unsure.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from svr_lightning.analysis.metrics import defined_values
from svr_lightning.analysis.records import SampleRecord
from svr_lightning.core.types import Ending, Problem, RemoteCompletion, Trajectory
from svr_lightning.evaluation.adaptive import trajectory_record
from svr_lightning.recipes.dialogues import SelfVerifying, turn_of
from svr_lightning.training.sources import DataSource, load_problems

FOLDER = str(Path(__file__).parent)
"""What ``--include_path`` takes."""


def documents(
    task: str,
    path: str,
    split: str = DataSource.split,
    subset: str | None = None,
    limit: int | None = None,
    **_: Any,
) -> DatasetDict:
    """The problems of a data set, as ``--metadata`` of the harness names it.

    ``task`` reads rows and grades answers, as the server's.
    """
    source = DataSource(name=task, task=task, path=path, split=split, subset=subset, limit=limit)
    rows = [
        {
            "question": problem.question,
            "reference": json.dumps(problem.reference),
            "problem": json.dumps(asdict(problem)),
        }
        for problem in load_problems(source)
    ]
    return DatasetDict({"test": Dataset.from_list(rows)})


def process_results(document: dict[str, Any], results: Sequence[str | None]) -> dict[str, Any]:
    """The record of an answer, for every metric.

    The harness does not say whether a completion was cut off, nor how long it is.
    """
    problem = Problem(**json.loads(document["problem"]))
    turn = turn_of(SelfVerifying(), problem, 1, RemoteCompletion(text=results[0] or ""))
    end = Ending(observed=1, returned=1, stopped_early=False)
    trajectory = Trajectory(problem=problem, sample=0, turns=(turn,), ending=end)
    return dict.fromkeys(METRICS, trajectory_record(trajectory, problem.task).to_json())


def _aggregate(metric: str, records: Sequence[dict[str, Any]]) -> float:
    """A metric of all answers; nan if it is undefined."""
    values = defined_values([SampleRecord.from_json(record) for record in records])
    return values.get(metric, math.nan)


METRICS = ("accuracy", "verdict_accuracy", "auroc", "brier", "overconfidence")
accuracy, verdict_accuracy, auroc, brier, overconfidence = (
    partial(_aggregate, metric) for metric in METRICS
)
