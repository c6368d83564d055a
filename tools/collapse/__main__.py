"""``python -m tools.collapse --uninformative FOLDER --work FOLDER``: train what is missing.

Every condition runs with three seeds in a plain training loop, from a policy whose self-checks
know nothing (``python -m experiments.warmstart --informative 0 --out FOLDER``) or, with
``--informative FOLDER``, a little. A run that is there is not made again, so the command can be
stopped and started. ``--minutes`` bounds the time; runs that did not finish are named as missing.
"""

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from svr_lightning.report.drawing import svg
from svr_lightning.tiny.problems import generate
from svr_lightning.training.logs import WINDOW, SelfVerification, has_collapsed
from tools.collapse.conditions import CONDITIONS, STEPS, Condition, Log, train
from tools.collapse.expected import break_even, curve
from tools.collapse.figure import courses, paid

SEEDS = (42, 43, 44)
RESULTS = Path(__file__).resolve().parents[1] / "results" / "collapse.json"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.collapse", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for policies and runs")
    parser.add_argument("--uninformative", type=Path, required=True, help="folder of this start")
    parser.add_argument("--informative", type=Path, help="of the other; without it, not trained")
    parser.add_argument("--minutes", type=float, default=600, help="start no run after so many")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    parser.add_argument("--figures", type=Path, help="folder to draw the figures into")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    starts = {"uninformative": options.uninformative, "informative": options.informative}
    ends = time.monotonic() + 60 * options.minutes
    for seed in SEEDS:  # outermost, so that every condition has a run early
        for condition in CONDITIONS:
            path = run_file(options.work, condition, seed)
            start = starts[condition.start]
            if start is not None and not path.exists() and time.monotonic() < ends:
                log = list(train(condition, start, generate("train"), seed))
                path.write_text(json.dumps(log), encoding="utf-8")
                print(condition.name, seed, summary(log), flush=True)
            options.out.write_text(json.dumps(results(options.work)) + "\n", encoding="utf-8")
    if options.figures:
        found = results(options.work)
        for name, draw, numbers in (
            ("collapse-reward", paid, found["expected"]),
            ("collapse-courses", courses, found["conditions"]),
        ):
            (options.figures / f"{name}.svg").write_text(svg(draw, numbers), encoding="ascii")


def run_file(work: Path, condition: Condition, seed: int) -> Path:
    """Where a run's log lies."""
    return work / f"{condition.name.replace(' ', '_').replace(',', '')}-{seed}.json"


def results(work: Path) -> dict[str, Any]:
    """All runs that are there, their summaries, and which are missing."""
    conditions, missing = [], []
    for condition in CONDITIONS:
        logs: dict[int, Log] = {}
        for seed in SEEDS:
            path = run_file(work, condition, seed)
            if path.exists():
                logs[seed] = json.loads(path.read_text(encoding="utf-8"))
            else:
                missing.append(f"{condition.name}, seed {seed}")
        conditions.append(
            {
                "name": condition.name,
                "asks": condition.asks,
                "runs": {str(seed): summary(log) for seed, log in logs.items()},
                "mean_log": mean_log(list(logs.values())),
            }
        )
    expected = {"break_even_accuracy": break_even(), "curve": curve()}
    return {"steps": STEPS, "conditions": conditions, "missing": missing, "expected": expected}


def summary(log: Log) -> dict[str, Any]:
    """The means of the first and last rollouts, the accuracy of the last forty, and a warning.

    ``warned`` is the step at which a training would have warned of a collapse, None if at none.
    """
    first, last = (mean_log_row(part) for part in (log[:WINDOW], log[-WINDOW:]))
    ends = range(2 * WINDOW, len(log) + 1)
    seen = ((end, _seen(mean_log_row(log[end - WINDOW : end]))) for end in ends)
    warned = next((end for end, now in seen if has_collapsed(_seen(first), now)), None)
    accuracy = mean_log_row(log[-40:])["accuracy"]
    return {"first": first, "last": last, "accuracy": accuracy, "warned": warned}


def mean_log(logs: list[Log]) -> Log:
    """The mean over seeds of every step."""
    return [mean_log_row(rows) for rows in zip(*logs, strict=True)]


def mean_log_row(rows: Any) -> dict[str, float | None]:
    """The mean of each value over the rows that have it."""
    found: dict[str, float | None] = {}
    for key in rows[0]:
        values = [row[key] for row in rows if row[key] is not None]
        found[key] = round(fmean(values), 4) if values else None
    return found


def _seen(row: Mapping[str, float | None]) -> SelfVerification:
    names = ("verdict/correct", "would_stop", "confidence/spread", "auroc")
    says_correct, would_stop, spread, auroc = (float(row[name] or 0.0) for name in names)
    return SelfVerification(
        says_correct=says_correct, would_stop=would_stop, spread=spread, auroc=auroc
    )


if __name__ == "__main__":
    main()
