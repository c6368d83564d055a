"""A transformers cache with changing rows: merge batches, copy prefixes, trim padding.

Sequences are left-padded to a common length, so that the next token of every row lies in the
same column. Works on layers with keys and values and on layers with recurrent states, which is
what Qwen3 and the hybrid Qwen3.5 are made of.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from svr_lightning.errors import ConfigError

_SERVED = (DynamicLayer, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)


def new_cache(config: Any) -> DynamicCache:
    """An empty cache for a model configuration.

    Raises:
        ConfigError: for a layer whose cache holds more than keys, values and recurrent states, or
            forgets columns on its own, as that of sliding-window attention does.
    """
    cache = DynamicCache(config=config)
    for layer in cache.layers:
        if type(layer) not in _SERVED:
            kind = type(layer).__name__.removeprefix("Dynamic").removesuffix("Layer")
            raise ConfigError(
                f"engine: the transformers engine cannot serve {config.model_type!r}, whose cache "
                f"has {kind} layers; use the vLLM engine or a model with full attention"
            )
    return cache


def can_share(cache: DynamicCache) -> bool:
    """Whether the states of a prefix can be separated from those of the rest."""
    return all(type(layer) is DynamicLayer for layer in cache.layers)


def copy_columns(
    source: DynamicCache,
    cache: DynamicCache,
    rows: list[int],
    longer: list[int],
    width: int,
    new: int,
) -> None:
    """Fill an empty ``cache`` with columns of ``source``.

    Args:
        source: of layers that :func:`can_share` accepts.
        cache: where they go.
        rows: [B] row of ``source`` that row i begins like.
        longer: [B] by how many tokens that row is longer than row i will be.
        width: columns of ``cache`` when all of its tokens have been read.
        new: of these, the last ones, which are not copied.
    """
    device = source.layers[0].keys.device
    index = torch.tensor(rows, device=device).unsqueeze(1)
    # Both are padded on the left: a token of row i is as far from the end of its row as from the
    # end of the other, less what the other has more.
    moved = source.layers[0].keys.shape[-2] - width - torch.tensor(longer, device=device)
    columns = torch.arange(width - new, device=device) + moved.unsqueeze(1)
    columns = columns.clamp(min=0)  # of padding
    for full, layer in zip(source.layers, cache.layers, strict=True):
        keys, values = (
            states[index, :, columns].transpose(1, 2) for states in (full.keys, full.values)
        )
        layer.update(keys, values)


def merge(caches: Sequence[DynamicCache]) -> DynamicCache:
    """Append the rows of all others to the first, left-padding what is shorter, and return it."""
    first = caches[0]
    if len(caches) == 1:
        return first
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        merged = layers[0]
        if _has_keys(merged):
            length = max(layer.keys.shape[-2] for layer in layers)
            for states in ("keys", "values"):
                padded = [_pad_left(getattr(layer, states), length) for layer in layers]
                setattr(merged, states, torch.cat(padded))
        for states in ("conv_states", "recurrent_states"):
            for index, state in getattr(merged, states, {}).items():
                if state is not None:
                    joined = torch.cat([getattr(layer, states)[index] for layer in layers])
                    getattr(merged, states)[index] = joined
    return first


def trim_left(cache: DynamicCache, columns: int) -> None:
    """Forget the first ``columns`` columns, which are padding in every row."""
    for layer in cache.layers:
        if columns and _has_keys(layer):
            layer.keys = layer.keys[:, :, columns:]
            layer.values = layer.values[:, :, columns:]


def _has_keys(layer: Any) -> bool:
    return isinstance(layer, DynamicLayer) and layer.is_initialized and layer.keys is not None


def _pad_left(states: Tensor, length: int) -> Tensor:
    return functional.pad(states, (0, 0, length - states.shape[-2], 0))
