"""What a run logs about its speed follows from what it did."""

import csv
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, Trainer

from svr_lightning.core.types import FinishReason
from svr_lightning.engines.base import Output, Request, SamplingParams
from svr_lightning.training.logs import CSVLog
from svr_lightning.training.rollouts import MeteredEngine
from tests.small_fit import data, module, trainer


class Slow:
    """An engine with two places; a completion of n tokens takes n steps once it has one."""

    max_batch = 2

    def __init__(self) -> None:
        self.left: list[list[int]] = []

    def submit(self, request: Request) -> None:
        self.left.append([request.id, request.sampling.max_tokens])

    def step(self) -> list[Output]:
        for one in self.left[: self.max_batch]:
            one[1] -= 1
        ended = [number for number, left in self.left if not left]
        self.left = [one for one in self.left if one[1]]
        return [
            Output(
                id=number,
                token_ids=(5,) * LENGTHS[number],
                logprobs=(0.0,) * LENGTHS[number],
                finish_reason=FinishReason.LENGTH,
                version=0,
            )
            for number in ended
        ]


LENGTHS = (1, 3, 4)


def test_tokens_steps_and_fill_of_an_engine() -> None:
    engine = MeteredEngine(Slow())
    for number, length in enumerate(LENGTHS):
        sampling = SamplingParams(max_tokens=length, temperature=0.0, seed=0)
        engine.submit(Request(id=number, messages=(), prompt_ids=(1,), sampling=sampling))
    ended = [output.id for _ in range(5) for output in engine.step()]
    assert ended == [0, 1, 2]
    # Three steps with both places taken, of which one was queued for; then two with one.
    assert engine.stats(seconds=2.0) == {
        "speed/rollout": 4.0,
        "engine/steps": 5.0,
        "engine/batch_fill": pytest.approx(8 / 10),
    }
    assert engine.max_batch == 2


class Seen(Callback):
    """Tokens that were sampled, and tokens that learned, in each step."""

    def __init__(self) -> None:
        self.sampled: list[int] = []
        self.learned: list[int] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        groups = pl_module.groups
        turns = [t.completion for g in groups for one in g.trajectories for t in one.turns]
        self.sampled.append(sum(len(c.token_ids) for c in turns))
        samples = [sample for g in groups for sample in g.samples]
        self.learned.append(sum(len(s.prompt_ids) + len(s.completion_ids) for s in samples))


def test_a_training_logs_its_speed(tmp_path: Path) -> None:
    seen = Seen()
    fit = trainer(tmp_path, seen, max_steps=2, logger=[CSVLog(tmp_path)])
    fit.fit(module(micro_batch_size=8), datamodule=data())
    with (tmp_path / "metrics.csv").open(newline="") as stream:
        values = {(row["key"], int(row["step"])): row["value"] for row in csv.DictReader(stream)}

    def logged(key: str, step: int) -> float:
        return float(values[key, step])

    for step in (1, 2):
        sampled = logged("speed/rollout", step) * logged("time/rollout", step)
        assert sampled == pytest.approx(seen.sampled[step - 1])
        learned = logged("speed/update", step) * logged("time/update", step)
        assert learned == pytest.approx(seen.learned[step - 1])
        # Two turns of 64 tokens at most, one token a step.
        assert 2 <= logged("engine/steps", step) <= 130
        assert 0 < logged("engine/batch_fill", step) <= 1
        assert 0.1 < logged("memory/peak", step) < 64
    assert logged("memory/peak", 2) >= logged("memory/peak", 1)
