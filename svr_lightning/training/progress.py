"""The progress display of a training: one line of at most 80 columns."""

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar

from svr_lightning.display import progress_line


class Progress(ProgressBar):
    """Optimizer steps, what the last rollout and the last validation gave, and the time left.

    ``reward`` and ``accuracy`` are means over the turns of the last rollout; ``turns`` and
    ``val_acc`` are what adaptive inference took and got at the last validation.
    """

    _bar: Any = None

    def disable(self) -> None:
        """Called on all processes but the first, which show nothing."""

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Begin to show the line."""
        self._bar = progress_line(
            trainer.estimated_stepping_batches,
            "step",
            done=trainer.global_step,
            quiet=not trainer.is_global_zero,
        )

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        """Show what the rollout or the validation gave."""
        if self._bar is not None:
            logged = trainer.progress_bar_metrics.items()
            self._bar.show((f"{name} {value:.2f}" for name, value in logged), trainer.global_step)

    on_train_batch_end = on_validation_end  # type: ignore[assignment]

    def on_train_end(self, *_: Any) -> None:
        """Keep the last line on the screen."""
        if self._bar is not None:
            self._bar.close()

    on_exception = on_train_end  # type: ignore[assignment]
