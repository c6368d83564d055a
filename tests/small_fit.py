"""A module, data and a trainer for fits of a few steps with the shipped policy."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from svr_lightning.core.losses import LossSpec
from svr_lightning.core.types import Decoding, Problem, Turn
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.recipes.svr import SVR
from svr_lightning.training.config import EvaluationConfig, OptimizerConfig, ReferenceConfig
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.module import Rollout, SVRModule
from svr_lightning.training.sources import DataSource
from svr_lightning.training.trainer import SVRTrainer


class Remembering(SVRModule):
    """A module that keeps its latest rollout, which callbacks get as their batch."""

    rollout: Rollout

    def collect(self, problems: list[Problem]) -> Rollout:
        self.rollout = super().collect(problems)
        return self.rollout


def tiny(name: str, **settings: Any) -> DataSource:
    """Problems of the embedded Countdown."""
    return DataSource(name=name, task="countdown", path="embedded:countdown-tiny", **settings)


def policy(**changes: Any) -> PolicyConfig:
    """The shipped policy."""
    return PolicyConfig(max_prompt_tokens=512, max_model_len=1024, **changes)


def recipe(**changes: Any) -> SVR:
    settings = {"group_size": 4, "horizon": 2, "length_scale": 92, "loss": LossSpec(beta=0.1)}
    return SVR(**settings | changes)


def module(**changes: Any) -> Remembering:
    settings = {
        "policy": policy(),
        "recipe": recipe(),
        "sampling": Decoding(max_completion_tokens=32),
        "optimizer": OptimizerConfig(lr=1e-3),
        "reference": ReferenceConfig(every=2),
        "evaluation": EvaluationConfig(max_turns=2, max_completion_tokens=64),
        "resample": "off",
        "seed": 3,
    }
    return Remembering(**settings | changes)


def data(**changes: Any) -> SVRDataModule:
    settings = {
        "train": tiny("train", limit=12),
        "val": [tiny("dev", split="dev", limit=3)],
        "problems_per_step": 2,
        "seed": 3,
    }
    return SVRDataModule(**settings | changes)


def trainer(folder: Path, *callbacks: Callback, **changes: Any) -> SVRTrainer:
    settings = {
        "default_root_dir": str(folder),
        "accelerator": "cpu",
        "max_epochs": 1,
        "callbacks": list(callbacks),
        "logger": False,
        "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
    }
    return SVRTrainer(**settings | changes)


def saver(every: int = 1) -> ModelCheckpoint:
    """Saves ``last.ckpt`` at every so many steps."""
    return ModelCheckpoint(
        save_last=True,
        save_top_k=0,
        every_n_train_steps=every,
        enable_version_counter=False,
    )


class StopAt(Callback):
    """Ends a training after some steps, and after their checkpoint."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer, *_) -> None:
        trainer.should_stop = trainer.global_step >= self.steps


class Strike(Callback):
    """Does something to the module and the first micro-batch of the second rollout.

    Notes that rollout, and the state before it is trained on and after the run has failed.
    """

    def __init__(self, fault: Callable[..., None], state: Callable[..., dict[str, Any]]) -> None:
        self.fault, self.state = fault, state

    def on_train_batch_start(self, trainer, pl_module, rollout: Rollout, index: int) -> None:
        if index == 1:
            self.rollout = rollout
            self.fault(pl_module, rollout.steps[0][0])
            self.before = self.state(trainer, pl_module)

    def on_exception(self, trainer, pl_module, _) -> None:
        self.after = self.state(trainer, pl_module)


def infinite_gradient(model: SVRModule, _) -> None:
    """A fault for :class:`Strike`."""
    next(model.policy.parameters()).register_hook(lambda gradient: gradient + math.inf)


def turns_of(model: Remembering) -> list[Turn]:
    """All turns of the last rollout."""
    return [t for group in model.rollout.groups for one in group.trajectories for t in one.turns]


def weights(model: SVRModule) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.policy.parameters()]


def same(left: Iterable[torch.Tensor], right: Iterable[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
