"""A Lightning Trainer whose fit loop turns one batch of problems into one rollout.

Only the data fetcher differs from Lightning's loop. It gives automatic optimisation the
micro-batches of a rollout and generates the next rollout when they are used up, which is after
the optimizer step. Accumulation, clipping, precision, strategies, callbacks, checkpoints,
``max_steps``, ``limit_train_batches`` and validation therefore work as usual.
"""

import math
from collections.abc import Callable, Iterator, Sequence
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

from svr_lightning.core.types import Problem
from svr_lightning.errors import ConfigError, require
from svr_lightning.files import check_folder
from svr_lightning.training.checkpoint import DurableCheckpointIO
from svr_lightning.training.distributed import (
    failing_together,
    note_launcher,
    own_strategy,
)
from svr_lightning.training.gathering import gather_lists
from svr_lightning.training.identity import identity_of, warn_of_changes
from svr_lightning.training.internals import Fetcher, FitLoop, HookedTrainer, save_at_the_end
from svr_lightning.training.logs import CSVLog
from svr_lightning.training.optimizer import use_rates
from svr_lightning.training.update import TrainBatch


class RolloutFetcher(Fetcher):
    """Turns problem batches into micro-batches, ``per_rollout`` of them at a time.

    Resuming is lazy: Lightning sets ``fetched`` after it made the iterator, so the problems that
    the checkpoint already covers are skipped when the first micro-batch is asked for.
    """

    def __init__(
        self, collect: Callable[[list[Problem]], list[TrainBatch]], per_rollout: int
    ) -> None:
        super().__init__()
        self.pending: list[TrainBatch] = []
        self._collect = collect
        self._per_rollout = per_rollout
        self._pulled = 0

    def __next__(self) -> tuple[TrainBatch, int, int]:
        if self.length is not None and self.fetched >= self.length:
            self.done = True
            raise StopIteration
        used, partly = divmod(self.fetched, self._per_rollout)
        if partly and not self.pending:
            raise RuntimeError("the checkpoint lies within a rollout but does not hold the rest")
        while self._pulled < used + bool(partly):
            self._next_problems()
        if not self.pending:
            self.pending = self._collect(self._next_problems())
        batch = self.pending.pop(0)
        self.fetched += 1
        self.done = self.length is not None and self.fetched >= self.length
        return batch, self.fetched - 1, 0

    def reset(self) -> None:
        """Begin an epoch."""
        super().reset()
        self._pulled = 0
        if self.length is not None:
            self.length *= self._per_rollout

    def _next_problems(self) -> list[Problem]:
        self._pulled += 1
        assert self.iterator is not None
        batch, _, _ = next(self.iterator)
        return batch  # type: ignore[no-any-return]


MICRO_BATCHES = "micro-batches per optimizer step (model.micro_batch_size, processes)"


class RolloutFitLoop(FitLoop):
    """Lightning's fit loop with rollouts between its data and its batches."""

    trainer: Any
    _restored: Sequence[dict[str, Any]] = ()
    """What a checkpoint holds of this process's share of an unfinished rollout."""

    @property
    def per_rollout(self) -> int:
        """Micro-batches per rollout."""
        module = self.trainer.lightning_module
        return int(self.trainer.accumulate_grad_batches * module.updates_per_rollout)

    @property
    def within_step(self) -> bool:
        """Whether an optimizer step has begun and not ended."""
        begun = self.epoch_loop.batch_progress.total.ready
        taken = self.epoch_loop.global_step * self.trainer.accumulate_grad_batches
        return bool(begun != taken)

    def run(self) -> None:
        """Train; a resumed run first repeats a validation that was interrupted.

        Checkpoints are saved before the validation of their step, and Lightning considers that
        validation done.
        """
        self.setup_data()
        module = self.trainer.lightning_module
        resumed = self.restarting and self.fetcher is not None
        due = resumed and self.epoch_loop.validation_due(self.fetcher)
        if due and not module.evaluating.log_finished_validation():
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
        """Wrap the fetcher of problems; from here on counts are in micro-batches."""
        before = self.fetcher
        try:
            super().setup_data()
        except ValueError as error:  # a validation interval that the data cannot have
            raise ConfigError(str(error)) from error
        stock = self.fetcher
        if stock is before or stock is None:
            return
        module = self.trainer.lightning_module
        fetcher = RolloutFetcher(module.collect, self.per_rollout)
        fetcher.setup(stock.combined_loader)
        iter(fetcher)
        self.fetcher = fetcher
        self.max_batches *= self.per_rollout
        trainer = self.trainer
        if trainer.val_check_batch is not None and not math.isinf(trainer.val_check_batch):
            # An integer counts optimizer steps, a fraction is a share of the epoch's rollouts.
            steps = isinstance(trainer.val_check_interval, int)
            each = int(trainer.accumulate_grad_batches) if steps else self.per_rollout
            trainer.val_check_batch = int(trainer.val_check_batch) * each

    def on_save_checkpoint(self) -> dict[str, Any]:
        """Add each process's rest of a rollout that several optimizer steps share."""
        state = super().on_save_checkpoint()
        pending = getattr(self.fetcher, "pending", [])
        plain = [dict(vars(batch.to("cpu"))) for batch in pending]
        state["pending"] = gather_lists([plain])
        state["progress_counts"] = self._counted_in()
        state["identity"] = self._identity()
        return state

    def _identity(self) -> dict[str, str]:
        return identity_of(self.trainer.lightning_module, self.trainer.datamodule)

    def _counted_in(self) -> dict[str, int]:
        """The unit of the saved progress."""
        return {
            "data.problems_per_step": self.trainer.datamodule.problems_per_step,
            MICRO_BATCHES: int(self.trainer.accumulate_grad_batches),
            "model.updates_per_rollout": self.trainer.lightning_module.updates_per_rollout,
        }

    def load_state_dict(self, state_dict: dict[str, Any], prefix: str = "") -> None:
        """Restore the progress, converted to this run's micro-batches.

        A checkpoint contains only complete optimizer steps, so the conversion has no remainder.
        """
        super().load_state_dict(state_dict, prefix)
        before = state_dict[f"{prefix}state_dict"]["progress_counts"][MICRO_BATCHES]
        progress = self.epoch_loop.batch_progress
        for counts in (progress.total, progress.current):
            saved = vars(counts).copy()
            steps, rest = divmod(saved["ready"], before)
            begun = steps * int(self.trainer.accumulate_grad_batches) + rest
            # Of the last one, some say that it has not ended: it is saved before they count it.
            counts.load_state_dict({k: n - saved["ready"] + begun for k, n in saved.items()})

    def on_load_checkpoint(self, state_dict: dict[str, Any]) -> None:
        """Keep the rest of the rollout until the fetcher is asked for it.

        Raises:
            ConfigError: if the progress cannot be counted in this run. Other settings that make it
                another run are warned of.
        """
        super().on_load_checkpoint(state_dict)
        require(
            "progress_counts" in state_dict,
            "the checkpoint holds no rollouts: it is of another trainer or an older version; "
            "give --ckpt_path one that this version has saved",
        )
        by_rank, ranks = state_dict["pending"], self.trainer.world_size
        require(
            not any(by_rank) or len(by_rank) == ranks,
            f"the checkpoint lies within a rollout that {len(by_rank)} processes share, and "
            f"this run has {ranks}; resume with as many",
        )
        for name, now in self._counted_in().items():
            before = state_dict["progress_counts"].get(name)
            require(
                before == now or bool(before and name == MICRO_BATCHES and not any(by_rank)),
                f"{name}={now}, but the checkpoint was saved with {before}: the problems that "
                f"it has seen could not be told from the others; resume with {before}",
            )
        self._restored = by_rank[self.trainer.global_rank] if any(by_rank) else ()
        warn_of_changes(state_dict.get("identity", {}), self._identity())

    def on_run_start(self) -> None:
        """Give the rest of a restored rollout to the fetcher."""
        super().on_run_start()
        if self.within_step:
            raise ConfigError(
                "the checkpoint lies within an optimizer step, whose gradient no checkpoint holds; "
                "resume from another one"
            )
        if self._restored and isinstance(self.fetcher, RolloutFetcher):
            self.fetcher.pending = [TrainBatch(**batch) for batch in self._restored]
            self._restored = ()

    def on_run_end(self) -> None:
        """Save ``last`` at the end of the run: Lightning would keep any earlier save."""
        for saver in self.trainer.savers:
            save_at_the_end(saver, self.trainer.global_step)
        super().on_run_end()


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
        if any(isinstance(callback, GradientAccumulationScheduler) for callback in callbacks):
            raise ConfigError(
                "trainer.callbacks: GradientAccumulationScheduler would change the number of "
                "micro-batches that a rollout is cut into; set model.micro_batch_size"
            )
        kwargs["plugins"] = [*_as_list(kwargs.get("plugins")), DurableCheckpointIO()]
        note_launcher()
        super().__init__(*args, **kwargs)
        self.fit_loop = RolloutFitLoop(self, self.fit_loop)
        for saver in self.savers:
            if saver.dirpath is None:
                saver.dirpath = str(Path(root).absolute() / "checkpoints")
            # A resumed run, or one that saves at time intervals, would save within a step.
            at_end = self._after_whole_steps(saver.on_train_batch_end)
            saver.on_train_batch_end = at_end  # type: ignore[method-assign]

    @property
    def savers(self) -> list[ModelCheckpoint]:
        """The callbacks that save checkpoints."""
        return [c for c in self.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]

    def save_checkpoint(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save, unless in a ``fast_dev_run`` or within a step: checkpoints have no gradient.

        A save at any moment, such as at a job's last signal, then keeps the previous checkpoint.
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
        """Errors of one process end all; an interrupted training says how to resume."""
        try:
            with failing_together(self):
                yield
        except KeyboardInterrupt:
            if self.state.fn == "fit":
                rank_zero_info(self._how_to_go_on())
            raise

    def _how_to_go_on(self) -> str:
        saved = [saver.last_model_path for saver in self.savers if saver.last_model_path]
        said = f"interrupted after optimizer step {self.global_step}"
        if not saved:
            return f"{said}; there is no checkpoint yet, so start the run again"
        return f"{said}; the same command with --ckpt_path last goes on from {saved[0]}"


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
