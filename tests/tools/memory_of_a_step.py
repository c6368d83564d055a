"""Prints by how many bytes a training step on a CPU raises the peak of a process's memory.

A process of its own, with the arguments of ``fit``. What the interpreter, the libraries and their
buffers take is there before: a short step has run.
"""

import gc
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from svr_lightning.core.losses import LossSpec
from svr_lightning.training.reference import mix_reference
from svr_lightning.training.update import policy_update_loss
from tools import memory


def resident(key: str) -> int:
    """Bytes that Linux counts for this process under ``VmRSS`` or, their highest, ``VmHWM``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def train(plan: memory.Plan, config: Any, batch: Any) -> None:
    """One optimizer step from a new policy and reference on."""
    policy, reference = (
        memory.build(config, False),
        memory.build(config, False).requires_grad_(False),
    )
    optimizer = memory.ready_optimizer(policy)
    memory.hold_gradients(policy)
    if plan.checkpointing:
        policy.gradient_checkpointing_enable({"use_reentrant": False})
        policy.train()
    policy_update_loss(policy, reference, batch, LossSpec()).loss.backward()  # type: ignore
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    mix_reference(reference, policy, 0.6)


def main(arguments: list[str]) -> None:
    """Measure one step."""
    torch.set_num_threads(1)
    plan = memory.plan_of(memory.resolve(arguments))
    config, batch = memory.architecture(plan.policy), memory.full_batch(plan)
    train(plan, config, memory.full_batch(replace(plan, sequences=1, prompt=40, completion=20)))
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest begins anew
    train(plan, config, batch)
    print(resident("VmHWM") - before)


if __name__ == "__main__":
    main(sys.argv[1:])
