"""A loss or gradient that is not finite ends the run before it reaches a weight."""

import copy
import math
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


def fit(folder: Path, *callbacks: Callback) -> None:
    """Two optimizer steps of two micro-batches with two trajectories each."""
    model = small_fit.module(
        recipe=small_fit.recipe(group_size=2),
        sampling=Decoding(max_completion_tokens=24),
        micro_batch_size=2,
    )
    small_fit.trainer(folder, *callbacks, max_steps=2).fit(model, small_fit.data())


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


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (infinite_advantage, "loss"),
        (weight_that_is_nan, "loss"),
        (small_fit.infinite_gradient, "gradient"),
    ],
)
def test_the_step_and_its_problems_are_named_and_nothing_is_updated(tmp_path, fault, what):
    strike = small_fit.Strike(fault, state)
    message = f"the {what} of optimizer step 2 is not finite; stopped before the update"
    with pytest.raises(RuntimeError, match=message) as error:
        fit(tmp_path, strike)
    of_step = [group.problem.id for group in strike.rollout.groups]
    of_batch = dict.fromkeys(strike.rollout.steps[0][0].group_ids)
    named = of_batch if what == "loss" else of_step
    assert f"Problems: {', '.join(named)}. Earlier checkpoints are intact" in str(error.value)
    assert len(of_step) == 2
    assert strike.before["step"] == 1
    found = []
    compare("state", strike.before, strike.after, found)
    assert found == []
