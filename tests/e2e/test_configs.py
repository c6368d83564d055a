"""Every configuration that ships, alone or layered as its first lines say, resolves."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.sources import DataSource
from tests.commands import CONFIGS, layer, resolved

RUNS = sorted(CONFIGS.glob("*.yaml"))
OVERLAYS = sorted(
    path
    for path in CONFIGS.glob("*/*.yaml")
    if path.parent.name not in ("methods", "ablations") or path.stem in ("oracle", "verdict_only")
)
"""Methods and ablations are read in tests/core/test_method_configs.py, which is faster, and every
number of the paper in tests/core/test_paper_settings.py."""


def resolve(capsys, *configs: Path) -> dict[str, Any]:
    """What a training of these layers is configured with."""
    return resolved(capsys, "fit", *(part for path in configs for part in ("--config", path)))


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.stem)
def test_every_run_configuration_resolves(capsys, path):
    assert resolve(capsys, path)["model"]["recipe"]["class_path"] == "svr_lightning.recipes.svr.SVR"


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda p: p.stem)
def test_every_overlay_resolves_on_top_of_a_run(capsys, overlay):
    resolved = resolve(capsys, CONFIGS / "gsm8k.yaml", overlay)
    for section, values in yaml.safe_load(overlay.read_text()).items():
        assert_within(values, resolved[section])


@pytest.mark.parametrize("name", ["gsm8k", "math", "countdown", "eval/all7"])
def test_the_layer_for_a_cpu_has_embedded_problems_for_every_data_set(name):
    smoke, run = (layer(one)["data"] for one in ("hardware/cpu_smoke", name))
    named = [*run.get("val", []), *run["test"], *([run["train"]] if "train" in run else [])]
    sources = {one["name"]: DataSource(**one) for one in named}
    data = SVRDataModule(test=list(sources.values()), local_files=smoke["local_files"])
    assert all(source.path.startswith("embedded:") for source in data.sources["test"])
    assert all(len(problems) > 100 for problems in data.problems("test"))


def assert_within(layer: Any, resolved: Any) -> None:
    """What a layer says is what was resolved."""
    if isinstance(layer, dict):
        for key, value in layer.items():
            assert_within(value, resolved[key])
    elif isinstance(layer, list) and any(isinstance(item, dict) for item in layer):
        for item, found in zip(layer, resolved, strict=True):
            assert_within(item, found)
    else:
        assert resolved == layer


@pytest.mark.parametrize("hardware", ["1gpu", "4gpu_zero2", "multi_node"])
def test_every_number_of_gpus_keeps_the_papers_batch(capsys, hardware):
    layers = (CONFIGS / name for name in ("gsm8k.yaml", f"hardware/{hardware}.yaml"))
    resolved = resolve(capsys, *layers)
    trainer = resolved["trainer"]
    processes = trainer["devices"] * trainer["num_nodes"]
    assert resolved["data"]["problems_per_step"] % processes == 0
    assert resolved["data"]["problems_per_step"] == 16
    assert resolved["model"]["micro_batch_size"] == 8


@pytest.mark.parametrize("name", ["torchrun.sh", "slurm.sbatch"])
def test_every_launch_script_parses_and_can_be_run(name):
    script = CONFIGS / "hardware" / name
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert os.access(script, os.X_OK)
