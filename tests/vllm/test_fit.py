"""The embedded default, whole, on vLLM."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_embedded_default_learns_on_vllm_as_it_does_on_transformers(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "svr_lightning", "fit"),
        *("--config", "configs/countdown_tiny.yaml", "--trainer.default_root_dir", str(tmp_path)),
        *("--model.engine", "svr_lightning.engines.vllm.VLLMEngine"),
        *("--trainer.enable_progress_bar", "false"),
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
    assert after["countdown_tiny"]["accuracy"] > before["countdown_tiny"]["accuracy"] + 0.2
    assert after["countdown_tiny"]["pse"] < before["countdown_tiny"]["pse"] / 3
    with (tmp_path / "metrics.csv").open(newline="") as stream:
        values = {(row["key"], int(row["step"])): row["value"] for row in csv.DictReader(stream)}
    # Every step of the hundred served the very weights that it trained.
    gaps = [float(values["engine/logprob_diff", step]) for step in range(1, 101)]
    assert max(gaps) < 1e-5
    assert all(float(values["engine/changed_frac", step]) > 0.5 for step in range(1, 101))
