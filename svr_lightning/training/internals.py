"""Every private name of other libraries that the package uses, under a public one.

No other file touches one. tests/integration/test_internals.py lists what each is needed for, and
fails where a new version no longer has it, or calls it with other arguments.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch._C import _len_torch_function_stack
from torch.overrides import _pop_mode_temporarily

Fetcher = _DataFetcher


def attention_of(model: Any) -> str:
    """The name of the attention function that a transformers model calls."""
    return str(model.config._attn_implementation)


class FitLoop(_FitLoop):
    """Lightning's fit loop with a replaceable fetcher; used in its place."""

    def __init__(self, trainer: Trainer, stock: _FitLoop) -> None:
        super().__init__(trainer, stock.min_epochs, stock.max_epochs)
        self.epoch_loop = stock.epoch_loop

    @property
    def fetcher(self) -> Fetcher | None:
        """Where batches come from."""
        return self._data_fetcher

    @fetcher.setter
    def fetcher(self, fetcher: Fetcher) -> None:
        self._data_fetcher = fetcher

    @property
    def validation_due(self) -> bool:
        """Whether validation follows the present batch."""
        fetcher = self._data_fetcher
        return fetcher is not None and self.epoch_loop._should_check_val_fx(fetcher)


class HookedTrainer(Trainer):
    """Lightning's Trainer with a context around each of its runs."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Entered before a run, left after it."""
        yield

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        with self.running():
            return super()._run(*args, **kwargs)

    def save_alone(self, path: Path) -> None:
        """Save a checkpoint without waiting for other processes; the first one writes it."""
        self.strategy.save_checkpoint(self._checkpoint_connector.dump_checkpoint(False), path)


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


def compile_no_kernels() -> None:
    """Keep DeepSpeed from compiling a communication kernel on CPUs, which takes over a minute."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def save_at_the_end(callback: ModelCheckpoint, step: int) -> None:
    """Save ``last`` when the run ends: Lightning would keep any earlier save."""
    if callback._last_global_step_saved != step:
        callback._last_checkpoint_saved = ""


def keep_within(logger: Logger, folder: str) -> None:
    """Make a W&B logger that was given no folder write to ``folder``: its own is the current."""
    if isinstance(logger, WandbLogger) and logger.save_dir == ".":
        logger._save_dir = logger._wandb_init["dir"] = folder


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
