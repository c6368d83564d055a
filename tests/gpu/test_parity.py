"""Both engines serve the weights that the trainer has now, after updates and sleeps too."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from svr_lightning.core.types import Decoding, Sample
from svr_lightning.engines.base import Request
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.policy.kernels import use_kernels
from svr_lightning.policy.logprobs import completion_logprobs
from svr_lightning.training.update import batch_of
from tests.gpu.conftest import DEVICE
from tests.gpu.report import Figures, finished, started
from tests.gpu.shapes import hybrid, precision, random_model
from tests.requests import finish
from tools.bench.workloads import GIB, TEMPERATURE, seconds

pytestmark = pytest.mark.gpu
CHANGE = 0.05
"""Standard deviation of each weight's relative change in an update."""
ENGINES = ["vllm-eager", "transformers", *(["vllm-graphs"] if DEVICE == "cuda" else [])]
"""vLLM first without compilation, so that a cold machine is quick."""


class Parity:
    """Samples from the engine, scores with the trainer, reports how far both lie apart."""

    def __init__(self, figures: Figures, device: str, model: Any, engine: Any) -> None:
        self._figures, self._device = figures, device
        self._model, self._engine = model, engine
        small = device == "cpu"
        self._tokens = 8 if small else 128
        self.means = []
        rng = np.random.default_rng(1)
        low, high = (5, 20) if small else (200, 1000)
        self._prompts = [
            tuple(rng.integers(8, model.config.vocab_size, rng.integers(low, high)).tolist())
            for _ in range(4 if small else 32)
        ]

    def look(self, label: str, version: int) -> list[Sample]:
        """Sync, sample and compare; returns what was sampled."""
        sync = seconds(lambda: self._engine.sync(self._model, version), self._device)
        self._figures(f"{label}.sync", sync, "s")
        samples = self._sample(version)
        engine = torch.tensor([x for s in samples for x in s.logprobs], device=self._device)
        note = "engine against trainer, sampled tokens"
        self.means.append(self.difference(label, engine, self.scores(samples), note))
        return samples

    def _sample(self, version: int) -> list[Sample]:
        for number, prompt in enumerate(self._prompts):
            sampling = Decoding(max_completion_tokens=self._tokens, temperature=TEMPERATURE)
            seed = version + number
            self._engine.submit(Request(id=number, prompt_ids=prompt, sampling=sampling, seed=seed))
        outputs = finish(self._engine, len(self._prompts))
        return [
            Sample(
                prompt_ids=prompt,
                completion_ids=outputs[number].token_ids,
                logprobs=outputs[number].logprobs,
                advantage=0.0,
                group_id=str(number),
                policy_version=version,
            )
            for number, prompt in enumerate(self._prompts)
        ]

    @torch.no_grad()
    def scores(self, samples: Sequence[Sample], together: int = 8) -> torch.Tensor:
        """[N] The trainer's log-probabilities, ``together`` sequences at a time."""
        found = []
        for start in range(0, len(samples), together):
            batch = batch_of(samples[start : start + together]).to(self._device)
            with precision(self._device):
                logp = completion_logprobs(self._model, batch, TEMPERATURE)
            found.append(logp[batch.mask.bool()].float())
        return torch.cat(found)

    def difference(self, label: str, one: torch.Tensor, other: torch.Tensor, note: str) -> float:
        """Report how far two sets of log-probabilities lie apart, in nats; returns the mean."""
        gap = (one - other).abs()
        self._figures(f"{label}.difference_mean", gap.mean().item(), "nats", note)
        self._figures(f"{label}.difference_max", gap.max().item(), "nats")
        return gap.mean().item()


def compare(figures: Figures, device: str, model: Any, engine: Any) -> None:
    """Before and after an update, and after a sleep if the engine has one.

    Raises:
        AssertionError: if a look found more than a quarter of what stale weights would show.
    """
    parity = Parity(figures, device, model, engine)
    before = parity.look("first", version=0)
    old = parity.scores(before)
    note = "trainer, micro-batches of 8 against 1: rounding alone"
    parity.difference("floor", old, parity.scores(before, 1), note)
    change_weights(model)
    stale = parity.difference("missed_sync", old, parity.scores(before), "what stale ones show")
    parity.look("updated", version=1)
    if getattr(engine, "sleep_level", 0):
        free = 0 if device == "cpu" else torch.cuda.mem_get_info()[0]
        figures("sleep_2.sleep", seconds(engine.sleep, device), "s")
        if device == "cuda":
            freed = (torch.cuda.mem_get_info()[0] - free) / GIB
            figures("sleep_2.freed", freed, "GiB")
        change_weights(model)
        parity.look("sleep_2", version=2)
    worst = max(parity.means)
    figures("serves_present_weights", worst < stale / 4, note="mean differences, missed_sync")
    assert worst < stale / 4, f"{worst:.3g} nats off, a missed sync would make {stale:.3g}"


@torch.no_grad()
def change_weights(model: Any) -> None:
    """Change the weights by far more than rounding."""
    for parameter in model.parameters():
        parameter.mul_(1.0 + CHANGE * torch.randn_like(parameter))


def main(name: str, device: str, report: str, test: str) -> None:
    """Compare one of :data:`ENGINES`."""
    figures = Figures(Path(report), test)
    model = random_model(hybrid(device == "cpu"), device)
    use_kernels(model, device)
    engine = TransformersEngine()
    if name != "transformers":
        from svr_lightning.engines.vllm import VLLMEngine

        engine = VLLMEngine(sleep_level=2, options={"enforce_eager": name == "vllm-eager"})
    length = 64 if device == "cpu" else 2048
    figures("start", seconds(lambda: engine.start(model, (), length), device), "s")
    compare(figures, device, model, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_serves_the_trainers_weights_after_updates_and_sleeps(engine, report, figures):
    pytest.importorskip(engine.partition("-")[0])
    log, words = report.with_suffix(".log"), (engine, DEVICE, str(report), figures.test)
    with started(log, DEVICE, *words, module=__name__) as ended:
        finished(ended, log, 240, lambda: None)
    assert figures.value("serves_present_weights") is True


if __name__ == "__main__":
    main(*sys.argv[1:])
