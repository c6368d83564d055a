"""Plain values of several processes."""

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def gather_lists(values: Sequence[T]) -> list[T]:
    """The values of all ranks, in the order of ranks; every rank must call it."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return list(values)
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, list(values))
    return list(chain.from_iterable(gathered))


def mean_over_ranks(values: Mapping[str, float]) -> dict[str, float]:
    """The mean of each value over the ranks that have it."""
    shards = gather_lists([dict(values)])
    keys = dict.fromkeys(key for shard in shards for key in shard)
    return {k: fmean(shard[k] for shard in shards if k in shard) for k in keys}
