"""The progress display: optimizer steps, reward, accuracy, mean turns and time left."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar


class Progress(RichProgressBar):
    """Lightning's rich progress bar, counting optimizer steps of the whole run.

    ``reward`` and ``accuracy`` are means over the turns of the last rollout; ``turns`` and
    ``val_acc`` are what adaptive inference took and got at the last validation.
    """

    def _get_train_description(self, current_epoch: int) -> str:
        return "training"

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """Two decimals are enough, and they leave an 80-column terminal in one piece."""
        metrics: dict[str, Any] = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return {k: f"{v:.2f}" if isinstance(v, float) else v for k, v in metrics.items()}
