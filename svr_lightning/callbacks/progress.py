"""The progress display of a training: one line of at most 80 columns."""

import time
from contextlib import ExitStack
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from svr_lightning.display import COLUMNS, clock, status_line


class Progress(ProgressBar):
    """Optimizer steps, what the last rollout and the last validation gave, and the time left.

    ``reward`` and ``accuracy`` are means over the turns of the last rollout; ``turns`` and
    ``val_acc`` are what adaptive inference took and got at the last validation. On a terminal the
    rollout or the evaluation in progress has a line of its own below this one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._shown = ExitStack()
        self._began = 0.0
        self._first = 0
        self._steps: float = 0

    def enable(self) -> None:
        """Show the line."""
        self._enabled = True

    def disable(self) -> None:
        """Show nothing, as on all processes but the first."""
        self._enabled = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to show the line."""
        self._began, self._first = time.monotonic(), trainer.global_step
        self._steps = trainer.estimated_stepping_batches
        if self._enabled:
            self._shown.enter_context(status_line(self.line, always=True))

    def on_train_end(self, *_: Any) -> None:
        """Leave the line as it was last."""
        self._shown.close()

    def on_exception(self, *_: Any) -> None:
        """Give the terminal back."""
        self._shown.close()

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """What was logged for the progress display, with two decimals."""
        metrics: dict[str, Any] = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return {k: f"{v:.2f}" if isinstance(v, float) else v for k, v in metrics.items()}

    def line(self) -> str:
        """The present state."""
        done, seconds = self.trainer.global_step, time.monotonic() - self._began
        new = done - self._first
        left = clock(seconds * (self._steps - done) / new) if new else "?"
        metrics = self.get_metrics(self.trainer, self.trainer.lightning_module)
        values = "".join(f"{name} {value}, " for name, value in metrics.items())
        return f"step {done}/{self._steps:.0f}, {values}{clock(seconds)}, {left} left"[:COLUMNS]
