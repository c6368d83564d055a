"""Private names of other libraries that the package uses are still there."""

import inspect
import pkgutil
from importlib.util import find_spec
from typing import Any

import pytest

_LOOPS = "lightning.pytorch.loops"

PRIVATE = {
    f"{_LOOPS}.fetchers._DataFetcher": "base of the fetcher that turns problems into rollouts",
    f"{_LOOPS}.fit_loop._FitLoop": "base of the fit loop",
    f"{_LOOPS}.fit_loop._FitLoop._data_fetcher": "where batches come from, to be replaced",
    f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop._should_check_val_fx": (
        "a resumed run makes up for a validation"
    ),
    "lightning.pytorch.callbacks.ModelCheckpoint._last_global_step_saved": (
        "the last checkpoint is that of the last step"
    ),
    "lightning.pytorch.callbacks.ModelCheckpoint._last_checkpoint_saved": "as above",
    "lightning.pytorch.Trainer._run": "an error of one process ends all of them",
    "lightning.pytorch.Trainer._checkpoint_connector": (
        "an interrupted process saves without waiting for the others"
    ),
    "lightning.pytorch.loggers.WandbLogger._save_dir": "files lie in the run's folder",
    "lightning.pytorch.loggers.WandbLogger._wandb_init": "as above",
    "lightning.pytorch.LightningModule._trainer": "whether a module has a trainer, without raising",
    "lightning.pytorch.strategies.DeepSpeedStrategy._init_deepspeed_distributed": (
        "processes on CPUs, which Lightning refuses"
    ),
    "torch._C._len_torch_function_stack": "engines work under no torch-function mode",
    "torch.overrides._pop_mode_temporarily": "as above",
    "transformers.PreTrainedConfig._attn_implementation": "which attention a model calls",
    "deepspeed.ops.__compatible_ops__": "no communication kernel is compiled on CPUs",
}

ARGUMENTS = {
    "_should_check_val_fx": ["self", "data_fetcher"],
    "_run": ["self", "model", "ckpt_path", "weights_only"],
    "_init_deepspeed_distributed": ["self"],
    "_pop_mode_temporarily": [],
}
"""Of the private methods that the package calls or replaces."""


def found(name: str) -> Any:
    """What a dotted name stands for; the source of its class where instances set it."""
    try:
        return pkgutil.resolve_name(name)
    except AttributeError:
        owner, _, attribute = name.rpartition(".")
        for base in pkgutil.resolve_name(owner).__mro__[:-1]:
            if f"self.{attribute}" in (source := inspect.getsource(base)):
                return source
        raise


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_name_is_there_and_takes_the_arguments_that_it_took(name: str) -> None:
    if name.startswith("deepspeed") and find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed")
    value = found(name)
    assert PRIVATE[name]
    if inspect.isfunction(value):
        assert list(inspect.signature(value).parameters) == ARGUMENTS[name.rpartition(".")[2]]
