"""A loss or gradient that is not finite ends the run before it reaches a weight."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from svr_lightning.core.types import Decoding
from svr_lightning.training.module import SVRModule
from svr_lightning.training.update import TrainBatch
from tests import small_fit
from tests.faults.runs import compare

Fault = Callable[[SVRModule, TrainBatch], None]


def fit(folder: Path, *callbacks: Callback) -> None:
    """Two optimizer steps of two micro-batches with two trajectories each."""
    model = small_fit.module(
        recipe=small_fit.recipe(group_size=2),
        sampling=Decoding(max_completion_tokens=24),
        micro_batch_size=2,
    )
    small_fit.trainer(folder, *callbacks, max_steps=2).fit(model, small_fit.data())


class Strike(Callback):
    """Does something before the second step to its first micro-batch; notes what was and is."""

    def __init__(self, fault: Fault) -> None:
        self.before = {}
        self.after = {}
        self.batch_problems = []
        self.step_problems = []
        self._fault = fault

    def on_train_batch_start(self, trainer: Any, pl_module: Any, rollout: Any, index: int) -> None:
        if index != 1:
            return
        batch = rollout.steps[0][0]
        self._fault(pl_module, batch)
        self.before = state(trainer, pl_module)
        self.batch_problems = list(dict.fromkeys(batch.group_ids))
        self.step_problems = [group.problem.id for group in rollout.groups]

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.after = state(trainer, pl_module)


def state(trainer: Any, model: SVRModule) -> dict[str, Any]:
    """Everything that an optimizer step changes."""
    (optimizer,) = trainer.optimizers
    return copy.deepcopy(
        {
            "weights": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
            "step": trainer.global_step,
        }
    )


def infinite_advantage(model: SVRModule, batch: TrainBatch) -> None:
    batch.advantages[1] = math.inf


def weight_that_is_nan(model: SVRModule, batch: TrainBatch) -> None:
    with torch.no_grad():
        next(model.policy.parameters())[0, 0] = math.nan


def infinite_gradient(model: SVRModule, batch: TrainBatch) -> None:
    parameter = next(model.policy.parameters())
    parameter.register_hook(lambda gradient: gradient + math.inf)


@pytest.mark.parametrize(
    ("fault", "what"),
    [(infinite_advantage, "loss"), (weight_that_is_nan, "loss"), (infinite_gradient, "gradient")],
)
def test_the_step_and_its_problems_are_named_and_nothing_is_updated(tmp_path, fault, what):
    strike = Strike(fault)
    message = f"the {what} of optimizer step 2 is not finite; stopped before the update"
    with pytest.raises(RuntimeError, match=message) as error:
        fit(tmp_path, strike)
    named = strike.batch_problems if what == "loss" else strike.step_problems
    assert f"Problems: {', '.join(named)}. Earlier checkpoints are intact" in str(error.value)
    assert len(strike.step_problems) == 2
    assert strike.before["step"] == 1
    found = []
    compare("state", strike.before, strike.after, found)
    assert found == []
