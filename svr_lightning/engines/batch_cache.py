"""A transformers cache whose rows come and go: merge two batches, drop rows, trim padding.

Sequences are left-padded to a common length, so that the next token of every row lies in the
same column. Works on layers with keys and values and on layers with recurrent states, which is
what Qwen3 and the hybrid Qwen3.5 are made of.
"""

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


def merge(cache: DynamicCache, other: DynamicCache) -> None:
    """Append the rows of ``other`` to ``cache``, left-padding the shorter of the two."""
    for mine, theirs in zip(cache.layers, other.layers, strict=True):
        if _has_keys(mine):
            length = max(mine.keys.shape[-2], theirs.keys.shape[-2])
            mine.keys = torch.cat([_pad(mine.keys, length), _pad(theirs.keys, length)])
            mine.values = torch.cat([_pad(mine.values, length), _pad(theirs.values, length)])
        for states in ("conv_states", "recurrent_states"):
            for index, state in getattr(mine, states, {}).items():
                if state is not None:
                    joined = torch.cat([state, getattr(theirs, states)[index]])
                    getattr(mine, states)[index] = joined


def keep_rows(cache: DynamicCache, rows: Tensor) -> None:
    """Keep the rows with these indices, in this order."""
    cache.reorder_cache(rows)


def trim_left(cache: DynamicCache, columns: int) -> None:
    """Forget the first ``columns`` columns, which are padding in every row."""
    for layer in cache.layers:
        if columns and _has_keys(layer):
            layer.keys = layer.keys[:, :, columns:]
            layer.values = layer.values[:, :, columns:]


def _has_keys(layer: Any) -> bool:
    return isinstance(layer, DynamicLayer) and layer.is_initialized and layer.keys is not None


def _pad(states: Tensor, length: int) -> Tensor:
    return functional.pad(states, (0, 0, length - states.shape[-2], 0))
