"""A Lightning Trainer whose fit loop turns each batch of problems into one rollout.

Only the data fetcher differs from Lightning's loop: it hands the module's training step a rollout
where the data has problems. The step is manual optimisation, so all optimizer steps of a rollout
lie between two of the loop's batches: checkpoints, validations, limits and stops come between
rollouts and are counted in them.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from svr_lightning.core.types import Problem
from svr_lightning.devices import driver_fault
from svr_lightning.errors import ConfigError, require
from svr_lightning.files import check_folder
from svr_lightning.training.checkpoint import DurableCheckpointIO
from svr_lightning.training.distributed import failing_together, own_strategy
from svr_lightning.training.internals import (
    Fetcher,
    FitLoop,
    HookedTrainer,
    save_at_the_end,
    saves_by_the_clock,
)
from svr_lightning.training.logs import CSVLog
from svr_lightning.training.optimizer import use_rates


class RolloutFetcher(Fetcher):
    """Turns batches of problems into rollouts.

    Resuming is lazy: Lightning sets ``fetched`` after it made the iterator, so the problems that
    the checkpoint already covers are skipped when the first rollout is asked for.
    """

    def __init__(self, collect: Callable[[list[Problem]], Any]) -> None:
        super().__init__()
        self._collect = collect
        self._batches_read = 0

    def __next__(self) -> tuple[Any, int, int]:
        if self.length is not None and self.fetched >= self.length:
            self.done = True
            raise StopIteration
        while self._batches_read < self.fetched:
            self._next_problems()
        rollout = self._collect(self._next_problems())
        self.fetched += 1
        self.done = self.length is not None and self.fetched >= self.length
        return rollout, self.fetched - 1, 0

    def reset(self) -> None:
        """Begin an epoch."""
        super().reset()
        self._batches_read = 0

    def _next_problems(self) -> list[Problem]:
        self._batches_read += 1
        assert self.iterator is not None
        problems, _, _ = next(self.iterator)
        return problems  # type: ignore[no-any-return]


class RolloutFitLoop(FitLoop):
    """Lightning's fit loop with rollouts between its data and its batches."""

    trainer: Any

    @property
    def within_rollout(self) -> bool:
        """Whether a rollout is being trained on: not all of its optimizer steps are taken."""
        progress: Any = self.epoch_loop.batch_progress.total
        return bool(progress.ready != progress.processed)

    def run(self) -> None:
        """Train; a resumed run first repeats a validation that was interrupted.

        Checkpoints are saved before the validation of their step, and Lightning considers that
        validation done.
        """
        self.setup_data()
        module = self.trainer.lightning_module
        due = self.restarting and self.validation_due
        if due and not module.log_finished_validation():
            val_loop = self.epoch_loop.val_loop
            progress = val_loop.batch_progress.state_dict()
            val_loop.restarting = False
            self.trainer.validating = True
            val_loop.run()
            self.trainer.training = True
            # Lightning counts this validation itself when it continues.
            val_loop.batch_progress.load_state_dict(progress)
        if self.restarting:
            for optimizer, one in zip(
                self.trainer.optimizers, self.trainer.lr_scheduler_configs, strict=True
            ):
                use_rates(optimizer, one.scheduler, module.optimizer_config)
        super().run()

    def setup_data(self) -> None:
        """Wrap the fetcher of problems.

        An integer ``val_check_interval`` counts optimizer steps, rounded up to whole rollouts; a
        fraction is a share of the epoch's rollouts.
        """
        before = self.fetcher
        try:
            super().setup_data()
        except ValueError as error:  # a validation interval that the data cannot have
            raise ConfigError(str(error)) from error
        stock = self.fetcher
        if stock is before or stock is None:
            return
        module, interval = self.trainer.lightning_module, self.trainer.val_check_interval
        fetcher = RolloutFetcher(module.collect)
        fetcher.setup(stock.combined_loader)
        iter(fetcher)
        self.fetcher = fetcher
        if isinstance(interval, int):
            self.trainer.val_check_batch = math.ceil(interval / module.updates_per_rollout)

    def on_save_checkpoint(self) -> dict[str, Any]:
        """Add the settings that a resumed run has to share."""
        return super().on_save_checkpoint() | {
            "counted_in": self._counted_in(),
            "identity": self._identity(),
        }

    def _counted_in(self) -> dict[str, int]:
        """The settings that tell which problems the progress covers."""
        return {
            "data.problems_per_step": self.trainer.datamodule.problems_per_step,
            "model.updates_per_rollout": self.trainer.lightning_module.updates_per_rollout,
        }

    def _identity(self) -> dict[str, str]:
        """The settings without which a resumed run would silently be another one."""
        module, data = self.trainer.lightning_module, self.trainer.datamodule
        seeds = dict.fromkeys([module.seed, data.seed])  # the command line has one for both
        return {
            "seed_everything": ", ".join(map(str, seeds)),
            "data.train": f"sha256 {data.training_digest[:16]}",
            "model.recipe": type(module.recipe).__qualname__,
        }

    def on_load_checkpoint(self, state_dict: dict[str, Any]) -> None:
        """Check that the run can go on from here.

        Raises:
            ConfigError: if the problems seen so far cannot be told from the others. Other settings
                that make it another run are warned of.
        """
        super().on_load_checkpoint(state_dict)
        require(
            "counted_in" in state_dict,
            "the checkpoint holds no rollouts: it is of another trainer or an older version; "
            "give --ckpt_path one that this version has saved",
        )
        for name, now in self._counted_in().items():
            before = state_dict["counted_in"][name]
            require(
                before == now,
                f"{name}={now}, but the checkpoint was saved with {before}: the problems that "
                f"it has seen could not be told from the others; resume with {before}",
            )
        for name, value in self._identity().items():
            before = state_dict["identity"][name]
            if before != value:
                rank_zero_warn(
                    f"{name}={value}, but the checkpoint was saved with {before}: the resumed run "
                    "will not equal an uninterrupted one; to continue the same run, give it as it "
                    "was"
                )

    def on_run_end(self) -> None:
        """Save ``last`` at the end of the run: Lightning would keep any earlier save."""
        for saver in self.trainer.savers:
            save_at_the_end(saver, self.trainer.global_step)
        super().on_run_end()


_MOVED = {
    "accumulate_grad_batches": (
        "it follows from data.problems_per_step and the number of processes; leave it out and set "
        "model.micro_batch_size, the sequences per forward and backward pass"
    ),
    "gradient_clip_val": "set model.optimizer.gradient_clip_val instead",
    "gradient_clip_algorithm": "gradients are clipped by their norm; leave it out",
}
"""Options of Lightning's trainer that a training takes elsewhere, and where."""


class SVRTrainer(HookedTrainer):
    """Lightning's Trainer, with three defaults of its own.

    All files of a run are under ``default_root_dir``: ``logs/`` for TensorBoard,
    ``metrics.csv``, ``checkpoints/``. Ranks select their share of each batch themselves, so
    batches do not depend on the number of processes; each process resamples its own share.
    """

    fit_loop: RolloutFitLoop

    def __init__(
        self,
        *args: Any,
        accumulate_grad_batches: int | None = None,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        **kwargs: Any,
    ) -> None:
        moved = (accumulate_grad_batches, gradient_clip_val, gradient_clip_algorithm)
        for (name, instead), value in zip(_MOVED.items(), moved, strict=True):
            require(value is None, f"trainer.{name}={value}: {instead}")
        root = kwargs.get("default_root_dir") or "runs/default"
        check_folder(root, f"trainer.default_root_dir={root}")
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
        kwargs["plugins"] = [*_as_list(kwargs.get("plugins")), DurableCheckpointIO()]
        super().__init__(*args, **kwargs)
        self.fit_loop = RolloutFitLoop(self, self.fit_loop)
        for saver in self.savers:
            if saver.dirpath is None:
                saver.dirpath = str(Path(root).absolute() / "checkpoints")
            require(
                not saves_by_the_clock(saver),
                "trainer.callbacks: ModelCheckpoint.train_time_interval has no effect on these "
                "trainings; set every_n_train_steps",
            )

    @property
    def savers(self) -> list[ModelCheckpoint]:
        """The callbacks that save checkpoints."""
        return [c for c in self.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]

    @property
    def estimated_stepping_batches(self) -> float:
        """Optimizer steps of the whole run; a rollout may have several."""
        if self.max_epochs == -1:
            return math.inf if self.max_steps == -1 else self.max_steps
        self.fit_loop.setup_data()
        updates: int = self.lightning_module.updates_per_rollout  # type: ignore[assignment]
        steps = self.num_training_batches * updates * max(self.max_epochs or 0, 1)
        return steps if self.max_steps == -1 else min(steps, self.max_steps)

    def save_checkpoint(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save, unless in a ``fast_dev_run`` or while a rollout is being trained on.

        A save at any moment, such as at a job's last signal, then keeps the previous checkpoint.
        """
        if self.fast_dev_run:  # type: ignore[attr-defined]
            return
        if self.training and self.fit_loop.within_rollout:
            rank_zero_warn(f"within a rollout; {filepath} is not written, resume from last")
            return
        super().save_checkpoint(filepath, *args, **kwargs)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Errors of one process end all; an interrupted training says how to resume."""
        # Lightning advises every module with manual optimisation to save before its step.
        warnings.filterwarnings("ignore", message="Using ModelCheckpoint with manual optimization")
        try:
            with failing_together(self):
                yield
        except KeyboardInterrupt:
            if self.state.fn == "fit":
                rank_zero_info(self._resume_hint())
            raise

    def _resume_hint(self) -> str:
        """How to resume an interrupted run, which saves a checkpoint now if it has none.

        Not with several processes, which an interrupt finds in different places.
        """
        saved = [saver.last_model_path for saver in self.savers if saver.last_model_path]
        if not saved and self.savers and self.world_size == 1 and self.global_step > 0:
            name = f"{ModelCheckpoint.CHECKPOINT_NAME_LAST}{ModelCheckpoint.FILE_EXTENSION}"
            path = Path(str(self.savers[0].dirpath)) / name
            self.save_checkpoint(path)
            saved = [str(path)] if path.exists() else []
        interrupted = f"interrupted after optimizer step {self.global_step}"
        if not saved:
            return f"{interrupted}; there is no checkpoint yet, so start the run again"
        return f"{interrupted}; the same command with --ckpt_path last resumes from {saved[0]}"


def _check_accelerator(accelerator: str) -> None:
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    if accelerator in ("gpu", "cuda") and not gpu:
        raise ConfigError(
            f"trainer.accelerator={accelerator}, and torch sees no GPU here"
            f"{f' ({fault})' if (fault := driver_fault()) else ''}; to try the configuration out "
            "on a CPU add --config hardware/cpu_smoke as the last one"
        )


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
