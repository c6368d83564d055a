"""Training on several processes: an error in one ends all of them, and DeepSpeed's ZeRO.

Stage 2 of ZeRO keeps complete weights on every process, which rollouts need, and shards gradients
and the optimizer with its fp32 master weights.
"""

import math
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import (
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    ParallelStrategy,
)

from svr_lightning.errors import ConfigError, error_line, require
from svr_lightning.training import checkpoint as folders

CLEAN_UP_SECONDS = 20
"""Seconds that a failing process may take to close its loggers and leave its group."""
REPORT_DELAY = 10
"""Seconds that the first process has to report a faulty configuration that all of them found."""


@contextmanager
def failing_together(trainer: Any) -> Iterator[None]:
    """Within it, an error in one process ends all of them.

    Raises:
        SystemExit: 1, in place of an error that was reported here with the rank's number.
        ConfigError: as it was raised, for the command line to print as one line; from the
            first process at once, from the others only if the first one reported nothing.
    """
    if trainer.world_size == 1:
        yield
        return
    try:
        yield
    except (ConfigError, MisconfigurationException) as error:
        if trainer.global_rank == 0:
            _end_all(trainer)
            raise
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun's way of ending the others
        time.sleep(REPORT_DELAY)
        raise ConfigError(f"rank {trainer.global_rank}: {error}") from error
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        line = f"rank {trainer.global_rank} failed: {type(error).__name__}: {error}"
        # In one write, so that the lines of several processes do not mix.
        sys.stderr.write(f"{trace}{error_line(line)}\n")
        sys.stderr.flush()
        _end_all(trainer)
        raise SystemExit(1) from error


def _end_all(trainer: Any) -> None:
    """On the first process, end the others at once. This one has some time to clean up."""
    launcher = trainer.strategy.launcher
    if trainer.global_rank == 0 and launcher is not None:
        launcher.kill(signal.SIGKILL)  # without effect where something else started them
    # The system ends this process if a callback or a collective blocks it.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(CLEAN_UP_SECONDS)


def any_stops(stops: bool, device: torch.device) -> bool:
    """Whether any process stops instead of taking a rollout's optimizer steps; each calls it once.

    Its own signals are handled while it waits for the others. A process that stops does not wait
    for long: others may have ended without a word.
    """
    flag = torch.tensor([float(stops)], device=device)
    work: Any = torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, async_op=True)
    patience = CLEAN_UP_SECONDS if stops else math.inf
    until = time.monotonic() + patience
    while not work.is_completed() and time.monotonic() < until:
        time.sleep(0.01)
    if not stops:
        work.wait()  # raises where another process has failed
    return stops or bool(flag.item())


def check_precision(precision: str, *, sharded: bool) -> None:
    """Refuse precisions that would lose updates.

    Raises:
        ConfigError: for fp16, and for bf16 weights without DeepSpeed's (``sharded``) fp32 masters.
    """
    fine = ("32-true", "64-true", "bf16-mixed", *(["bf16-true"] if sharded else []))
    require(
        precision in fine,
        f"trainer.precision={precision} would lose updates: only DeepSpeed keeps fp32 masters of "
        f"bf16 weights, and fp16 skips updates until its loss scale fits; use {fine[-1]}",
    )


class SVRDeepSpeedStrategy(DeepSpeedStrategy):
    """ZeRO-2 with the settings of the paper's framework.

    Args:
        timeout: how long a process waits for another one; the slowest rollout has to fit.

    Raises:
        ConfigError: where DeepSpeed is not installed.
    """

    def __init__(self, timeout: timedelta = timedelta(minutes=30)) -> None:
        require(
            find_spec("deepspeed") is not None,
            "trainer.strategy: DeepSpeed is not installed; pip install "
            "'deepspeed>=0.19.8,<0.20', add --config hardware/1gpu, or set it to auto or ddp",
        )
        super().__init__(stage=2, timeout=timeout, overlap_comm=False)
        assert isinstance(self.config, dict)
        # Only logged. Without it Lightning would read the training data in an evaluation too.
        self.config.setdefault("train_micro_batch_size_per_gpu", 1)

    @property
    def root_device(self) -> torch.device:
        """The device of this process."""
        device: torch.device = super().root_device
        return torch.device("cpu", 0) if device.type == "cpu" else device

    def setup_environment(self) -> None:
        """Also accept CPUs, which communicate by gloo."""
        if isinstance(self.accelerator, CPUAccelerator):
            import deepspeed

            # It would compile a communication kernel for over a minute.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
            super(DeepSpeedStrategy, self).setup_environment()
        else:
            super().setup_environment()

    def setup_distributed(self) -> None:
        """Join the other processes."""
        if isinstance(self.accelerator, CPUAccelerator):
            self.set_world_ranks()
            self._init_deepspeed_distributed()
        else:
            super().setup_distributed()

    def init_deepspeed(self) -> None:
        """Create DeepSpeed's engine, which clips gradients, and make its checkpoints atomic."""
        module: Any = self.lightning_module
        assert isinstance(self.config, dict)
        self.config["gradient_clipping"] = module.optimizer_config.gradient_clip_val or 0.0
        super().init_deepspeed()
        folders.make_durable(self.deepspeed_engine.checkpoint_engine)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Within it, a backward pass adds to the gradient of a step that is not complete."""
        self.deepspeed_engine.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            self.deepspeed_engine.set_gradient_accumulation_boundary(True)

    def gradient_norm(self) -> float:
        """The norm of the last update's gradient before clipping; inf where it was refused."""
        return float(self.deepspeed_engine.get_global_grad_norm())

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Write a folder beside the previous one, then put it in its place."""
        with folders.replacing(self, filepath) as folder:
            super().save_checkpoint(checkpoint, folder, storage_options)  # ends when all have

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        """Read weights, reference, and in training this process's share of the optimizer.

        Raises:
            ConfigError: if it is damaged, or of another number of processes.
        """
        assert self.lightning_module is not None
        training = self.lightning_module.trainer.state.fn == "fit"
        folders.require_complete(Path(checkpoint_path), self.world_size if training else None)
        _, state = self.deepspeed_engine.load_checkpoint(
            str(checkpoint_path),
            tag=folders.TAG,
            load_optimizer_states=training,
            load_lr_scheduler_states=False,
            custom_load_fn=None
            if training
            else lambda src, dst: dst.load_state_dict(folders.without_reference(src)),
        )
        return state

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a checkpoint's folder."""
        if self.is_global_zero:
            folders.remove(Path(filepath))


def gradient_sync(strategy: Any, *, last: bool) -> AbstractContextManager[None]:
    """Within it, processes exchange gradients only for the last backward pass of a step."""
    if last or not isinstance(strategy, ParallelStrategy):
        return nullcontext()
    return strategy.block_backward_sync()


def resolve_strategy(strategy: Any) -> Any:
    """The strategy of ``trainer.strategy``, where Lightning's ZeRO-2 is replaced by our own.

    Raises:
        ConfigError: for a strategy that shards the weights, or Lightning's own DeepSpeed, which
            would not clip gradients here and whose checkpoints are not atomic.
    """
    if strategy in ("deepspeed", "deepspeed_stage_2"):
        return SVRDeepSpeedStrategy()
    by_name = isinstance(strategy, str) and strategy.startswith(("deepspeed", "fsdp"))
    others = DeepSpeedStrategy | FSDPStrategy | ModelParallelStrategy
    require(
        isinstance(strategy, SVRDeepSpeedStrategy) or not (by_name or isinstance(strategy, others)),
        f"trainer.strategy={strategy}: rollouts need whole weights on every process, which FSDP "
        "and ZeRO-3 shard; use deepspeed_stage_2 or SVRDeepSpeedStrategy, without offload, or ddp "
        "with model.policy.lora",
    )
    return strategy
