"""A policy's effective weights: what an engine serves and an export holds.

For a matrix W with an adapter this is ``W + (alpha / r) B A``.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

ADAPTER = "default"
"""Name of the adapter; peft's own, so that an export is a usual one."""


def is_adapted(model: Any) -> bool:
    """Whether ``model`` has an adapter."""
    return hasattr(model, "peft_config")


def adapted_layers(model: Any) -> dict[str, Any]:
    """The adapted layers by name."""
    from peft.tuners.lora import LoraLayer

    return {name: m for name, m in model.named_modules() if isinstance(m, LoraLayer)}


class Weight(NamedTuple):
    """One effective weight, adapter included, by its name in the model without one."""

    name: str
    read: Callable[[], Tensor]
    """Computes it, in fp32 and in new memory if it has an adapter."""
    trains: bool


def acting_weights(model: Any) -> Iterator[Weight]:
    """Every weight of ``model`` with its adapter merged, one at a time and only when it is read."""
    layers = adapted_layers(model) if is_adapted(model) else {}
    for name, parameter in base_of(dict(model.named_parameters())).items():
        owner, _, kind = name.rpartition(".base_layer.")
        if owner in layers and kind == "weight":
            yield Weight(f"{owner}.{kind}", partial(_merged, layers[owner]), True)
        else:
            plain = name.replace(".base_layer.", ".")
            yield Weight(plain, parameter.detach, parameter.requires_grad)


@torch.no_grad()
def _merged(layer: Any) -> Tensor:
    merged: Tensor = layer.base_layer.weight + layer.get_delta_weight(ADAPTER)
    return merged


def adapters_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of a state dict that belongs to adapters."""
    parts = {name: {*name.split(".")} for name in state}
    return {name: state[name] for name, part in parts.items() if part & {"lora_A", "lora_B"}}


def base_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of a state dict that belongs to the frozen model."""
    adapters = adapters_of(state)
    return {name: value for name, value in state.items() if name not in adapters}
