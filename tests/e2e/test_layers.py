"""Every method and ablation, layered on a real run, trains a tiny hybrid.

Random weights solve nothing: tests/integration/test_recipe_fit.py shows what recipes learn.
"""

import json
import math
from pathlib import Path

import pytest
import yaml

from svr_lightning.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
SAME_TRAINING = ("without_cal", "without_over", "without_ready", "countdown_single_turn")
"""Layers that differ from others in coefficients or limits alone; read in tests/core."""
LAYERS = sorted(
    path
    for name in ("methods", "ablations")
    for path in ROOT.glob(f"configs/{name}/*.yaml")
    if path.stem not in SAME_TRAINING
)
SHORT = [
    *("--trainer.limit_train_batches", "1", "--trainer.limit_val_batches", "0"),
    *("--model.resample", "off", "--model.sampling.max_completion_tokens", "4"),
    *("--data.train.limit", "8", "--trainer.enable_progress_bar", "false"),
]
"""Fewer and shorter rollouts than ``cpu_smoke.yaml`` makes of its own."""


@pytest.mark.parametrize("layer", LAYERS, ids=lambda p: p.stem)
def test_a_layer_on_gsm8k_trains_the_tiny_hybrid(
    layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    paths = ("configs/gsm8k.yaml", str(layer), "configs/hardware/cpu_smoke.yaml")
    files = [part for path in paths for part in ("--config", path)]
    assert main(["fit", *files, "--trainer.default_root_dir", str(tmp_path), *SHORT]) == 0
    model = yaml.safe_load((tmp_path / "config.yaml").read_text())["model"]
    lines = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert len({line["id"] for line in lines}) == 2 * model["updates_per_rollout"]
    uses_labels = model["recipe"]["class_path"].endswith(".Oracle")
    assert all(("privileged" in line) == uses_labels for line in lines)
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    updates = [row for row in rows if ",train/grad_norm," in row]
    assert len(updates) == model["updates_per_rollout"]
    assert all(math.isfinite(float(row.rsplit(",", 1)[1])) for row in updates)
