"""Memory and time of the update's log-probabilities, block by block against all scores at once.

    python -m tools.bench update --out tools/bench/results/update.json

"Plain" is the log-softmax of ``hidden @ weight.T``, "blocks" is ``linear_logprobs``; both forward
and backward, gradients of hidden states and weight included, on a CPU. The plain path needs more
memory than most machines have: live bytes are counted exactly, tensor by tensor, on tensors without
data. Temporaries inside one operation do not count, which favours the plain path.

The backward pass reuses what the forward pass computed as far as a GiB holds it, and computes the
rest again. Both ends are timed: everything kept, and nothing kept.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from svr_lightning.core import linear_logprobs as blockwise
from svr_lightning.core.linear_logprobs import linear_logprobs
from tools.bench.workloads import GIB, TEMPERATURE, LiveBytes, in_turns, seconds

VOCABULARY = 248_320
TOKENS = 8 * 2048
FEATURES = 2048
TIMED = (1024, 32_768)
"""Tokens and vocabulary of the timed sizes, in about the same proportion."""
REPEATS = 5
Sizes = tuple[int, int, int]
"""Tokens, vocabulary, features."""


def plain(hidden: Tensor, weight: Tensor, token_ids: Tensor) -> Tensor:
    """Scores of the whole vocabulary, then their log-softmax."""
    scores = torch.nn.functional.linear(hidden, weight).float() / TEMPERATURE
    return scores.gather(1, token_ids.unsqueeze(1)).squeeze(1) - scores.logsumexp(1)


PATHS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "plain": plain,
    "blocks": lambda hidden, weight, ids: linear_logprobs(hidden, weight, None, ids, TEMPERATURE),
}


def inputs(sizes: Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weight, token ids."""
    tokens, vocabulary, features = sizes
    torch.manual_seed(0)
    hidden = torch.randn(tokens, features, requires_grad=True)
    weight = torch.randn(vocabulary, features).mul_(features**-0.5).requires_grad_()
    return hidden, weight, torch.randint(vocabulary, (tokens,))


def update(path: str, hidden: Tensor, weight: Tensor, token_ids: Tensor) -> None:
    """Forward and backward, with another incoming gradient for every token."""
    hidden.grad = weight.grad = None
    values = PATHS[path](hidden, weight, token_ids)
    values.backward(torch.linspace(-1.0, 1.0, len(values)))


def peak_gib(path: str, sizes: Sizes) -> float:
    """Peak GiB beyond the inputs, counted on tensors without data."""
    with FakeTensorMode():
        given = inputs(sizes)
        with LiveBytes() as live:
            update(path, *given)
    return float(live.peak / GIB)


def timing(sizes: Sizes) -> dict[str, Any]:
    """Median seconds of both paths, taken in turns."""
    given = inputs(sizes)
    ways = {path: partial(seconds, partial(update, path, *given), "cpu") for path in PATHS}
    medians = {path: median(times) for path, times in in_turns(ways, REPEATS).items()}
    named = dict(zip(("tokens", "vocabulary", "features"), sizes, strict=True))
    return {**named, **medians, "ratio": medians["blocks"] / medians["plain"]}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Memory and time."""
    peaks = {path: peak_gib(path, (TOKENS, VOCABULARY, FEATURES)) for path in PATHS}
    rows = []
    for kept in (blockwise.KEPT_BYTES, 0):
        blockwise.KEPT_BYTES = kept
        times = [timing((*TIMED, features)) for features in (1024, FEATURES)]
        rows += [{"kept_bytes": kept, **row} for row in times]
    return {"peak_gib": peaks, "timing": rows}
