"""Selects and logs the kernels of a policy; on CUDA refuses slow or wrong ones."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from transformers.integrations.liger import apply_liger_kernel

from svr_lightning.errors import ConfigError, one_line, require

LIGER_MODELS = ("qwen3", "qwen3_5_text")
"""Architectures whose RMSNorm and SwiGLU (and, for Qwen3, rotary embedding) liger-kernel replaces
by the same functions, as its source says."""


def use_kernels(model: Any, liger: bool | None, device: str, *, trains: bool = True) -> None:
    """Patch the model in place with the kernels that this machine has for it, and log which ones.

    ``liger`` is that of :class:`PolicyConfig`, ``device`` the type that will run the model. Where
    nothing ``trains``, slow or wrong kernels are warned of: with vLLM the model computes nothing.

    Raises:
        ConfigError: if ``liger`` is True and cannot be, or a training would be slow or wrong.
    """
    config = model.config.get_text_config()
    installed = find_spec("liger_kernel") is not None and find_spec("triton") is not None
    used = []
    if chooses_liger(liger, model_type=config.model_type, device=device, installed=installed):
        # Its fused losses would replace the model's forward, which the engine needs for scores.
        changes = {"fused_linear_cross_entropy": False, "cross_entropy": False}
        apply_liger_kernel(model, changes)
        used.append(f"liger-kernel {version('liger_kernel')}")
    choose_functions(model, device)
    if device == "cuda":
        try:
            used += linear_attention_kernels(model)
        except ConfigError as error:
            if trains:
                raise
            rank_zero_warn(str(error))
    rank_zero_info(f"kernels on {device}: {', '.join([*used, 'torch'])}")


LINEAR_ATTENTION = "chunk_gated_delta_rule"
CONVOLUTION = "causal_conv1d_fn"
"""Functions of linear-attention layers, as transformers names them."""
_FUNCTIONS = ("gated_delta_rule", "causal_conv1d_fn", "causal_conv1d_update")
"""How the names of all of them end, for prompts and for single tokens."""
_PUT_ASIDE: dict[Any, Any] = {}
"""What transformers chose, by the function of its own that a CPU runs instead."""
KERNELS = "pip install 'svr-lightning[kernels]'"


def choose_functions(model: Any, device: str) -> None:
    """Let linear attention call transformers' own functions, on CUDA those that it has chosen.

    It chooses when it is imported, and takes kernels for CUDA, where they are installed, on a CPU
    too. The choice holds for all models of this process.
    """
    for functions, word in _words(model):
        if word.endswith(_FUNCTIONS):
            found = functions[word]
            if device == "cuda":
                functions[word] = _PUT_ASIDE.get(found, found)
            elif (chooser := _chooser(found)) is not None:
                functions[word] = inspect.unwrap(chooser)
                _PUT_ASIDE[functions[word]] = found


def linear_attention_kernels(model: Any) -> list[str]:
    """The functions that linear attention calls on CUDA, by their full names; [] without any.

    Raises:
        ConfigError: if transformers would compute it in a loop of its own, which takes more than
            ten times as long, or if this GPU and this Triton get its gradients wrong.
    """
    found = called(model, LINEAR_ATTENTION)
    if found is None:
        return []
    require(
        not _of_transformers(found),
        "linear attention: transformers would run its own Python loop, more than ten times slower "
        f"than a kernel, since {_why_not('fla.ops.gated_delta_rule')}; {KERNELS}",
    )
    triton = import_module("triton").__version__
    check_triton(
        torch.cuda.get_device_capability(), triton, tilelang=find_spec("tilelang") is not None
    )
    names = [_full_name(found)]
    convolution = called(model, CONVOLUTION)
    if convolution is not None and _of_transformers(convolution):
        names.append(f"torch's convolution, since {_why_not('causal_conv1d')}")
    elif convolution is not None:
        names.append(_full_name(convolution))
    return names


def called(model: Any, name: str) -> Any:
    """The function that layers of ``model`` really call under a name ending in ``name``, or None.

    transformers takes a kernel where its package imports without any error, else a function of
    its own, and hides its choice in the closure of a wrapper.
    """
    for functions, word in _words(model):
        if word.endswith(name):
            return _chosen(functions[word])
    return None


def _words(model: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """The module-level names that the layers' forward passes use, each with its module."""
    for forward in {inspect.unwrap(type(module).forward) for module in model.modules()}:
        for word in forward.__code__.co_names:
            if word in forward.__globals__:
                yield forward.__globals__, word


def _chosen(wrapper: Any) -> Any:
    chooser = _chooser(wrapper)
    return wrapper if chooser is None else _nonlocals(chooser)["implementation"]


def _chooser(wrapper: Any) -> Any:
    """The function within a wrapper that calls what was chosen; None if it is no wrapper."""
    return next((f for f in _within(wrapper) if "implementation" in _nonlocals(f)), None)


def _nonlocals(function: Any) -> Any:
    return inspect.getclosurevars(function).nonlocals


def _within(wrapper: Any) -> Iterator[Any]:
    """A wrapper, and the functions in its closure; the package kernels makes it a module."""
    function = wrapper if inspect.isfunction(wrapper) else type(wrapper).forward
    yield function
    yield from filter(inspect.isfunction, _nonlocals(function).values())


def _of_transformers(function: Any) -> bool:
    return str(function.__module__).startswith("transformers.")


def _full_name(function: Any) -> str:
    return f"{function.__module__}.{function.__name__}"


def _why_not(module: str) -> str:
    try:
        import_module(module)
    except Exception as error:  # transformers passes over any of them too
        return f"{module} cannot be imported ({one_line(error)})"
    return f"{module} was not there when transformers was imported"


def check_triton(capability: tuple[int, int], release: str, *, tilelang: bool) -> None:
    """Refuse Hopper with a Triton that computes wrong gradients of gated linear attention.

    These are the bounds of flash-linear-attention, whose backward pass would raise.

    Raises:
        ConfigError: for compute capability 9 and Triton from 3.4 to before 3.7.1 without tilelang.

    Examples:
        >>> check_triton((9, 0), "3.7.1", tilelang=False)
    """
    number = tuple(int(part) for part in release.split("+")[0].split(".")[:3])
    require(
        capability[0] != 9 or tilelang or not (3, 4) <= number < (3, 7, 1),
        f"linear attention: Triton {release} computes wrong gradients of it on this GPU (Hopper); "
        "install torch 2.13, which brings 3.7.1, or tilelang",
    )


def chooses_liger(wanted: bool | None, *, model_type: str, device: str, installed: bool) -> bool:
    """Whether liger-kernel is used; a ConfigError if it is wanted and cannot be."""
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
