"""Selects and logs the kernels of a policy; on CUDA refuses slow or wrong ones."""

import os
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from packaging.version import Version
from transformers.integrations.liger import apply_liger_kernel

from svr_lightning.errors import require

LIGER_MODELS = ("qwen3", "qwen3_5_text")
"""Architectures whose RMSNorm and SwiGLU (and, for Qwen3, rotary embedding) liger-kernel replaces
by the same functions, as its source says."""
SAFE_TRITON = (3, 7, 1)
"""First release since 3.4 whose gradients of gated linear attention are right on Hopper."""


def use_kernels(model: Any, device: str, *, trains: bool = True) -> None:
    """Patch the model in place with the kernels that this machine has for it, and log which ones.

    ``device`` is the type that will run the model. Where nothing ``trains``, slow kernels are
    warned of: with vLLM the model computes nothing.

    Raises:
        ConfigError: if a training would be slow or wrong.
    """
    installed = find_spec("liger_kernel") is not None and find_spec("triton") is not None
    known = model.config.get_text_config().model_type in LIGER_MODELS
    used = []
    if device == "cuda" and known and installed:
        # Its fused losses would replace the model's forward, which the engine needs for scores.
        changes = {"fused_linear_cross_entropy": False, "cross_entropy": False}
        apply_liger_kernel(model, changes)
        used.append(f"liger-kernel {version('liger_kernel')}")
    if device == "cuda":
        used += cuda_kernels(model, trains=trains)
    rank_zero_info(f"kernels on {device}: {', '.join([*used, 'torch'])}")


def cuda_kernels(model: Any, *, trains: bool = True) -> list[str]:
    """Choose what attention computes with on CUDA, for this process; what is worth logging of it.

    Raises:
        ConfigError: if linear attention would train slowly, or with wrong gradients.
    """
    # cuDNN builds a plan for each new shape, and every micro-batch has another one.
    torch.backends.cuda.enable_cudnn_sdp(False)
    used, config = ["attention without cuDNN"], model.config.get_text_config()
    if "linear_attention" not in (getattr(config, "layer_types", None) or ()):
        return used
    if find_spec("fla") is None:
        fault = (
            "linear attention: without flash-linear-attention transformers runs a Python loop, "
            "more than ten times slower than a kernel; pip install 'svr-lightning[kernels]'"
        )
        require(not trains, fault)
        rank_zero_warn(fault)
        return used
    triton, hopper = version("triton"), torch.cuda.get_device_capability()[0] == 9
    release = Version(triton).release
    # The bounds of flash-linear-attention, whose backward pass would raise.
    require(
        not (trains and hopper and (3, 4) <= release < SAFE_TRITON),
        f"linear attention: Triton {triton} computes wrong gradients of it on this GPU "
        "(Hopper); install torch 2.13, which brings 3.7.1",
    )
    if release >= SAFE_TRITON:
        # On Hopper it would compile a kernel of TileLang for each batch size, for half a minute.
        os.environ.setdefault("FLA_TILELANG", "0")
    tilelang = "off" if os.environ.get("FLA_TILELANG") == "0" else "as it chooses"
    fla = f"flash-linear-attention {version('fla-core')} on Triton {triton}, TileLang {tilelang}"
    return [*used, fla]
