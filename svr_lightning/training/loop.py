"""The fit loop: one batch of problems becomes one rollout, then micro-batches of Lightning's own.

Only the data fetcher differs from Lightning's loop. It hands automatic optimisation the
micro-batches of a rollout and generates the next rollout when they are used up, which is after
the optimizer step. Accumulation, clipping, precision, strategies, callbacks, checkpoints,
``max_steps``, ``limit_train_batches`` and validation therefore work as they always do.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from svr_lightning.core.types import Problem
from svr_lightning.errors import ConfigError
from svr_lightning.training.batching import TrainBatch
from svr_lightning.training.distributed import gather_lists
from svr_lightning.training.internals import Fetcher, FitLoop, save_at_the_end


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

    def __iter__(self) -> "RolloutFetcher":
        self.iterator = iter(self.combined_loader)
        self.reset()
        return self

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
        assert self.iterator is not None
        self._pulled += 1
        batch, _, _ = next(self.iterator)
        return batch  # type: ignore[no-any-return]


class RolloutFitLoop(FitLoop):
    """Lightning's fit loop with rollouts between its data and its batches."""

    trainer: Any

    def __init__(self, trainer: Any, stock: Any) -> None:
        super().__init__(trainer, stock)
        self._restored: list[dict[str, Any]] = []

    @property
    def per_rollout(self) -> int:
        """Micro-batches per rollout."""
        module = self.trainer.lightning_module
        return int(self.trainer.accumulate_grad_batches * module.updates_per_rollout)

    @property
    def within_step(self) -> bool:
        """Whether micro-batches were begun for an optimizer step that has not been taken."""
        begun = self.epoch_loop.batch_progress.total.ready
        taken = self.epoch_loop.global_step * self.trainer.accumulate_grad_batches
        return bool(begun != taken)

    def run(self) -> None:
        """Train; a resumed run first makes up for a validation that an interruption cost it.

        Checkpoints are saved before the validation of their step, and Lightning takes that
        validation for done.
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
            # Lightning counts this validation itself when it goes on.
            val_loop.batch_progress.load_state_dict(progress)
        super().run()

    def setup_data(self) -> None:
        """Wrap the problems' fetcher and count in micro-batches from here on."""
        before = self.fetcher
        try:
            super().setup_data()
        except ValueError as error:  # a validation interval that the data cannot have
            raise ConfigError(str(error)) from error
        if self.fetcher is before or self.problems is None:
            return
        fetcher = RolloutFetcher(self._collect, self.per_rollout)
        fetcher.setup(self.problems)
        iter(fetcher)
        self.fetcher = fetcher
        self.max_batches *= self.per_rollout
        trainer = self.trainer
        if trainer.val_check_batch is not None and not math.isinf(trainer.val_check_batch):
            # A whole number counts optimizer steps, a fraction is one of the epoch's rollouts.
            steps = isinstance(trainer.val_check_interval, int)
            each = int(trainer.accumulate_grad_batches) if steps else self.per_rollout
            trainer.val_check_batch = int(trainer.val_check_batch) * each

    def on_save_checkpoint(self) -> dict[str, Any]:
        """Add what every process has left of a rollout that several optimizer steps share."""
        state = super().on_save_checkpoint()
        pending = getattr(self.fetcher, "pending", [])
        plain = [dict(vars(batch.to("cpu"))) for batch in pending]
        state["pending"] = gather_lists([plain])
        state["progress_counts"] = self._counted_in()
        return state

    def _counted_in(self) -> dict[str, int]:
        """What the saved progress is counted in."""
        micro_batches = "micro-batches per optimizer step (model.micro_batch_size, processes)"
        return {
            "data.problems_per_step": self.trainer.datamodule.problems_per_step,
            micro_batches: int(self.trainer.accumulate_grad_batches),
            "model.updates_per_rollout": self.trainer.lightning_module.updates_per_rollout,
        }

    def on_load_checkpoint(self, state_dict: dict[str, Any]) -> None:
        """Keep the rest of the rollout until the fetcher is asked for it."""
        super().on_load_checkpoint(state_dict)
        if "progress_counts" not in state_dict:
            raise ConfigError(
                "the checkpoint holds no rollouts: it is of another trainer or an older version; "
                "give --ckpt_path one that this version has saved"
            )
        for name, now in self._counted_in().items():
            before = state_dict["progress_counts"].get(name)
            if before != now:
                raise ConfigError(
                    f"{name}={now}, but the checkpoint was saved with {before}: the problems that "
                    f"it has seen could not be told from the others; resume with {before}"
                )
        by_rank = state_dict["pending"]
        ranks = self.trainer.world_size
        if any(by_rank) and len(by_rank) != ranks:
            raise ConfigError(
                f"the checkpoint lies within a rollout that {len(by_rank)} processes share, and "
                f"this run has {ranks}; resume with as many"
            )
        self._restored = by_rank[self.trainer.global_rank] if any(by_rank) else []

    def on_run_start(self) -> None:
        """Hand the rest of a restored rollout to the fetcher."""
        super().on_run_start()
        if self.within_step:
            raise ConfigError(
                "the checkpoint lies within an optimizer step, whose gradient no checkpoint holds; "
                "resume from another one"
            )
        if self._restored and isinstance(self.fetcher, RolloutFetcher):
            self.fetcher.pending = [TrainBatch(**batch) for batch in self._restored]
            self._restored = []

    def on_run_end(self) -> None:
        """Make ``last`` the end of the run: Lightning is content with any earlier save."""
        for callback in self.trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint):
                save_at_the_end(callback, self.trainer.global_step)
        super().on_run_end()

    def _collect(self, problems: list[Problem]) -> list[TrainBatch]:
        with torch.no_grad():
            return self.trainer.lightning_module.collect(problems)  # type: ignore[no-any-return]
