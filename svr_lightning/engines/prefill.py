"""Computes prompts: common prefixes once, and prompts of similar length together.

The prompts of a rollout share prefixes: all have the same instructions, and those of one group the
same question. The cache of a prefix does not depend on what follows, so another prompt copies these
columns and only its end goes through the model.

Shapes: B prompts, V tokens of the vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from svr_lightning.engines import batch_cache

CHUNK = 4096
"""Tokens that go through the model at once, padding included; a single prompt may be longer."""
SHARED = 16
"""Shortest shared prefix, in tokens, whose columns are copied."""

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


def read(
    prompts: Sequence[Tokens], forward: Forward, new_cache: Callable[[], DynamicCache]
) -> tuple[list[Tokens], Tensor, DynamicCache]:
    """Compute prompts of which no two are equal.

    Returns:
        The prompts in the order of computation, [B, V] scores of the tokens that follow
        them, and the cache of all.
    """
    whole, rest = _plan(prompts) if batch_cache.can_share(new_cache()) else (prompts, [])
    order: list[Tokens] = []
    scores: list[Tensor] = []

    def read_all(ends: Iterable[_End], like: DynamicCache | None = None) -> list[DynamicCache]:
        index = {prompt: row for row, prompt in enumerate(order)}
        caches = []
        for chunk in _chunks(ends):
            cache, size = new_cache(), chunk[-1].size
            lengths = [len(end.prompt) for end in chunk]
            if like is not None:
                rows = [index[end.like] for end in chunk]
                gaps = [len(end.like) - length for end, length in zip(chunk, lengths, strict=True)]
                batch_cache.copy_columns(like, cache, rows, gaps, max(lengths), size)
            ids = [[0] * (size - len(e.prompt)) + list(e.prompt[-size:]) for e in chunk]
            scores.append(forward(ids, lengths, cache))
            order.extend(end.prompt for end in chunk)
            caches.append(cache)
        return caches

    first = batch_cache.merge(read_all(_End(len(prompt), prompt) for prompt in whole))
    cache = batch_cache.merge([first, *read_all(rest, first)])
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
