"""A transformers cache with changing rows: merge two batches, drop rows, trim padding.

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

SPARE = 64
"""Columns that a layer of full attention allocates in advance."""

_SERVED = (DynamicLayer, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values as views of larger buffers.

    A new token is written into a spare column, and a kept row is moved to the place of a dropped
    one; transformers' own layer copies everything for either.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers: tuple[Tensor, Tensor]
        self._start = self._stop = 0

    def hold(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Replace the content by the rows of [B, H, L, D] keys and values of any L."""
        length = max(states.shape[-2] for states in keys)
        if not self.is_initialized:
            self.lazy_initialization(keys[0], values[0])
        self._buffers = (_rows_of(keys, length), _rows_of(values, length))
        self._show(rows=sum(map(len, keys)), start=0, stop=length)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append [B, H, T, D] columns and return all of them, as transformers asks."""
        stop = self._stop + key_states.shape[-2]
        if not self.is_initialized:
            self.hold([key_states], [value_states])
        elif stop > self._buffers[0].shape[-2]:
            keys = torch.cat([self.keys, key_states], dim=-2)
            self.hold([keys], [torch.cat([self.values, value_states], dim=-2)])
        else:
            for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
                buffer[: len(new), :, self._stop : stop] = new
            self._show(rows=len(key_states), start=self._start, stop=stop)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Move row ``beam_idx[i]`` to row i; only rows that move are copied."""
        rows = beam_idx.tolist()
        if len(rows) > len(self._buffers[0]):
            self.hold([self.keys[beam_idx]], [self.values[beam_idx]])
            return
        targets = [target for target, row in enumerate(rows) if target != row]
        moved = [rows[target] for target in targets]
        for buffer in self._buffers:
            buffer[targets, :, : self._stop] = buffer[moved, :, : self._stop]
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


def can_share(cache: DynamicCache) -> bool:
    """Whether the states of a prefix can be separated from those of the rest."""
    return all(isinstance(layer, RoomyLayer) for layer in cache.layers)


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
    # Both are padded on the left: a token of row i stands as far from the end of its row, plus
    # what the other has more.
    moved = source.layers[0].keys.shape[-2] - width - torch.tensor(longer, device=device)
    columns = torch.arange(width - new, device=device) + moved.unsqueeze(1)
    columns = columns.clamp(min=0)  # of padding
    for full, layer in zip(source.layers, cache.layers, strict=True):
        keys, values = (
            states[index, :, columns].transpose(1, 2) for states in (full.keys, full.values)
        )
        layer.hold([keys], [values])


def merge(caches: Sequence[DynamicCache]) -> DynamicCache:
    """Append the rows of all others to the first, left-padding what is shorter, and return it."""
    first = caches[0]
    if len(caches) == 1:
        return first
    for mine, *others in zip(*(cache.layers for cache in caches), strict=True):
        layers = [mine, *others]
        if isinstance(mine, RoomyLayer):
            mine.hold([layer.keys for layer in layers], [layer.values for layer in layers])
        elif _has_keys(mine):
            length = max(layer.keys.shape[-2] for layer in layers)
            mine.keys = torch.cat([_pad_left(layer.keys, length) for layer in layers])
            mine.values = torch.cat([_pad_left(layer.values, length) for layer in layers])
        for states in ("conv_states", "recurrent_states"):
            for index, state in getattr(mine, states, {}).items():
                if state is not None:
                    joined = torch.cat([getattr(layer, states)[index] for layer in layers])
                    getattr(mine, states)[index] = joined
    return first


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


def _rows_of(parts: Sequence[Tensor], length: int) -> Tensor:
    """[B, H, length + SPARE, D] with the rows of all parts, which end at column ``length``."""
    _, heads, _, width = parts[0].shape
    buffer = parts[0].new_zeros(sum(map(len, parts)), heads, length + SPARE, width)
    row = 0
    for states in parts:
        buffer[row : row + len(states), :, length - states.shape[-2] : length] = states
        row += len(states)
    return buffer
