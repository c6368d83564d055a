"""A whole training under torchrun: every problem once, every trajectory on disk, one log."""

import json
import os
import subprocess
import sys
from pathlib import Path

from svr_lightning.core.metrics import METRIC_NAMES

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "[{{name: {0}, task: countdown, path: 'embedded:countdown-tiny', split: {0}, limit: {1}}}]"


def test_two_processes_of_torchrun_share_the_work_and_write_one_run(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
        *("-m", "svr_lightning", "fit"),
        *("--config", "configs/countdown_tiny.yaml", "--trainer.default_root_dir", str(tmp_path)),
        *("--trainer.devices", "2", "--trainer.strategy", "ddp", "--trainer.max_steps", "2"),
        *("--trainer.val_check_interval", "2", "--trainer.enable_progress_bar", "false"),
        *("--data.problems_per_step", "4", "--data.val", SOURCE.format("dev", 7)),
        *("--data.test", SOURCE.format("test", 5), "--model.evaluation.max_turns", "2"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    metrics = (tmp_path / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in metrics if "train/grad_norm" in line] == ["1", "2"]
    rollouts = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").open()]
    # 2 steps, 4 problems over both processes, 8 trajectories of each.
    assert len(rollouts) == 2 * 4 * 8
    assert len({(line["step"], line["id"]) for line in rollouts}) == 2 * 4
    for name, count in (("step-000002", 7), ("after", 5)):
        results = json.loads((tmp_path / "eval" / name / "results.json").read_text())
        assert [values["n"] for values in results["datasets"].values()] == [count]
    # What validation logs is reduced over the processes by the metrics themselves.
    results = json.loads((tmp_path / "eval" / "step-000002" / "results.json").read_text())
    logged = {key: value for _, key, value in (line.split(",") for line in metrics[1:])}
    for name in METRIC_NAMES:
        value = results["datasets"]["dev"][name]
        assert (f"val/dev/{name}" in logged) == (value is not None)
        assert value is None or float(logged[f"val/dev/{name}"]) == value, name
