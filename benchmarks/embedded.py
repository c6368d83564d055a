"""The embedded experiment: SVR over three seeds, its ablation, and the figures the README quotes.

    python benchmarks/embedded.py --out runs/embedded            # trains six runs, two at a time
    python benchmarks/embedded.py --out runs/embedded --report   # only sums up what is there

For each seed, with the verification reward and without it: ``fit`` as in the README, then the
trained policy on the same held-out problems for ten uncensored greedy turns (every fixed budget
and any-of-ten are read off these), and sampled at temperature 0.9 for the three turns of training.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from svr_lightning.evaluation.results import read_samples
from svr_lightning.evaluation.sweep import fixed_row
from svr_lightning.evaluation.table import turn_tables

ROOT = Path(__file__).resolve().parents[1]
TINY = ["--config", str(ROOT / "configs" / "countdown_tiny.yaml")]
WITHOUT = ["--config", str(ROOT / "configs" / "ablations" / "without_verify.yaml")]
METHODS: dict[str, list[str]] = {"svr": [], "without_verify": WITHOUT}
UNCENSORED = ["--model.evaluation.adaptive", "false"]
SAMPLED = [
    *UNCENSORED,
    *("--model.evaluation.max_turns", "3", "--model.evaluation.temperature", "0.9"),
]
SHOWN = ("accuracy", "pse", "auroc", "brier", "overconfidence", "esr", "turns")


def command(*arguments: str, folder: Path) -> None:
    """Run one command on one thread, its output beside its folder; skip what is already there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    quiet = ("--trainer.enable_progress_bar", "false")
    line = [sys.executable, "-m", "svr_lightning", *arguments, *quiet]
    line += ["--trainer.default_root_dir", str(folder)]
    with folder.with_suffix(".log").open("w") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(line, check=True, cwd=ROOT, env=environment, stdout=log, stderr=log)


def judge(policy: str, seed: int, folder: Path) -> None:
    """Ten uncensored greedy turns and three sampled ones of one policy."""
    common = (*TINY, "--seed_everything", str(seed), "--model.policy.path", policy)
    for name, extra in (("uncensored", UNCENSORED), ("sampled", SAMPLED)):
        if not (folder / name / "eval" / "test" / "results.json").is_file():
            command("test", *common, *extra, folder=folder / name)


def train_and_judge(method: str, seed: int, out: Path) -> None:
    """One run and its two evaluations."""
    folder = out / f"{method}-{seed}"
    if not (folder / "policy" / "config.json").is_file():
        command("fit", *TINY, *METHODS[method], "--seed_everything", str(seed), folder=folder)
    judge(str(folder / "policy"), seed, folder)


def results(folder: Path, name: str) -> dict[str, Any]:
    """The held-out figures of one evaluation."""
    data = json.loads((folder / "eval" / name / "results.json").read_text())
    return dict(data["datasets"]["countdown_tiny"])


def figures(folder: Path) -> dict[str, Any]:
    """What the report says of one policy."""
    samples = read_samples(folder / "uncensored" / "eval" / "test" / "samples.jsonl")
    tables = turn_tables(samples)
    fixed = [fixed_row(tables, budget)["macro"]["all"]["accuracy"] for budget in range(1, 11)]
    sampled = results(folder / "sampled", "test")
    return {
        "any_of_ten": fmean(any(t["correct"] for t in r["turns"]) for r in samples),
        "fixed": fixed,
        "sampled_auroc": sampled["auroc"],
        "sampled_overconfidence": sampled["overconfidence"],
        "sampled_brier": sampled["brier"],
        "sampled_accuracy": sampled["accuracy"],
    }


def report(out: Path, seeds: list[int]) -> dict[str, Any]:
    """Everything in one dictionary: the warm start, each run, and means over the seeds."""
    start = results(out / f"svr-{seeds[0]}", "before")
    summary: dict[str, Any] = {"warm_start": {**start, **figures(out / "warm_start")}}
    for method in METHODS:
        runs = {}
        for seed in seeds:
            folder = out / f"{method}-{seed}"
            runs[str(seed)] = {**results(folder, "after"), **figures(folder)}
        keys = [k for k, v in next(iter(runs.values())).items() if isinstance(v, int | float)]
        defined = {k: [r[k] for r in runs.values() if r[k] is not None] for k in keys}
        means: dict[str, Any] = {k: fmean(v) for k, v in defined.items() if v}
        means["fixed"] = [fmean(r["fixed"][k] for r in runs.values()) for k in range(10)]
        summary[method] = {"seeds": runs, "mean": means}
    return summary


def print_report(summary: dict[str, Any]) -> None:
    """The summary as a table."""
    keys = [*SHOWN, "any_of_ten", "sampled_auroc", "sampled_overconfidence", "sampled_accuracy"]
    rows = [("warm start", summary["warm_start"])]
    for method in METHODS:
        rows += [(f"{method} {s}", run) for s, run in summary[method]["seeds"].items()]
        rows.append((f"{method} mean", summary[method]["mean"]))
    print(f"{'':20}" + "".join(f"{key[-10:]:>11}" for key in keys))
    for name, row in rows:
        cells = [row.get(key) for key in keys]
        print(f"{name:20}" + "".join(f"{'-' if c is None else f'{c:.3f}':>11}" for c in cells))
    for name, row in rows:
        print(f"{name:20} K=1..10 " + " ".join(f"{value:.3f}" for value in row["fixed"]))


def main() -> None:
    """Train, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "embedded")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--report", action="store_true", help="train nothing")
    options = parser.parse_args()
    out = options.out.resolve()
    if not options.report:
        jobs = [(method, seed) for method in METHODS for seed in options.seeds]
        with ThreadPoolExecutor(options.jobs) as pool:
            runs = [pool.submit(train_and_judge, *job, out) for job in jobs]
            runs.append(pool.submit(judge, "embedded:countdown-tiny", 42, out / "warm_start"))
            for run in runs:
                run.result()
    summary = report(out, options.seeds)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print_report(summary)


if __name__ == "__main__":
    main()
