"""What ends or saves a training does so between rollouts, never within one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from svr_lightning.training.module import SVRModule
from tests.small_fit import data, module, same, trainer, weights


class AtBackward(Callback):
    """Does something after the n-th backward pass of a process; each step has four."""

    def __init__(self, number: int, act: Any) -> None:
        self.left, self.act = number, act

    def on_after_backward(self, trainer: Any, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.act(trainer)


def stop(trainer: Any) -> None:
    trainer.should_stop = True


def run(folder: Path, *callbacks: Callback, resume: bool = False, **changes: Any) -> SVRModule:
    """Up to six optimizer steps, saved after every second one."""
    keep = ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=0, save_last=True)
    model = module(micro_batch_size=2)  # two problems of four trajectories each
    one = trainer(folder, *callbacks, keep, **{"enable_checkpointing": True} | changes)
    one.fit(model, data(), ckpt_path=folder / "last.ckpt" if resume else None)
    return model


def steps_of(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["global_step"])


def test_a_run_that_is_told_to_stop_ends_behind_the_step_and_goes_on_from_there(
    tmp_path: Path,
) -> None:
    whole = run(tmp_path / "whole", max_steps=3)
    folder = tmp_path / "stopped"
    run(folder, AtBackward(6, stop), max_steps=3)
    assert steps_of(folder / "last.ckpt") == 2
    assert same(weights(run(folder, resume=True, max_steps=3)), weights(whole))


def test_whoever_saves_within_a_step_is_told_that_nothing_was_written(tmp_path: Path) -> None:
    path = tmp_path / "now.ckpt"
    save = AtBackward(5, lambda trainer: trainer.save_checkpoint(path))
    with pytest.warns(UserWarning, match=r"within a rollout; .*now.ckpt is not written"):
        run(tmp_path, save, max_steps=2)
    assert not path.exists()
