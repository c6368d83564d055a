"""What the parts compute on: samples of the paper's lengths, a clock, a precision."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from svr_lightning.core.types import Sample
from svr_lightning.training.batching import pad
from svr_lightning.training.update import completion_logprobs

TEMPERATURE = 0.9
GIB = 2**30


def long_tailed(rng: np.random.Generator, median: float, limit: int, spread: float = 0.7) -> int:
    """A completion length in tokens: lognormal, cut at ``limit`` as the engine does."""
    return int(np.clip(rng.lognormal(np.log(median), spread), 2, limit))


def make_samples(
    count: int, vocabulary: int, prompt: tuple[int, int], median: float, limit: int
) -> list[Sample]:
    """Sequences of random tokens, the same on every call.

    Args:
        count: how many.
        vocabulary: ids are drawn below it.
        prompt: shortest and longest prompt.
        median: of the completions' lengths; the last one has the limit's.
        limit: longest completion.
    """
    rng = np.random.default_rng(0)
    samples = []
    for number in range(count):
        length = limit if number == count - 1 else long_tailed(rng, median, limit)
        tokens = rng.integers(8, vocabulary, rng.integers(*prompt) + length).tolist()
        samples.append(
            Sample(
                prompt_ids=tuple(tokens[:-length]),
                completion_ids=tuple(tokens[-length:]),
                logprobs=(-1.0,) * length,
                advantage=float(rng.normal()),
                group_id=str(number),
                policy_version=0,
            )
        )
    return samples


def precision(device: str) -> Any:
    """bf16 over fp32 masters on a GPU, as ``bf16-mixed``; plain fp32 on a CPU."""
    return torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext()


@torch.no_grad()
def trainer_logprobs(
    model: Any, samples: Sequence[Sample], device: str, together: int, *, exact: bool = False
) -> Tensor:
    """[N] nats of all completion tokens, in the order of ``samples``, as the update has them.

    Args:
        model: in eval mode.
        samples: at least one.
        device: where.
        together: sequences per forward pass.
        exact: in fp32 instead of the update's precision.
    """
    found = []
    for start in range(0, len(samples), together):
        batch = pad(samples[start : start + together], weight=1.0).to(device)
        with nullcontext() if exact else precision(device):
            logp = completion_logprobs(model, batch, TEMPERATURE)
        found.append(logp[batch.mask.bool()].float())
    return torch.cat(found)


def wait_for(device: str) -> None:
    """Until the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: str) -> float:
    """How long ``work`` takes, until the device has finished it."""
    wait_for(device)
    started = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started


def release(device: str) -> None:
    """Give back what is no longer referred to."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def peak_memory(device: str) -> Iterator[list[float]]:
    """The most GiB that tensors took within, beyond those that were there before."""
    found: list[float] = []
    if device == "cuda":
        wait_for(device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield found
        wait_for(device)
        found.append((torch.cuda.max_memory_allocated() - before) / GIB)
        return
    with torch.profiler.profile(profile_memory=True) as profile:
        yield found
    assert profile.profiler is not None
    events = profile.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = np.cumsum([size for _, size in sorted(changes, key=lambda change: change[0])])
    found.append(float(held.max()) / GIB)
