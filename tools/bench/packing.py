"""How much of the update is padding, and what it costs: padded rows against packed ones.

    python -m tools.bench packing --out tools/bench/results/packing.json

Lengths are those of real rollouts of the embedded policies (one optimizer step of 64 sequences in
two micro-batches, as configured), and log-normal ones (128 in sixteen, as the paper's). Timed are
the forward and backward passes of the embedded policies, in processor time:

- ``masked``: rows padded on the right, with an attention mask, which they do not need;
- ``padded``: the same rows without it;
- ``packed``: one row per micro-batch, attention once per sequence.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from svr_lightning import collect_rollout, get_task
from svr_lightning.core.losses import LossSpec
from svr_lightning.core.types import Sample
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.driver import Decoding
from svr_lightning.tiny import problems, word_problems
from svr_lightning.training.config import PolicyConfig
from svr_lightning.training.policy import load_policy
from svr_lightning.training.update import TrainBatch, micro_batches, policy_update_loss
from tools.bench.machine import this_machine
from tools.bench.workloads import TEMPERATURE, make_samples, start_policy

PROBLEMS, GROUP = 8, 8
TASKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "countdown-tiny": ("countdown", problems.generate),
    "arithmetic-tiny": ("gsm8k", word_problems.generate),
}
"""Policies that ship, their tasks and problems."""
LOG_NORMAL: dict[str, Any] = {"prompt": (200, 2200), "median": 700, "limit": 2048}
"""Completions of MATH at the paper's limit; prompts from a bare question to one with a draft."""
WAYS = ("masked", "padded", "packed")


def rolled_out(name: str) -> list[Sample]:
    """The samples of one optimizer step of an embedded policy."""
    task_name, rows = TASKS[name]
    engine = TransformersEngine(max_batch=PROBLEMS * GROUP)
    _, renderer = start_policy(engine, f"embedded:{name}", ends=True)
    task = get_task(task_name)
    groups = collect_rollout(
        engine,
        SVR(group_size=GROUP, horizon=3),
        [task.from_row(row) for row in rows("train")[:PROBLEMS]],
        renderer=renderer,
        sampling=Decoding(max_completion_tokens=96, temperature=TEMPERATURE),
        seed=42,
        step=0,
    )
    return [sample for group in groups for sample in group.samples]


def length(sample: Sample) -> int:
    """Tokens of prompt and completion."""
    return len(sample.prompt_ids) + len(sample.completion_ids)


def split(samples: Sequence[Sample], count: int, *, packed: bool) -> list[TrainBatch]:
    """The ``count`` micro-batches of one optimizer step."""
    return micro_batches(samples, accumulate=count, updates=1, version=0, packed=packed)


def padding(samples: Sequence[Sample], count: int) -> dict[str, Any]:
    """Shares of padding: in the order of the rollout, sorted and cut, packed."""
    lengths = [length(sample) for sample in samples]
    together = len(samples) // count
    runs = [lengths[i : i + together] for i in range(0, len(lengths), together)]
    sizes = {
        "unsorted": [len(run) * max(run) for run in runs],
        "padded": [batch.input_ids.numel() for batch in split(samples, count, packed=False)],
        "packed": [batch.input_ids.numel() for batch in split(samples, count, packed=True)],
    }
    spread = [int(np.percentile(lengths, share)) for share in (5, 50, 95)]
    return {
        "sequences": len(lengths),
        "tokens": sum(lengths),
        "percentiles_5_50_95": spread,
        "padding": {name: 1 - sum(lengths) / sum(found) for name, found in sizes.items()},
        "largest_micro_batch": {name: max(found) for name, found in sizes.items()},
    }


def add_masks(model: Any) -> Any:
    """Has ``model`` given a mask of the real tokens, 0 being no token of any; returns the hook."""

    def add(_: Any, args: Any, inputs: dict[str, Any]) -> Any:
        return args, inputs | {"attention_mask": (inputs["input_ids"] != 0).long()}

    return model.base_model.register_forward_pre_hook(add, with_kwargs=True)


def timed(policy: str, samples: Sequence[Sample], count: int, repeats: int) -> dict[str, float]:
    """Median processor seconds of the forward and backward passes of one optimizer step."""
    model, _ = load_policy(PolicyConfig(path=f"embedded:{policy}"), seed=0)
    batches = {way: split(samples, count, packed=way == "packed") for way in WAYS}
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(repeats + 1):
        for way in WAYS:
            model.zero_grad()
            hook = add_masks(model) if way == "masked" else None
            began = time.process_time()
            for batch in batches[way]:
                policy_update_loss(model, None, batch, LossSpec(beta=0.0)).loss.backward()
            taken[way].append(time.process_time() - began)
            if hook is not None:
                hook.remove()
    return {way: statistics.median(times[1:]) for way, times in taken.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    """How often."""
    parser.add_argument("--repeats", type=int, default=5)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Shares of padding and times, by workload."""
    torch.set_num_threads(1)
    workloads = {name: (rolled_out(name), 2) for name in TASKS}
    workloads["log-normal"] = (make_samples(128, 1200, **LOG_NORMAL), 16)
    found: dict[str, Any] = {}
    for name, (samples, count) in workloads.items():
        found[name] = {"micro_batches": count, **padding(samples, count)}
        if name in TASKS:  # the others would take a CPU too long
            found[name]["processor_seconds"] = timed(name, samples, count, options.repeats)
        print(f"{name}: {found[name]}")
    return {**found, **this_machine()}
