"""What a run logs of its speed follows from what it did, and joins what its processes noted."""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, Trainer

from svr_lightning.training.logs import CSVLog, combined
from tests.commands import logged
from tests.small_fit import data, module, trainer


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
    model = module(micro_batch_size=8)
    fit.fit(model, datamodule=data())
    values = logged(tmp_path)
    for step in (1, 2):
        sampled = values["speed/rollout"][step] * values["time/rollout"][step]
        assert sampled == pytest.approx(seen.sampled[step - 1])
        learned = values["speed/update"][step] * values["time/update"][step]
        assert learned == pytest.approx(seen.learned[step - 1])
        assert 0.1 < values["memory/peak"][step] < 64
    assert values["memory/peak"][2] >= values["memory/peak"][1]


def test_a_steps_values_are_means_over_the_processes_that_have_them_and_maxima() -> None:
    first = {"train/kl": 0.2, "train/behaviour/max": 1.5, "memory/peak": 7.0}
    second = {"train/kl": 0.4, "train/behaviour/max": 4.0, "memory/peak": 3.0}
    found = combined([{**first, "engine/logprob_diff": 0.01}, second])
    means = {"train/kl": pytest.approx(0.3), "engine/logprob_diff": 0.01}
    assert found == {**means, "train/behaviour/max": 4.0, "memory/peak": 7.0}
