"""Checks that the engine serves the trainer's weights: at first, after an update, after sleep."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from svr_lightning.core.types import Sample
from svr_lightning.engines.base import Engine, Output
from svr_lightning.training.config import SamplingConfig
from tools.bench import workloads
from tools.gpu_check.models import random_model, shapes
from tools.gpu_check.serving import complete, start_engine
from tools.gpu_check.settings import Emit, Settings

CHANGE = 0.05
"""Standard deviation of each weight's relative change in the update."""


class Parity:
    """Samples from the engine, scores with the trainer, reports the difference.

    Args:
        emit: takes the figures.
        settings: device and size.
        model: the trainer's.
        engine: started.
    """

    def __init__(self, emit: Emit, settings: Settings, model: Any, engine: Engine) -> None:
        self._emit, self._device = emit, settings.device
        self._model, self._engine = model, engine
        self._tokens = 8 if settings.small else 128
        self._means: list[float] = []
        rng = np.random.default_rng(1)
        low, high = (5, 20) if settings.small else (200, 1000)
        self._prompts = [
            tuple(rng.integers(8, model.config.vocab_size, rng.integers(low, high)).tolist())
            for _ in range(4 if settings.small else 32)
        ]

    def look(self, label: str, version: int) -> list[Sample]:
        """Sync, sample and compare; returns what was sampled."""
        sync = workloads.seconds(lambda: self._engine.sync(self._model, version), self._device)
        self._emit(f"{label}.sync", sync, "s")
        outputs = complete(self._engine, self._prompts, self._tokens, seed=version)
        samples = [self._sample(p, o) for p, o in zip(self._prompts, outputs, strict=True)]
        engine = torch.tensor([x for s in samples for x in s.logprobs], device=self._device)
        trainer = workloads.trainer_logprobs(self._model, samples, self._device, together=8)
        note = "engine against trainer, sampled tokens"
        self._means.append(self.difference(label, engine, trainer, note))
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

    def difference(self, label: str, one: torch.Tensor, other: torch.Tensor, note: str) -> float:
        """Report how far two sets of log-probabilities lie apart, in nats; returns the mean."""
        gap = (one - other).abs()
        mean = gap.mean().item()
        self._emit(f"{label}.logprob_difference_mean", mean, "nats", note)
        self._emit(f"{label}.logprob_difference_max", gap.max().item(), "nats")
        return mean

    def noise(self, samples: Sequence[Sample]) -> None:
        """Report how much rounding alone changes the trainer's own log-probabilities."""
        scored = {
            size: workloads.trainer_logprobs(self._model, samples, self._device, together=size)
            for size in (8, 1)
        }
        self.difference(
            "floor.shapes", scored[8], scored[1], note="trainer, micro-batches of 8 against 1"
        )
        exact = workloads.trainer_logprobs(
            self._model, samples, self._device, together=1, exact=True
        )
        self.difference("floor.fp32", scored[8], exact, note="trainer, its precision against fp32")
        self._emit("logprob_mean", exact.mean().item(), "nats", "of the sampled tokens")

    def _sample(self, prompt: tuple[int, ...], output: Output) -> Sample:
        return Sample(
            prompt_ids=prompt,
            completion_ids=output.token_ids,
            logprobs=output.logprobs,
            advantage=0.0,
            group_id=str(output.id),
            policy_version=output.version,
        )


def run(emit: Emit, settings: Settings) -> None:
    """Before and after an update, then after a sleep of each level."""
    device = settings.device
    model = random_model(shapes(settings.small)["hybrid"], device)
    limit = 64 if settings.small else 2048
    sleeps = settings.engine == "vllm" and device == "cuda"
    engine: Any = start_engine(emit, settings, model, sleep_level=int(sleeps), max_model_len=limit)
    most = SamplingConfig().max_logprob_noise
    emit("canary", most, "times the rounding floor", "three means above it stop a training")
    parity = Parity(emit, settings, model, engine)
    before = parity.look("first", version=0)
    parity.noise(before)
    old = workloads.trainer_logprobs(model, before, device, together=8)
    change_weights(model)
    new = workloads.trainer_logprobs(model, before, device, together=8)
    missed = parity.difference("missed_sync", old, new, note="what stale weights would show")
    parity.look("updated", version=1)
    _after_sleep(emit, settings, parity, model, engine)
    parity.judge(missed)


def _after_sleep(emit: Emit, settings: Settings, parity: Parity, model: Any, engine: Any) -> None:
    """Sleep, another update, sync and compare, at each level."""
    device = settings.device
    if settings.engine != "vllm" or device != "cuda" or not engine.sleep_level:
        emit("sleep", None, note="only vLLM on CUDA has memory to give back")
        return
    for level in (1, 2):
        engine.sleep_level = level
        free = torch.cuda.mem_get_info()[0]
        emit(f"sleep_{level}.sleep", workloads.seconds(engine.sleep, device), "s")
        freed = (torch.cuda.mem_get_info()[0] - free) / workloads.GIB
        emit(f"sleep_{level}.freed", freed, "GiB")
        change_weights(model)
        parity.look(f"sleep_{level}", version=1 + level)


@torch.no_grad()
def change_weights(model: Any) -> None:
    """Change the weights by far more than rounding."""
    for parameter in model.parameters():
        parameter.mul_(1.0 + CHANGE * torch.randn_like(parameter))
