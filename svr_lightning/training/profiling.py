"""A trace of some optimizer steps, by torch's profiler."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.profilers import PyTorchProfiler
from torch.profiler import profile, record_function

from svr_lightning.errors import require


class StepTrace(Callback):
    """Writes what happens between two optimizer steps, their rollouts included.

    Each process leaves ``profile/steps-FIRST-LAST-rank-RANK.json`` in the run's folder, for
    https://ui.perfetto.dev. Ranges are named ``sync``, ``rollout``, ``reward`` (the wait for
    graders included), ``reference`` and ``update``, the last once per micro-batch.

    Args:
        steps: first and last optimizer step, counted from 1; None traces nothing.

    Raises:
        ConfigError: if these are not two steps in order.
    """

    def __init__(self, steps: tuple[int, int] | None) -> None:
        require(
            steps is None or 1 <= steps[0] <= steps[1],
            f"model.profile_steps={list(steps or ())} must be the first and the last optimizer "
            "step to trace, counted from 1",
        )
        self._steps = steps
        self._trace: profile | None = None
        self._update = ExitStack()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse a second torch profiler: only one can run."""
        require(
            self._steps is None or not isinstance(trainer.profiler, PyTorchProfiler),
            "model.profile_steps and trainer.profiler=pytorch both use torch's profiler; leave "
            "one out",
        )

    def begin(self, step: int) -> None:
        """A rollout for optimizer step ``step``, or the step itself, begins."""
        if self._steps and self._steps[0] <= step <= self._steps[1] and self._trace is None:
            self._trace = profile()
            self._trace.start()

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """A micro-batch begins."""
        self.begin(trainer.global_step + 1)
        self._update.enter_context(record_function("update"))

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """A micro-batch has ended, and with the last one of a step the step."""
        self._update.close()
        if self._steps and trainer.global_step >= self._steps[1]:
            self._write(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """A run may end before the last step."""
        self._write(trainer)

    def _write(self, trainer: Any) -> None:
        if self._steps is None or self._trace is None:
            return
        self._trace.stop()
        folder = Path(trainer.default_root_dir) / "profile"
        folder.mkdir(parents=True, exist_ok=True)
        first, last = self._steps
        name = f"steps-{first}-{last}-rank-{trainer.global_rank}.json"
        self._trace.export_chrome_trace(str(folder / name))
        self._trace = None
