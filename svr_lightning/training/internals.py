"""Every private name of other libraries that the package uses, under a public one.

No other file touches one. ``PRIVATE`` says what each is needed for;
tests/integration/test_internals.py fails where a new version no longer has it, or calls it with
other arguments.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies import DeepSpeedStrategy, ModelParallelStrategy
from torch._C import _len_torch_function_stack
from torch.overrides import _pop_mode_temporarily

_LOOPS = "lightning.pytorch.loops"

PRIVATE = {
    f"{_LOOPS}.fetchers._DataFetcher": "base of the fetcher that turns problems into rollouts",
    f"{_LOOPS}.fit_loop._FitLoop": "base of the fit loop",
    f"{_LOOPS}.fit_loop._FitLoop._data_fetcher": "where batches come from, to be replaced",
    f"{_LOOPS}.fit_loop._FitLoop._should_accumulate": "whether an optimizer step is unfinished",
    f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop": "base of the epoch loop",
    f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop._should_accumulate": "as above",
    f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop._should_check_val_fx": (
        "validation comes between optimizer steps only, and a resumed run makes up for one"
    ),
    "lightning.pytorch.callbacks.ModelCheckpoint._last_global_step_saved": (
        "the last checkpoint is that of the last step"
    ),
    "lightning.pytorch.callbacks.ModelCheckpoint._last_checkpoint_saved": "as above",
    "lightning.pytorch.Trainer._run": "an error of one process ends all of them",
    "lightning.pytorch.LightningModule._trainer": "whether a module has a trainer, without raising",
    "lightning.pytorch.strategies.DeepSpeedStrategy._precision_plugin": (
        "inputs stay in fp32, and DeepSpeed casts the weights itself"
    ),
    "lightning.pytorch.strategies.DeepSpeedStrategy._init_deepspeed_distributed": (
        "processes on CPUs, which Lightning refuses"
    ),
    "lightning.pytorch.strategies.ModelParallelStrategy._data_parallel_size": (
        "shards over all processes, however many a launcher starts"
    ),
    "torch._C._len_torch_function_stack": "engines work under no torch-function mode",
    "torch.overrides._pop_mode_temporarily": "as above",
    "torch.optim.AdamW._step_supports_amp_scaling": "gradients are clipped under mixed precision",
    "transformers.PreTrainedConfig._attn_implementation": "which attention a model calls",
    "deepspeed.ops.__compatible_ops__": "no communication kernel is compiled on CPUs",
}

Fetcher = _DataFetcher


def attention_of(model: Any) -> str:
    """The name of the attention function that a transformers model calls."""
    return str(model.config._attn_implementation)


class EpochLoop(_TrainingEpochLoop):
    """Lightning's epoch loop, which ends and validates between optimizer steps only.

    A time limit would otherwise end it at any micro-batch, and lose the step's gradient.
    """

    @property
    def done(self) -> bool:
        """Whether to leave the loop."""
        return not self._should_accumulate() and super().done

    def _should_check_val_fx(self, data_fetcher: _DataFetcher) -> bool:
        return not self._should_accumulate() and super()._should_check_val_fx(data_fetcher)

    def validation_due(self, fetcher: Any) -> bool:
        """Whether validation follows the present batch."""
        return self._should_check_val_fx(fetcher)


class FitLoop(_FitLoop):
    """Lightning's fit loop with a replaceable fetcher; used in its place."""

    epoch_loop: EpochLoop

    def __init__(self, trainer: Trainer, stock: _FitLoop) -> None:
        super().__init__(trainer, stock.min_epochs, stock.max_epochs)
        epochs = stock.epoch_loop
        self.epoch_loop = EpochLoop(trainer, epochs.min_steps, epochs.max_steps)

    @property
    def fetcher(self) -> Fetcher | None:
        """Where batches come from."""
        return self._data_fetcher

    @fetcher.setter
    def fetcher(self, fetcher: Fetcher) -> None:
        self._data_fetcher = fetcher

    @property
    def accumulating(self) -> bool:
        """Whether the present micro-batch is not the last one of its optimizer step."""
        return self._should_accumulate()


class HookedTrainer(Trainer):
    """Lightning's Trainer with a context around each of its runs."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Entered before a run, left after it."""
        yield

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        with self.running():
            return super()._run(*args, **kwargs)


class CPUDeepSpeed(DeepSpeedStrategy):
    """Lightning's DeepSpeed strategy with hooks for CPUs and for what precision means."""

    _precision_plugin: Any

    def use_precision(self, plugin: Any) -> None:
        """Represent numbers as ``plugin`` says."""
        self._precision_plugin = plugin

    def join_on_cpus(self) -> None:
        """Join the other processes over gloo."""
        self.set_world_ranks()
        self._init_deepspeed_distributed()


class AllProcesses(ModelParallelStrategy):
    """Lightning's FSDP2 over all processes of the run."""

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(tensor_parallel_size=1, timeout=timeout)

    def setup_environment(self) -> None:
        """Join the other processes."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()


def compile_no_kernels() -> None:
    """Keep DeepSpeed from compiling a communication kernel on CPUs, which takes over a minute."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def save_at_the_end(callback: ModelCheckpoint, step: int) -> None:
    """Save ``last`` when the run ends: Lightning would keep any earlier save."""
    if callback._last_global_step_saved != step:
        callback._last_checkpoint_saved = ""


def has_trainer(module: LightningModule) -> bool:
    """Whether a trainer runs this module."""
    return module._trainer is not None


@contextmanager
def no_torch_function_modes() -> Iterator[None]:
    """Outside of all of them; a default device is one."""
    with ExitStack() as modes:
        for _ in range(_len_torch_function_stack()):
            modes.enter_context(_pop_mode_temporarily())
        yield


def let_gradients_be_clipped(optimizer: torch.optim.AdamW) -> None:
    """A fused optimizer offers to undo a gradient scale itself.

    Nothing here needs that, and under mixed precision Lightning would refuse to clip gradients.
    """
    optimizer._step_supports_amp_scaling = False
