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

SPARE = 64
"""Columns that a layer of full attention allocates ahead."""

_SERVED = (DynamicLayer, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values as views of larger buffers.

    A new token is written into a spare column, and a row that is kept into the place of one that
    is not, where the stock layer copies everything for either.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers: tuple[Tensor, Tensor]
        self._start = self._stop = 0

    def hold(self, keys: Tensor, values: Tensor) -> None:
        """Replace all that is held by [B, H, L, D] keys and values."""
        self._buffers = (_pad_right(keys, SPARE), _pad_right(values, SPARE))
        self._show(rows=len(keys), start=0, stop=keys.shape[-2])

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append [B, H, T, D] columns and return all of them, as transformers asks."""
        stop = self._stop + key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.hold(key_states, value_states)
        elif stop > self._buffers[0].shape[-2]:
            keys = torch.cat([self.keys, key_states], dim=-2)
            self.hold(keys, torch.cat([self.values, value_states], dim=-2))
        else:
            for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
                buffer[: len(new), :, self._stop : stop] = new
            self._show(rows=len(key_states), start=self._start, stop=stop)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let row i be what was row ``beam_idx[i]``; only rows that move are copied."""
        rows = beam_idx.tolist()
        if len(rows) > len(self._buffers[0]):
            self.hold(self.keys[beam_idx], self.values[beam_idx])
            return
        places = [place for place, row in enumerate(rows) if place != row]
        moved = [rows[place] for place in places]
        for buffer in self._buffers:
            buffer[places, :, : self._stop] = buffer[moved, :, : self._stop]
        self._show(rows=len(rows), start=self._start, stop=self._stop)

    def trim(self, columns: int) -> None:
        """Forget the first ``columns`` columns."""
        self._show(rows=len(self.keys), start=self._start + columns, stop=self._stop)

    def _show(self, *, rows: int, start: int, stop: int) -> None:
        self._start, self._stop = start, stop
        self.keys, self.values = (buffer[:rows, :, start:stop] for buffer in self._buffers)


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
    cache.layers = [RoomyLayer() if type(x) is DynamicLayer else x for x in cache.layers]
    return cache


def merge(cache: DynamicCache, other: DynamicCache) -> None:
    """Append the rows of ``other`` to ``cache``, left-padding the shorter of the two."""
    for mine, theirs in zip(cache.layers, other.layers, strict=True):
        if _has_keys(mine):
            length = max(mine.keys.shape[-2], theirs.keys.shape[-2])
            keys = torch.cat([_pad_left(mine.keys, length), _pad_left(theirs.keys, length)])
            values = torch.cat([_pad_left(mine.values, length), _pad_left(theirs.values, length)])
            if isinstance(mine, RoomyLayer):
                mine.hold(keys, values)
            else:
                mine.keys, mine.values = keys, values
        for states in ("conv_states", "recurrent_states"):
            for index, state in getattr(mine, states, {}).items():
                if state is not None:
                    joined = torch.cat([state, getattr(theirs, states)[index]])
                    getattr(mine, states)[index] = joined


def keep_rows(cache: DynamicCache, rows: Tensor) -> None:
    """Keep the rows with these indices, in this order; rows that stay in place cost nothing."""
    cache.reorder_cache(rows)


def trim_left(cache: DynamicCache, columns: int) -> None:
    """Forget the first ``columns`` columns, which are padding in every row."""
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.trim(columns)
        elif columns and _has_keys(layer):
            layer.keys = layer.keys[:, :, columns:]
            layer.values = layer.values[:, :, columns:]


def _has_keys(layer: Any) -> bool:
    return isinstance(layer, DynamicLayer) and layer.is_initialized and layer.keys is not None


def _pad_left(states: Tensor, length: int) -> Tensor:
    return functional.pad(states, (0, 0, length - states.shape[-2], 0))


def _pad_right(states: Tensor, columns: int) -> Tensor:
    return functional.pad(states, (0, 0, 0, columns))
