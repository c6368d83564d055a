"""How the cost of an optimizer step grows with group size, turns, completion length and processes.

    python -m tools.bench scaling --out scaling.json

Trains the embedded default for a few steps at a time, changing one setting, and reads the times
that every run logs. One thread a process; medians over the steps after the first.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from svr_lightning.files import write_json
from tools.bench.machine import hardware, versions

ROOT = Path(__file__).resolve().parents[2]
BASE = {"group_size": 8, "horizon": 3, "max_completion_tokens": 96, "processes": 1}
"""The embedded default."""
PROBLEMS = 12
"""Per optimizer step."""
POINTS: list[dict[str, int]] = [
    {},
    {"group_size": 4},
    {"group_size": 16},
    {"horizon": 1},
    {"horizon": 2},
    {"horizon": 6},
    {"max_completion_tokens": 12},
    {"max_completion_tokens": 24},
    {"max_completion_tokens": 48},
    {"processes": 2},
]
KEYS = ("time/rollout", "time/update", "train/completion_tokens", "engine/logprob_diff")


def run(point: dict[str, int], steps: int, micro_batches: int) -> dict[str, Any]:
    """One short training; the settings and the medians of what it logged."""
    settings = BASE | point
    sequences = PROBLEMS * settings["group_size"] // settings["processes"]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "svr_lightning", "fit"),
            *("--config", "configs/countdown_tiny.yaml", "--trainer.default_root_dir", folder),
            *("--trainer.max_steps", str(steps), "--trainer.limit_val_batches", "0"),
            *("--model.micro_batch_size", str(sequences // micro_batches)),
            *("--trainer.enable_progress_bar", "false", "--trainer.callbacks", "[]"),
            *("--trainer.devices", str(settings["processes"])),
            *("--trainer.strategy", "ddp" if settings["processes"] > 1 else "auto"),
            *("--data.test", "[]", "--model.resample", "off"),
            *("--model.recipe.group_size", str(settings["group_size"])),
            *("--model.recipe.horizon", str(settings["horizon"])),
            *("--model.sampling.max_completion_tokens", str(settings["max_completion_tokens"])),
            *("--model.engine.max_batch", "256"),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
        values = defaultdict(list)
        with (Path(folder) / "metrics.csv").open(newline="") as stream:
            for row in csv.DictReader(stream):
                if row["key"] in KEYS and int(row["step"]) > 1:
                    values[row["key"]].append(float(row["value"]))
    return settings | {key: median(values[key]) for key in KEYS}


def main() -> None:
    """Measure each point, print a row, write all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print("group turns limit processes | tokens/turn  rollout s  update s")
    rows = []
    for point in POINTS:
        row = run(point, options.steps, options.micro_batches)
        rows.append(row)
        print(
            f"{row['group_size']:5} {row['horizon']:5} {row['max_completion_tokens']:5} "
            f"{row['processes']:9} | {row['train/completion_tokens']:11.1f} "
            f"{row['time/rollout']:10.2f} {row['time/update']:9.2f}",
            flush=True,
        )
    if options.out:
        about = {"versions": versions(), "hardware": hardware()}
        write_json(options.out, {"points": rows, **about})
