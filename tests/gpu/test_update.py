"""Time and memory of an update whose micro-batches all have other shapes, as a training's have.

First uses are apart: kernels that are compiled, and attention that is planned anew for each shape.
"""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from svr_lightning.core.losses import LossSpec
from svr_lightning.policy.kernels import use_kernels
from svr_lightning.training.config import OptimizerConfig
from svr_lightning.training.optimizer import make_optimizer
from svr_lightning.training.update import batch_of, policy_update_loss
from tests.gpu.conftest import DEVICE
from tests.gpu.report import Figures, alone
from tests.gpu.shapes import dense, hybrid, make_samples, precision, random_model
from tools.bench.workloads import GIB, TEMPERATURE, seconds

pytestmark = pytest.mark.gpu
MICRO_BATCHES = 16
"""Per optimizer step on one GPU: 16 problems x G 8 in micro-batches of 8."""
CLIP = 2.0


def main(name: str, cudnn: str, device: str, report: str, test: str) -> None:
    """Two optimizer steps of fresh micro-batches with gradient checkpointing, then one again."""
    figures, small = Figures(Path(report), test), device == "cpu"
    shape = {"hybrid": hybrid, "dense": dense}[name](small)
    model: Any = random_model(shape, device)
    use_kernels(model, device)
    torch.backends.cuda.enable_cudnn_sdp(cudnn == "cudnn")  # after the package has chosen
    reference = copy.deepcopy(model).requires_grad_(False)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    optimizer = make_optimizer(model, OptimizerConfig(lr=1e-6), total_steps=100)["optimizer"]
    count, sequences = (2, 2) if small else (MICRO_BATCHES, 8)
    sizes: Any = {"prompt": (20, 40), "median": 8, "limit": 16}
    if not small:
        sizes = {"prompt": (1000, 2000), "median": 400, "limit": 1200}
    samples = make_samples(3 * count * sequences, shape.vocab_size, **sizes)
    parts = [samples[i : i + sequences] for i in range(0, len(samples), sequences)]

    def micro_step(part: list[Any]) -> float:
        batch = batch_of(part, 1.0 / len(part)).to(device)

        def work() -> None:
            with precision(device):
                update = policy_update_loss(
                    model, reference, batch, LossSpec(), temperature=TEMPERATURE
                )
            update.loss.backward()

        return seconds(work, device)

    def optimizer_step() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    for step in ("first", "second", "third"):
        times = [micro_step(parts.pop()) for _ in range(count)]
        figures(f"{step}.step", sum(times), "s", f"{count} micro-batches of fresh lengths")
        figures(f"{step}.micro_batches", times, "s")
        figures(f"{step}.optimizer", seconds(optimizer_step, device), "s")
    again = samples[:sequences]
    figures("new_shape", micro_step(again), "s")
    known = min(micro_step(again) for _ in range(3))
    figures("known_shape", known, "s", "the same batch again")
    lengths = [len(s.prompt_ids) + len(s.completion_ids) for s in again]
    figures("tokens", sum(lengths) / known, "tokens/s", "without padding, known shape")
    if device == "cuda":
        figures("peak_memory", torch.cuda.max_memory_allocated() / GIB, "GiB")
        figures("retries", torch.cuda.memory_stats()["num_alloc_retries"], note="of the allocator")


WAYS = [
    *(("hybrid", cudnn, tilelang) for cudnn in ("flash", "cudnn") for tilelang in ("0", "1")),
    *(("dense", cudnn, "0") for cudnn in ("flash", "cudnn")),
]
"""A model, who computes its attention, and whether TileLang computes its linear attention."""


@pytest.mark.parametrize(
    ("model", "attention", "tilelang"), WAYS if DEVICE == "cuda" else WAYS[::4]
)
def test_an_update_of_fresh_lengths_is_timed_apart_from_first_uses(
    model, attention, tilelang, report, figures, monkeypatch
):
    if tilelang == "1":
        pytest.importorskip("tilelang")
    monkeypatch.setenv("FLA_TILELANG", tilelang)
    arguments = (model, attention, DEVICE, str(report), figures.test)
    alone(__name__, *arguments, seconds=180)
    assert 0 < figures.value("known_shape") <= 2 * figures.value("new_shape")
    assert figures.value("second.step") > 0
    assert figures.value("tokens") > 0


if __name__ == "__main__":
    main(*sys.argv[1:])
