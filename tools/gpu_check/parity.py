"""Checks that the engine serves the trainer's weights: at first, after an update, after sleep.

The engine runs eagerly: nothing has to be compiled, so that this is known first on a cold machine.
"""

import copy
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from svr_lightning.core.types import Sample
from svr_lightning.engines.base import Output
from svr_lightning.training.canary import rounding_floor
from svr_lightning.training.config import SamplingConfig
from svr_lightning.training.update import batch_of
from tools.bench.workloads import GIB, TEMPERATURE, precision, seconds, trainer_logprobs
from tools.gpu_check.models import random_model, shapes
from tools.gpu_check.serving import complete, start_engine
from tools.gpu_check.settings import Emit

CHANGE = 0.05
"""Standard deviation of each weight's relative change in the update."""
EXACT = 4
"""Samples that are scored once more in fp32, on the processor."""


class Parity:
    """Samples from the engine, scores with the trainer, reports the difference.

    Args:
        emit: takes the figures.
        device: that of the trainer.
        model: the trainer's.
        engine: started.
    """

    def __init__(self, emit: Emit, device: str, model: Any, engine: Any) -> None:
        self._emit, self._device = emit, device
        self._model, self._engine = model, engine
        small = device == "cpu"
        self._tokens = 8 if small else 128
        self._means: list[float] = []
        rng = np.random.default_rng(1)
        low, high = (5, 20) if small else (200, 1000)
        self._prompts = [
            tuple(rng.integers(8, model.config.vocab_size, rng.integers(low, high)).tolist())
            for _ in range(EXACT if small else 32)
        ]

    def look(self, label: str, version: int) -> list[Sample]:
        """Sync, sample and compare; returns what was sampled."""
        sync = seconds(lambda: self._engine.sync(self._model, version), self._device)
        self._emit(f"{label}.sync", sync, "s")
        outputs = complete(self._engine, self._prompts, self._tokens, seed=version)
        samples = [sample(p, o) for p, o in zip(self._prompts, outputs, strict=True)]
        engine = torch.tensor([x for s in samples for x in s.logprobs], device=self._device)
        note = "engine against trainer, sampled tokens"
        self._means.append(self.difference(label, engine, self.scores(samples), note))
        return samples

    def judge(self, missed: float) -> None:
        """Distinguish rounding from stale weights.

        Args:
            missed: the mean difference that a missed sync makes, in nats.

        Raises:
            RuntimeError: if one look found more than a quarter of it.
        """
        worst = max(self._means)
        serves = worst < missed / 4
        self._emit("serves_present_weights", serves, note="mean differences against missed_sync")
        if not serves:
            raise RuntimeError(
                f"the engine's log-probabilities are {worst:.3g} nats off on average, a missed "
                f"sync would make {missed:.3g}: it does not serve the trainer's weights"
            )

    def scores(self, samples: Sequence[Sample], together: int = 8) -> torch.Tensor:
        """[N] The trainer's log-probabilities, ``together`` sequences at a time."""
        return trainer_logprobs(self._model, samples, self._device, together=together)

    def difference(self, label: str, one: torch.Tensor, other: torch.Tensor, note: str) -> float:
        """Report how far two sets of log-probabilities lie apart, in nats; returns the mean."""
        gap = (one - other).abs()
        mean = gap.mean().item()
        self._emit(f"{label}.logprob_difference_mean", mean, "nats", note)
        self._emit(f"{label}.logprob_difference_max", gap.max().item(), "nats")
        return mean

    def floor(self, samples: Sequence[Sample]) -> None:
        """Report how much rounding alone changes the trainer's own log-probabilities."""
        batch = batch_of(samples[:8], 1.0).to(self._device)
        with precision(self._device):
            served = self._engine.dtype
            noise = rounding_floor(self._model, batch, TEMPERATURE, served=served, seed=0)
        self._emit("floor.canary", noise, "nats", "what a training measures")
        limit = SamplingConfig().max_logprob_noise * noise
        self._emit("canary", limit, "nats", "three rollouts in a row above it stop a training")
        note = "trainer, micro-batches of 8 against 1"
        self.difference("floor.shapes", self.scores(samples), self.scores(samples, 1), note)

    def exact(self, samples: Sequence[Sample]) -> None:
        """Report how far the trainer's log-probabilities lie from those of fp32."""
        # On the processor: kernels of linear attention round fp32 to TF32, whatever torch is told.
        exact = copy.deepcopy(self._model).to("cpu")
        few = samples[:EXACT]
        scored = self.scores(few).cpu()
        with torch_alone(exact):
            right = trainer_logprobs(exact, few, "cpu", together=1)
        self.difference("floor.fp32", scored, right, note="trainer, its precision against fp32")
        self._emit("logprob_mean", right.mean().item(), "nats", "of the sampled tokens")


@contextmanager
def torch_alone(model: Any) -> Iterator[None]:
    """Compute ``model`` with transformers' own functions, on all cores.

    It calls installed kernels on every device, and Triton's take no tensor of the processor. vLLM
    leaves torch a single thread.
    """
    module = type(model).__module__
    names, threads = vars(sys.modules[module]), torch.get_num_threads()
    wrapped = {
        name: function
        for name, function in names.items()
        if inspect.isfunction(function) and function.__module__ == module
    }
    names.update({name: inspect.unwrap(function) for name, function in wrapped.items()})
    torch.set_num_threads(os.cpu_count() or 1)
    try:
        yield
    finally:
        names.update(wrapped)
        torch.set_num_threads(threads)


def sample(prompt: tuple[int, ...], output: Output) -> Sample:
    """What an engine has completed, as the trainer takes it."""
    return Sample(
        prompt_ids=prompt,
        completion_ids=output.token_ids,
        logprobs=output.logprobs,
        advantage=0.0,
        group_id=str(output.id),
        policy_version=output.version,
    )


def run(emit: Emit, device: str) -> None:
    """Before and after an update, then after a sleep of each level."""
    small = device == "cpu"
    model = random_model(shapes(small)["hybrid"], device)
    limit = 64 if small else 2048
    engine = start_engine(emit, model, eager=True, sleep_level=1, max_model_len=limit)
    parity = Parity(emit, device, model, engine)
    before = parity.look("first", version=0)
    parity.floor(before)
    old = parity.scores(before)
    change_weights(model)
    missed = parity.difference("missed_sync", old, parity.scores(before), "what stale ones show")
    parity.look("updated", version=1)
    for level in (1, 2):
        engine.sleep_level = level
        free = 0 if small else torch.cuda.mem_get_info()[0]
        emit(f"sleep_{level}.sleep", seconds(engine.sleep, device), "s")
        freed = None if small else (torch.cuda.mem_get_info()[0] - free) / GIB
        emit(f"sleep_{level}.freed", freed, "GiB")
        change_weights(model)
        last = parity.look(f"sleep_{level}", version=1 + level)
    parity.judge(missed)
    parity.exact(last)  # last: it is slow


@torch.no_grad()
def change_weights(model: Any) -> None:
    """Change the weights by far more than rounding."""
    for parameter in model.parameters():
        parameter.mul_(1.0 + CHANGE * torch.randn_like(parameter))
