"""The cache of a batch: prompts are read into it, rows come and go, padding is trimmed.

Sequences are left-padded to a common length, so that the next token of every row lies in the
same column. The cache works on layers with keys and values and on layers with recurrent states,
which is what Qwen3 and the hybrid Qwen3.5 are made of.

Prompts of similar length are computed together, and common prefixes once: the prompts of a rollout
have the same instructions, and those of one group the same question. The cache of a prefix does not
depend on what follows, so another prompt copies these columns and only its end goes through the
model.

Shapes: B prompts, V tokens of the vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

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

CHUNK = 4096
"""Tokens that go through the model at once, padding included; a single prompt may be longer."""
SHARED = 16
"""Shortest shared prefix, in tokens, whose columns are copied."""

SPARE = 32
"""Columns for the next tokens that a layer adds to its buffers when these are full."""

Tokens = tuple[int, ...]
Forward = Callable[[list[list[int]], list[int], DynamicCache], Tensor]
"""Takes [B, T] tokens, the [B] lengths of the prompts that end with them, and a cache of what
precedes them, to which they are added; returns [B, V] scores of the next tokens."""


class _End(NamedTuple):
    """The part of a prompt that has to be computed: its last tokens."""

    size: int
    prompt: Tokens
    like: Tokens = ()
    """The prompt with the same prefix; empty if all of it is computed."""


def read_prompts(
    prompts: Sequence[Tokens], forward: Forward, config: Any
) -> tuple[list[Tokens], Tensor, DynamicCache]:
    """Compute prompts of which no two are equal, with a model of this configuration.

    Returns:
        The prompts in the order of computation, [B, V] scores of the tokens that follow
        them, and the cache of all.
    """
    # Only of such layers can the states of a prefix be separated from those of the rest.
    shares = all(type(layer) is SpareLayer for layer in new_cache(config).layers)
    whole, rest = _plan(prompts) if shares else (prompts, [])
    order: list[Tokens] = []
    scores: list[Tensor] = []

    def read_all(ends: Iterable[_End], like: DynamicCache | None = None) -> list[DynamicCache]:
        index = {prompt: row for row, prompt in enumerate(order)}
        caches = []
        for chunk in _chunks(ends):
            cache, size = new_cache(config), chunk[-1].size
            lengths = [len(end.prompt) for end in chunk]
            if like is not None:
                rows = [index[end.like] for end in chunk]
                gaps = [len(end.like) - length for end, length in zip(chunk, lengths, strict=True)]
                copy_columns(like, cache, rows, gaps, max(lengths), size)
            ids = [[0] * (size - len(e.prompt)) + list(e.prompt[-size:]) for e in chunk]
            scores.append(forward(ids, lengths, cache))
            order.extend(end.prompt for end in chunk)
            caches.append(cache)
        return caches

    first = merge(read_all(_End(len(prompt), prompt) for prompt in whole))
    cache = merge([first, *read_all(rest, first)])
    return order, torch.cat(scores), cache


def _plan(prompts: Iterable[Tokens]) -> tuple[list[Tokens], list[_End]]:
    """The prompts that are computed completely, and the ends of those that share a prefix."""
    whole: list[Tokens] = []
    rest: list[_End] = []
    for prompt in sorted(prompts):  # so that prompts with shared prefixes are neighbours
        shared = _shared(prompt, whole[-1]) if whole else 0
        if shared < SHARED:
            whole.append(prompt)
        else:  # it is longer than the shared prefix, since it sorts after the other
            rest.append(_End(len(prompt) - shared, prompt, whole[-1]))
    return whole, rest


def _shared(one: Tokens, other: Tokens) -> int:
    """The length of the shared prefix, in tokens."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _chunks(ends: Iterable[_End]) -> Iterator[list[_End]]:
    """Ends of similar size, shortest first."""
    chunk: list[_End] = []
    for end in sorted(ends):
        if chunk and (len(chunk) + 1) * end.size > CHUNK:
            yield chunk
            chunk = []
        chunk.append(end)
    if chunk:
        yield chunk


# --- the cache ----------------------------------------------------------------------------------


class SpareLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values in buffers with spare columns, into which new tokens are written.

    The layer of transformers copies all columns to append one. Whoever sets ``keys``, to reorder or
    to trim, leaves the buffers behind; the next update makes new ones.
    """

    keys: Tensor
    values: Tensor
    _buffers: tuple[Tensor, Tensor]
    _shown: Tensor | None = None
    """The keys as the last update left them, a view of the first buffer."""

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append new keys and values; returns all."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
            self.keys, self.values = keys, values
            return keys, values
        held = self.keys.shape[-2]
        end = held + keys.shape[-2]
        if self.keys is not self._shown or end > self._buffers[0].shape[-2]:
            room = (0, 0, 0, end - held + SPARE)
            self._buffers = functional.pad(self.keys, room), functional.pad(self.values, room)
        for buffer, new in zip(self._buffers, (keys, values), strict=True):
            buffer[:, :, held:end] = new
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        self._shown = self.keys
        return self.keys, self.values


_SERVED = (SpareLayer, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)


def new_cache(config: Any) -> DynamicCache:
    """An empty cache for a model configuration.

    Raises:
        ConfigError: for a layer whose cache holds more than keys, values and recurrent states, or
            forgets columns on its own, as that of sliding-window attention does.
    """
    cache = DynamicCache(config=config)
    cache.layers = [
        SpareLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    for layer in cache.layers:
        if type(layer) not in _SERVED:
            kind = type(layer).__name__.removeprefix("Dynamic").removesuffix("Layer")
            raise ConfigError(
                f"engine: the transformers engine cannot serve {config.model_type!r}, whose cache "
                f"has {kind} layers; use the vLLM engine or a model with full attention"
            )
    return cache


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
        source: of keys and values alone.
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
                held = [getattr(layer, states) for layer in layers]
                padded = [functional.pad(one, (0, 0, length - one.shape[-2], 0)) for one in held]
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
