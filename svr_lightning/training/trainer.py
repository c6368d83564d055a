"""A Lightning Trainer with the rollout fit loop, durable checkpoints and a run's folder layout."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import (
    GradientAccumulationScheduler,
    ModelCheckpoint,
    ProgressBar,
)
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from svr_lightning.errors import ConfigError
from svr_lightning.training.checkpoint import DurableCheckpointIO
from svr_lightning.training.distributed import failing_together, note_launcher, own_strategy
from svr_lightning.training.internals import HookedTrainer
from svr_lightning.training.logs import CSVLog
from svr_lightning.training.loop import RolloutFitLoop


class SVRTrainer(HookedTrainer):
    """Lightning's Trainer, with three defaults of its own.

    Everything of a run lies under ``default_root_dir``: ``logs/`` for TensorBoard,
    ``metrics.csv``, ``checkpoints/``. Ranks take their share of each batch themselves, so that
    batches on several processes are those of a run on one; resampling is each process's own.
    """

    fit_loop: RolloutFitLoop

    def __init__(
        self,
        *args: Any,
        accumulate_grad_batches: int | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        **kwargs: Any,
    ) -> None:
        if accumulate_grad_batches is not None:
            raise ConfigError(
                f"trainer.accumulate_grad_batches={accumulate_grad_batches}: it follows from "
                "data.problems_per_step and the number of processes; leave it out and set "
                "model.micro_batch_size, the sequences per forward and backward pass"
            )
        root = kwargs.get("default_root_dir") or "runs/default"
        _check_folder(Path(root))
        _check_accelerator(str(kwargs.get("accelerator", "auto")))
        kwargs |= {
            # Spelled out because the configuration parser takes Lightning's own limits for floats,
            # and 1.0 means everything where 1 means one batch.
            "limit_train_batches": limit_train_batches,
            "limit_val_batches": limit_val_batches,
            "limit_test_batches": limit_test_batches,
            "limit_predict_batches": limit_predict_batches,
            "default_root_dir": root,
            "use_distributed_sampler": False,
            "strategy": own_strategy(kwargs.get("strategy", "auto")),
        }
        if kwargs.get("logger") in (None, True):
            kwargs["logger"] = [
                TensorBoardLogger(root, name="logs", version="", default_hp_metric=False),
                CSVLog(root),
            ]
        callbacks = _as_list(kwargs.get("callbacks"))
        if kwargs.get("enable_progress_bar") is False:
            kwargs["callbacks"] = [c for c in callbacks if not isinstance(c, ProgressBar)]
        if any(isinstance(callback, GradientAccumulationScheduler) for callback in callbacks):
            raise ConfigError(
                "trainer.callbacks: GradientAccumulationScheduler would change the number of "
                "micro-batches that a rollout is cut into; set model.micro_batch_size"
            )
        kwargs["plugins"] = [*_as_list(kwargs.get("plugins")), DurableCheckpointIO()]
        note_launcher()
        super().__init__(*args, **kwargs)
        self.fit_loop = RolloutFitLoop(self, self.fit_loop)
        for callback in self.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint):
                if callback.dirpath is None:
                    callback.dirpath = str(Path(root).absolute() / "checkpoints")
                # A resumed run, or one that saves by the clock, would save within a step.
                at_end = self._after_whole_steps(callback.on_train_batch_end)
                callback.on_train_batch_end = at_end  # type: ignore[method-assign]

    def save_checkpoint(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save, unless in a ``fast_dev_run`` or within a step, whose gradient no checkpoint holds.

        What saves at any moment, such as a job's last signal, keeps the checkpoint before.
        """
        if self.fast_dev_run:  # type: ignore[attr-defined]
            return
        if self.training and self.fit_loop.within_step:
            rank_zero_warn(f"within an optimizer step; {filepath} is not written, resume from last")
            return
        super().save_checkpoint(filepath, *args, **kwargs)

    def _after_whole_steps(self, hook: Callable[..., None]) -> Callable[..., None]:
        def hook_of_whole_steps(*args: Any, **kwargs: Any) -> None:
            if not self.fit_loop.within_step:
                hook(*args, **kwargs)

        return hook_of_whole_steps

    @contextmanager
    def running(self) -> Iterator[None]:
        """Errors of one process end all of them; an interrupted training says how to go on."""
        try:
            with failing_together(self):
                yield
        except KeyboardInterrupt:
            if self.state.fn == "fit":
                rank_zero_info(self._how_to_go_on())
            raise

    def _how_to_go_on(self) -> str:
        kept = [c for c in self.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
        saved = [callback.last_model_path for callback in kept if callback.last_model_path]
        said = f"interrupted after optimizer step {self.global_step}"
        if not saved:
            return f"{said}; there is no checkpoint yet, so start the run again"
        return f"{said}; the same command with --ckpt_path last goes on from {saved[0]}"


def _check_folder(root: Path) -> None:
    """Refuse a folder that cannot be written to, before anything is loaded."""
    there = next(path for path in (root.absolute(), *root.absolute().parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise ConfigError(
            f"trainer.default_root_dir={root}: {there} cannot be written to; give another folder"
        )


def _check_accelerator(accelerator: str) -> None:
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    if accelerator in ("gpu", "cuda") and not gpu:
        raise ConfigError(
            f"trainer.accelerator={accelerator}, and torch sees no GPU here; to try the "
            "configuration out on a CPU add --config configs/hardware/cpu_smoke.yaml as the last "
            "one"
        )


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
