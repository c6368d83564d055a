"""Which faster kernels a model's layers use, decided once and said aloud."""

from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from transformers.integrations.liger import apply_liger_kernel
from transformers.utils import is_flash_linear_attention_available

from svr_lightning.errors import ConfigError

LIGER_MODELS = ("qwen3", "qwen3_5_text")
"""Architectures whose RMSNorm and SwiGLU (and, for Qwen3, rotary embedding) liger-kernel replaces
by the same functions, as its source says."""


def use_kernels(model: Any, liger: bool | None, device: str) -> None:
    """Give the model the kernels that this machine has for it, and log which ones.

    Args:
        model: a transformers causal language model; patched in place.
        liger: None to use liger-kernel where it can be, True to insist, False to do without.
        device: type of the device that will run the model.

    Raises:
        ConfigError: if ``liger`` is True and cannot be.
    """
    config = model.config.get_text_config()
    installed = find_spec("liger_kernel") is not None and find_spec("triton") is not None
    used = []
    if chooses_liger(liger, model_type=config.model_type, device=device, installed=installed):
        # Its fused losses would replace the model's forward, which the engine needs for scores.
        apply_liger_kernel(model, {"fused_linear_cross_entropy": False, "cross_entropy": False})
        used.append(f"liger-kernel {version('liger_kernel')}")
    hybrid = "linear_attention" in (getattr(config, "layer_types", None) or ())
    if hybrid and device == "cuda":
        if is_flash_linear_attention_available():
            used.append("flash-linear-attention")
        else:
            rank_zero_warn(
                "flash-linear-attention is not installed: the linear attention of this model runs "
                "as a loop in torch, many times slower; pip install flash-linear-attention"
            )
    rank_zero_info(f"kernels on {device}: {', '.join([*used, 'torch'])}")


def chooses_liger(wanted: bool | None, *, model_type: str, device: str, installed: bool) -> bool:
    """Whether liger-kernel is used.

    Raises:
        ConfigError: if it is wanted and cannot be; the message says why.
    """
    if wanted is False:
        return False
    obstacle = None
    if model_type not in LIGER_MODELS:
        obstacle = f"the architecture {model_type!r} is none of {', '.join(LIGER_MODELS)}"
    elif device != "cuda":
        obstacle = f"its kernels need CUDA and this run computes on {device!r}"
    elif not installed:
        obstacle = "liger-kernel and triton are not both installed; pip install liger-kernel"
    if wanted and obstacle:
        raise ConfigError(
            f"model.policy.liger=true cannot be: {obstacle}; or set model.policy.liger=null"
        )
    return obstacle is None
