"""The progress display: optimizer steps, reward, accuracy, mean turns and time left."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer

from svr_lightning.training.internals import ProgressBar


class Progress(ProgressBar):
    """Lightning's rich progress bar, counting optimizer steps instead of micro-batches.

    ``reward`` and ``accuracy`` are means over the turns of the last rollout; ``turns`` and
    ``val_acc`` are what adaptive inference took and got at the last validation.
    """

    @property
    def total_train_batches(self) -> int:
        """Optimizer steps that are left."""
        planned = int(self.trainer.estimated_stepping_batches)
        return planned - self.trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Advance when an optimizer step is complete."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        self.advance(trainer.global_step, trainer, pl_module)

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """Two decimals are enough, and they leave an 80-column terminal in one piece."""
        metrics: dict[str, Any] = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return {k: f"{v:.2f}" if isinstance(v, float) else v for k, v in metrics.items()}
