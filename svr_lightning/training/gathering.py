"""Plain values of several processes."""

from collections.abc import Container, Iterable, Mapping, Sequence
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


def combined(rows: Iterable[Mapping[str, float]], maxima: Container[str]) -> dict[str, float]:
    """The mean of each value over the rows that have it; of those in ``maxima`` the largest."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            found.setdefault(key, []).append(value)
    return {key: max(of) if key in maxima else fmean(of) for key, of in found.items()}
