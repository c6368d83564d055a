"""Private names of other libraries that the package uses are still there."""

import inspect
import pkgutil
from importlib.util import find_spec
from typing import Any

import pytest

PRIVATE = (
    "lightning.pytorch.loops.fetchers._DataFetcher",
    "lightning.pytorch.loops.fit_loop._FitLoop",
    "lightning.pytorch.loops.fit_loop._FitLoop._data_fetcher",
    "lightning.pytorch.loops.training_epoch_loop._TrainingEpochLoop._should_check_val_fx",
    "lightning.pytorch.callbacks.ModelCheckpoint._last_global_step_saved",
    "lightning.pytorch.callbacks.ModelCheckpoint._last_checkpoint_saved",
    "lightning.pytorch.Trainer._run",
    "lightning.pytorch.Trainer._checkpoint_connector",
    "lightning.pytorch.LightningModule._trainer",
    "lightning.pytorch.strategies.DeepSpeedStrategy._init_deepspeed_distributed",
    "torch._C._len_torch_function_stack",
    "torch.overrides._pop_mode_temporarily",
    "transformers.PreTrainedConfig._attn_implementation",
    "deepspeed.ops.__compatible_ops__",
)

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
    if inspect.isfunction(value):
        assert list(inspect.signature(value).parameters) == ARGUMENTS[name.rpartition(".")[2]]
