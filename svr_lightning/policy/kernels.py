"""The kernels that a model computes with."""

import functools
import inspect
import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from packaging.version import Version
from torch import Tensor
from transformers.integrations import hub_kernels
from transformers.integrations.liger import apply_liger_kernel

from svr_lightning.errors import require

LIGER_MODELS = ("qwen3", "qwen3_5_text")
"""Architectures whose RMSNorm and SwiGLU (and, for Qwen3, rotary embedding) liger-kernel replaces
by the same functions, as its source says."""
SMALL = 10_000_000
"""Parameters of a model that computes faster on one thread of a CPU than on several."""
SAFE_TRITON = Version("3.7.1")
"""First release since 3.4 whose gradients of gated linear attention are right on Hopper."""


def use_kernels(model: Any, device: str, *, trains: bool = True) -> None:
    """On CUDA, patch the model in place with the kernels that are installed for it.

    It also chooses the process's attention backends there. On a CPU the model computes in torch,
    whatever kernels are installed, and a small one on a single thread.

    Args:
        model: a transformers causal language model.
        device: the type that will run it.
        trains: whether slow kernels are refused. Otherwise they only give a warning, since with
            vLLM the model itself computes nothing.

    Raises:
        ConfigError: if a training would be slow or wrong.
    """
    if device != "cuda":
        _compute_in_torch(model)
        if "OMP_NUM_THREADS" not in os.environ and model.num_parameters() < SMALL:
            torch.set_num_threads(1)  # more of them wait for each other longer than they compute
        return
    # cuDNN builds a plan for each new shape, and every micro-batch has another one.
    torch.backends.cuda.enable_cudnn_sdp(False)
    config = model.config.get_text_config()
    installed = find_spec("liger_kernel") is not None and find_spec("triton") is not None
    if installed and config.model_type in LIGER_MODELS:
        # Its fused losses would replace the model's forward, which the engine needs for scores.
        apply_liger_kernel(model, {"fused_linear_cross_entropy": False, "cross_entropy": False})
    if "linear_attention" in (getattr(config, "layer_types", None) or ()):
        _choose_linear_attention(trains=trains)


def _compute_in_torch(model: Any) -> None:
    """Let linear attention and convolutions of tensors on a CPU compute in torch.

    When transformers is imported it binds the kernels of the packages that are installed (fla,
    causal_conv1d, mamba_ssm), which run on a GPU only.
    """
    for module in {sys.modules[type(layer).__module__] for layer in model.modules()}:
        for name, function in list(vars(module).items()):
            bound = inspect.unwrap(function, stop=_where_from)
            # What its wrappers wrap is the same computation in torch.
            if _where_from(bound) == hub_kernels.__name__ and hasattr(bound, "__wrapped__"):
                setattr(module, name, _kernel_on_cuda(function))


def _where_from(function: Any) -> str | None:
    """The module of a function if it is transformers' for kernels or this one, else None."""
    module = getattr(function, "__globals__", {}).get("__name__")
    return module if module in (hub_kernels.__name__, __name__) else None


def _kernel_on_cuda(kernel: Any) -> Any:
    """A function that calls ``kernel`` for tensors on a GPU, else its equivalent in torch."""

    @functools.wraps(kernel)
    def compute(*args: Any, **kwargs: Any) -> Any:
        tensors = (one for one in (*args, *kwargs.values()) if isinstance(one, Tensor))
        on_cuda = any(tensor.is_cuda for tensor in tensors)
        return (kernel if on_cuda else inspect.unwrap(kernel))(*args, **kwargs)

    return compute


def _choose_linear_attention(*, trains: bool) -> None:
    """Refuse what would compute linear attention slowly, or with wrong gradients."""
    if find_spec("fla") is None:
        fault = (
            "linear attention: without flash-linear-attention transformers runs a Python loop, "
            "more than ten times slower than a kernel; install it (docs/train.md)"
        )
        require(not trains, fault)
        rank_zero_warn(fault)
        return
    release, hopper = Version(version("triton")), torch.cuda.get_device_capability()[0] == 9
    # The bounds of flash-linear-attention, whose backward pass would raise.
    require(
        not (trains and hopper and Version("3.4") <= release < SAFE_TRITON),
        f"linear attention: Triton {release} computes wrong gradients of it on this GPU "
        "(Hopper); install torch 2.13, which brings 3.7.1",
    )
    if trains:
        rank_zero_info(
            "linear attention: Triton compiles and tunes its kernels in the first steps, which "
            "takes a few minutes on a new machine"
        )
    if release >= SAFE_TRITON:
        # On Hopper it would compile a kernel of TileLang for each batch size, for half a minute.
        os.environ.setdefault("FLA_TILELANG", "0")
