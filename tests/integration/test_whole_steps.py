"""What ends or saves a training does so between optimizer steps, never within one."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint

from svr_lightning.errors import ConfigError
from svr_lightning.training.module import SVRModule
from tests.small_fit import data, module, same, trainer, weights

MICRO_BATCHES = 4
"""Of each optimizer step."""


class Interrupted(BaseException):
    pass


class At(Callback):
    """Does something after the n-th micro-batch of a process."""

    def __init__(self, number: int, act: Any) -> None:
        self.left, self.act = number, act

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.act(trainer)


def interrupt(_: Any) -> None:
    raise Interrupted


def stop(trainer: Any) -> None:
    trainer.should_stop = True


def run(folder: Path, *callbacks: Callback, resume: bool = False, **changes: Any) -> SVRModule:
    """Up to six optimizer steps, saved after every second one."""
    keep = ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=0, save_last=True)
    settings = {"enable_checkpointing": True}
    model = in_micro_batches()
    one = trainer(folder, *callbacks, keep, **settings | changes)
    one.fit(model, data(), ckpt_path=folder / "last.ckpt" if resume else None)
    return model


def in_micro_batches() -> SVRModule:
    """Two problems of four trajectories each."""
    return module(micro_batch_size=8 // MICRO_BATCHES)


def steps_of(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["global_step"])


def test_a_run_that_is_killed_twice_within_a_step_ends_with_the_same_weights(
    tmp_path: Path,
) -> None:
    whole = run(tmp_path / "whole")
    folder = tmp_path / "killed"
    with pytest.raises(Interrupted):
        run(folder, At(2 * MICRO_BATCHES + 1, interrupt))
    with pytest.raises(Interrupted):
        run(folder, At(1, interrupt), resume=True)
    resumed = run(folder, resume=True)
    assert steps_of(folder / "last.ckpt") == 6
    assert same(weights(resumed), weights(whole))


def test_a_run_that_is_told_to_stop_ends_behind_the_step_and_goes_on_from_there(
    tmp_path: Path,
) -> None:
    whole = run(tmp_path / "whole", max_steps=3)
    folder = tmp_path / "stopped"
    run(folder, At(MICRO_BATCHES + 2, stop), max_steps=3)
    assert steps_of(folder / "last.ckpt") == 2
    assert same(weights(run(folder, resume=True, max_steps=3)), weights(whole))


def test_saving_by_the_clock_waits_for_the_end_of_the_step(tmp_path: Path) -> None:
    saved: list[int] = []

    class Listen(Callback):
        def on_save_checkpoint(self, trainer: Any, *_: Any) -> None:
            saved.append(trainer.fit_loop.epoch_loop.batch_progress.total.ready)

    always = ModelCheckpoint(tmp_path / "clock", train_time_interval=timedelta(0), save_last=True)
    run(tmp_path, always, Listen(), max_steps=2)
    assert sorted(set(saved)) == [MICRO_BATCHES, 2 * MICRO_BATCHES]


def test_whoever_saves_within_a_step_is_told_that_nothing_was_written(tmp_path: Path) -> None:
    path = tmp_path / "now.ckpt"
    save = At(MICRO_BATCHES + 1, lambda trainer: trainer.save_checkpoint(path))
    with pytest.warns(UserWarning, match=r"within an optimizer step; .*now.ckpt is not written"):
        run(tmp_path, save, max_steps=2)
    assert not path.exists()


def test_a_checkpoint_from_within_a_step_is_refused(tmp_path: Path) -> None:
    run(tmp_path, max_steps=2)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    for progress in state["loops"]["fit_loop"]["epoch_loop.batch_progress"].values():
        if isinstance(progress, dict):
            progress |= {name: count + 1 for name, count in progress.items()}
    torch.save(state, tmp_path / "within.ckpt")
    one = trainer(tmp_path)
    with pytest.raises(ConfigError, match="lies within an optimizer step"):
        one.fit(in_micro_batches(), data(), ckpt_path=tmp_path / "within.ckpt")


def test_another_number_of_micro_batches_in_later_epochs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GradientAccumulationScheduler"):
        trainer(tmp_path, GradientAccumulationScheduler({0: 1, 4: 2}))
