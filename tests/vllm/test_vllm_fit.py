"""A training, whole, on vLLM."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


STEPS = 16
HELD_OUT = (
    "[{name: held_out, task: countdown, path: 'embedded:countdown-tiny', split: test, limit: 120}]"
)


def test_the_embedded_policy_learns_on_vllm(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "svr_lightning", "fit"),
        # SVR+ learns the same within fewer steps.
        *("--config", "configs/countdown_tiny.yaml", "--config", "configs/methods/svr_plus.yaml"),
        *("--trainer.default_root_dir", str(tmp_path), "--model.micro_batch_size", "48"),
        *("--model.engine", "svr_lightning.engines.vllm.VLLMEngine"),
        *("--trainer.enable_progress_bar", "false", "--trainer.max_steps", str(STEPS)),
        *("--data.test", HELD_OUT, "--trainer.limit_val_batches", "0"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    before, after = (
        json.loads((tmp_path / "eval" / name / "results.json").read_text())["datasets"]
        for name in ("before", "after")
    )
    # It no longer takes its wrong answers for right ones, half of all at the start.
    assert before["held_out"]["pse"] > 0.4
    assert after["held_out"]["pse"] < before["held_out"]["pse"] / 2
    assert after["held_out"]["overconfidence"] < 0.2
    with (tmp_path / "metrics.csv").open(newline="") as stream:
        values = {(row["key"], int(row["step"])): row["value"] for row in csv.DictReader(stream)}
    # Every step was sampled by the very weights that it trained.
    steps = range(1, STEPS + 1)
    assert max(float(values["engine/logprob_diff", step]) for step in steps) < 1e-5
    assert all(float(values["engine/changed_frac", step]) > 0.5 for step in steps)
    assert (tmp_path / "policy" / "model.safetensors").is_file()
