"""How much memory the log-probabilities of a micro-batch take, against a plain log-softmax."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from svr_lightning.core.types import Sample
from svr_lightning.training.batching import TrainBatch, pad
from svr_lightning.training.update import completion_logprobs
from tools.gpu_check import workload
from tools.gpu_check.models import random_model, shapes
from tools.gpu_check.settings import Emit, Settings


def run(emit: Emit, settings: Settings) -> None:
    """Measure forward and backward of both on a shallow model with the whole vocabulary."""
    device, small = settings.device, settings.small
    shape = shapes(small)["shallow"]
    model = random_model(shape, device).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    samples = workload.make_samples(
        2 if small else 8,
        shape.dims["vocab_size"],
        prompt=(20, 40) if small else (200, 400),
        median=200 if small else 800,
        limit=240 if small else 1200,
    )
    batch = pad(samples, weight=1.0).to(device)
    tokens = sum(len(s.completion_ids) for s in samples)
    emit("completion_tokens", tokens, note=f"vocabulary {shape.dims['vocab_size']}")
    paths: dict[str, Callable[[], Tensor]] = {
        "completion_logprobs": lambda: _ours(model, batch),
        "plain_log_softmax": lambda: plain_logprobs(model, batch, samples),
    }
    values = {name: _measure(emit, name, path, model, device) for name, path in paths.items()}
    ours, plain = values.values()
    if ours is not None and plain is not None:
        gap = (ours - plain).abs()
        emit("difference_mean", gap.mean().item(), "nats")
        emit("difference_max", gap.max().item(), "nats")


def plain_logprobs(model: Any, batch: TrainBatch, samples: Sequence[Sample]) -> Tensor:
    """[N] nats of all completion tokens, with every score in memory at once."""
    hidden = model.base_model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False
    ).last_hidden_state
    states = [
        hidden[row, len(s.prompt_ids) - 1 : len(s.prompt_ids) - 1 + len(s.completion_ids)]
        for row, s in enumerate(samples)
    ]
    tokens = torch.tensor([t for s in samples for t in s.completion_ids], device=hidden.device)
    scores = model.get_output_embeddings()(torch.cat(states)).float() / workload.TEMPERATURE
    return torch.log_softmax(scores, dim=-1).gather(1, tokens.unsqueeze(1)).squeeze(1)


def _ours(model: Any, batch: TrainBatch) -> Tensor:
    return completion_logprobs(model, batch, workload.TEMPERATURE)[batch.mask.bool()]


def _measure(
    emit: Emit, name: str, path: Callable[[], Tensor], model: Any, device: str
) -> Tensor | None:
    """The values of one path; None where it does not fit."""
    try:
        _forward_backward(path, model, device)  # compiles kernels; gradients are there from now on
        with workload.peak_memory(device) as peak:
            values = _forward_backward(path, model, device)
        taken = workload.seconds(lambda: _forward_backward(path, model, device), device)
    except torch.OutOfMemoryError:
        emit(f"{name}.peak_memory", None, "GiB", "out of memory")
        return None
    finally:
        workload.release(device)
    emit(f"{name}.peak_memory", peak[0], "GiB", "beyond weights and gradients")
    emit(f"{name}.seconds", taken, "s", "forward and backward of the shallow model")
    return values


def _forward_backward(path: Callable[[], Tensor], model: Any, device: str) -> Tensor:
    with workload.precision(device):
        logp = path()
    logp.sum().backward()
    return logp.detach()
