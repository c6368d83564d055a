"""Every configuration of a method or an ablation, layered on a run, is the recipe it names."""

import itertools
from typing import Any

import pytest

from svr_lightning.core.rewards import RewardWeights
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.oracle import Oracle
from svr_lightning.recipes.svr import SVR
from tests.commands import CONFIGS, dotted
from tests.commands import layer as read
from tests.recipes import layered

RUNS = ("countdown", "countdown_tiny", "gsm8k", "math")
LAYERS = sorted(
    f"{folder}/{path.stem}"
    for folder in ("methods", "ablations")
    for path in (CONFIGS / folder).glob("*.yaml")
)


def recipe(run: str, layer: str) -> Any:
    """The recipe of a run with a layer on top."""
    return layered([read(run), read(layer)])


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_fits_every_run(layer):
    for run in RUNS:
        assert isinstance(recipe(run, layer), Recipe)


HARDWARE = ["hardware/1gpu", "hardware/4gpu_zero2", "hardware/multi_node"]
SCALES = ["experiments/miniature", "hardware/cpu_smoke"]


def test_the_order_of_methods_machines_and_scales_does_not_matter():
    """No two layers of different kinds set the same key."""
    for kind, others in ((LAYERS, HARDWARE), (LAYERS, SCALES), (HARDWARE, SCALES[:1])):
        for one, other in itertools.product(kind, others):
            both = dotted(read(one)).keys() & dotted(read(other)).keys()
            limit = {"model.sampling.max_completion_tokens"}  # cpu_smoke.yaml comes last
            allowed = limit if one == "methods/countdown_single_turn" else set()
            if kind is HARDWARE:  # a GPU's engine is none for an experiment on a CPU
                allowed = {"model.engine.class_path", "model.micro_batch_size"}
            assert both <= allowed, f"{one} and {other} both set {sorted(both)}"


@pytest.mark.parametrize(("run", "scale"), [("countdown", 768), ("gsm8k", 1024), ("math", 1536)])
def test_the_oracle_keeps_the_runs_length_scale_and_loss(run, scale):
    oracle = recipe(run, "methods/oracle")
    assert isinstance(oracle, Oracle)
    assert (oracle.length_scale, oracle.weights, oracle.loss.beta) == (scale, RewardWeights(), 0.08)


@pytest.mark.parametrize(
    ("name", "off", "interface"),
    [
        ("without_verify", {"cal", "over", "detect", "ready"}, "joint"),
        ("without_cal", {"cal"}, "joint"),
        ("without_over", {"over"}, "joint"),
        ("without_ready", {"ready"}, "joint"),
        ("single_turn", set(), "joint"),
        ("verdict_only", {"cal", "over", "ready"}, "verdict"),
        ("confidence_only", {"over", "detect", "ready"}, "confidence"),
    ],
)
def test_an_ablation_changes_what_it_names(name, off, interface):
    changed = recipe("gsm8k", f"ablations/{name}")
    assert type(changed) is SVR
    expected = {**vars(RewardWeights()), **dict.fromkeys(off, 0.0)}
    assert (vars(changed.weights), changed.interface) == (expected, interface)
    assert (changed.group_size, changed.horizon) == ((24, 1) if name == "single_turn" else (8, 3))
