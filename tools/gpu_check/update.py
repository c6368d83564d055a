"""Speed of the update on one GPU, from the forward pass to the optimizer step."""

import copy
import time
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from svr_lightning.core.losses import LossSpec
from svr_lightning.core.types import Sample
from svr_lightning.errors import typed_line
from svr_lightning.training.config import OptimizerConfig
from svr_lightning.training.flops import peak_flops, update_flops
from svr_lightning.training.kernels import use_kernels
from svr_lightning.training.optimizer import make_optimizer
from svr_lightning.training.packing import can_pack, prepare_packing
from svr_lightning.training.update import batch_of, policy_update_loss
from tools.bench import workloads
from tools.gpu_check.flops import FORMULA
from tools.gpu_check.models import (
    Shape,
    random_model,
    shapes,
)
from tools.gpu_check.settings import Emit, SkippedError

MICRO_BATCHES = 16
"""Per optimizer step on one GPU: 16 problems x G 8 in micro-batches of 8."""
CLIP = 2.0
WAYS = ("checkpointing", "checkpointing_packed", "all_activations", "checkpointing_liger")
"""Variants: what is kept for the backward pass, whether rows are packed, which kernels run."""
ENOUGH_SECONDS = 12.0
"""A measurement that has taken this long is not repeated again."""
REPETITIONS = 3


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Time and memory of one variant."""

    sequences: int
    tokens: int
    padded: int
    flops: float
    micro_seconds: float
    optimizer_seconds: float
    peak_gib: float | None


def run(emit: Emit, device: str) -> None:
    """Measure each model in each way."""
    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    peak = peak_flops(torch.device(device))
    emit("device", name)
    emit("peak_flops", peak, "FLOP/s", note=f"dense bf16, stated for {name}" if peak else "unknown")
    emit("flops_formula", FORMULA)
    liger = device == "cuda" and find_spec("liger_kernel") is not None
    emit("liger_kernel", liger, note="measured apart, last" if liger else "not used")
    failed = []
    for way in WAYS if liger else WAYS[:-1]:
        for model in ("dense", "hybrid"):
            label = f"{model}.{way}"
            try:
                timing = _fitting(shapes(device == "cpu")[model], way, device)
            except SkippedError as reason:
                emit(f"{label}.micro_batch", None, note=str(reason))
            except Exception as error:  # measure the other variants anyway
                emit(f"{label}.micro_batch", None, note=typed_line(error))
                failed.append(label)
            else:
                _report(emit, label, timing, peak)
            workloads.release(device)
    if failed:
        raise RuntimeError(f"no figures for {', '.join(failed)}")


def _fitting(shape: Shape, way: str, device: str) -> Timing:
    """Measure with the paper's micro-batch of 8 sequences, halved until it fits."""
    small = device == "cpu"
    sequences = 2 if small else 8
    while True:
        samples = workloads.make_samples(
            sequences,
            shape.dims["vocab_size"],
            prompt=(20, 40) if small else (1000, 2000),
            median=8 if small else 400,
            limit=16 if small else 1200,
        )
        timing = _measure_or_none(shape, samples, way, device)
        workloads.release(device)
        if timing is not None:
            return timing
        if sequences == 1:
            raise RuntimeError("out of memory with a single sequence")
        sequences //= 2


def _measure_or_none(shape: Shape, samples: list[Sample], way: str, device: str) -> Timing | None:
    """The measurement, or None if it does not fit; returning frees the attempt's memory."""
    try:
        return _measure(shape, samples, way, device)
    except torch.OutOfMemoryError:
        return None


def _measure(shape: Shape, samples: list[Sample], way: str, device: str) -> Timing:
    model = random_model(shape, device)
    if way.endswith("liger"):
        use_kernels(model, True, device)
    packed = way.endswith("packed")
    if packed:
        prepare_packing(model)
        if not can_pack(model):
            raise SkippedError("a layer does not keep the sequences of a packed row apart here")
    reference = copy.deepcopy(model).requires_grad_(False)
    if way.startswith("checkpointing"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    optimizer = make_optimizer(model, OptimizerConfig(lr=1e-6), total_steps=100)["optimizer"]
    batch = batch_of(samples, 1.0 / len(samples), packed=packed).to(device)

    def micro_step() -> None:
        with workloads.precision(device):
            update = policy_update_loss(
                model, reference, batch, LossSpec(), temperature=workloads.TEMPERATURE
            )
        update.loss.backward()

    def optimizer_step() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    micro_step()  # compiles kernels and fills the allocator
    optimizer_step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    micro: list[float] = []
    began = time.perf_counter()
    while len(micro) < REPETITIONS and time.perf_counter() - began < ENOUGH_SECONDS:
        micro.append(workloads.seconds(micro_step, device))
    lengths = [len(s.prompt_ids) + len(s.completion_ids) for s in samples]
    completions = [len(s.completion_ids) for s in samples]
    return Timing(
        sequences=len(samples),
        tokens=sum(lengths),
        padded=max(lengths) * len(lengths),
        flops=update_flops(model, lengths, completions, reference=True),
        micro_seconds=sum(micro) / len(micro),
        optimizer_seconds=workloads.seconds(optimizer_step, device),
        peak_gib=torch.cuda.max_memory_allocated() / workloads.GIB if device == "cuda" else None,
    )


def _report(emit: Emit, label: str, timing: Timing, peak: float | None) -> None:
    step = MICRO_BATCHES * timing.micro_seconds + timing.optimizer_seconds
    note = f"{timing.sequences} sequences, {timing.tokens} tokens, {timing.padded} with padding"
    emit(f"{label}.micro_batch", timing.micro_seconds, "s", note)
    emit(f"{label}.optimizer", timing.optimizer_seconds, "s", "clipping and AdamW in fp32")
    emit(f"{label}.step", step, "s", f"{MICRO_BATCHES} micro-batches and the optimizer, computed")
    emit(f"{label}.tokens", MICRO_BATCHES * timing.tokens / step, "tokens/s", "without padding")
    rate = MICRO_BATCHES * timing.flops / step
    emit(f"{label}.flops", rate, "FLOP/s", "model FLOPs of a whole step")
    emit(f"{label}.mfu", rate / peak if peak else None)
    emit(f"{label}.peak_memory", timing.peak_gib, "GiB", "weights, optimizer and reference too")
