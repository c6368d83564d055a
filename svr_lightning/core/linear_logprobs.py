"""Log-probabilities of chosen tokens from hidden states, without holding all scores at once.

The output layer maps H features to V scores; V is so large (248,320 in Qwen3.5) that the scores of
one micro-batch need more memory than the model. Here one block of the vocabulary exists at a time.

Shapes: N positions, H features, V tokens of the vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_ELEMENTS = {"cpu": 2**22, "default": 2**27}
"""Number of scores that exist at a time, by device type: small enough for a processor's cache, or
large enough to keep a GPU's matrix units busy (half a GiB in fp32)."""
KEPT_BYTES = 2**30
"""Memory for exponentials that the forward pass keeps for the backward pass."""


def linear_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, token_ids: Tensor, temperature: float
) -> Tensor:
    """``log_softmax((hidden @ weight.T + bias) / temperature)`` at ``token_ids``.

    Values and gradients are those of the full scores: the product in the precision of ``hidden``
    (or of the autocast around the call), the softmax in fp32. The forward pass keeps the
    exponentials of the first blocks, up to :data:`KEPT_BYTES`, and the backward pass computes the
    other blocks again, so that memory does not grow with the scores.

    With p the softmax, g the incoming gradient and d_nv = g_n ([v = y_n] - p_nv) / temperature:
    grad hidden = d weight, grad weight = d^T hidden, grad bias = sum_n d_n.

    Args:
        hidden: [N, H].
        weight: [V, H], in ``hidden``'s precision or a higher one.
        bias: [V] or None.
        token_ids: [N].
        temperature: > 0, of the rollout.

    Returns:
        [N] nats, fp32.
    """
    device = hidden.device.type
    dtype = hidden.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    trains = hidden.requires_grad or weight.requires_grad
    room = KEPT_BYTES if trains and torch.is_grad_enabled() else 0
    return _LinearLogprobs.apply(  # type: ignore[no-any-return, no-untyped-call]
        hidden, weight, bias, token_ids, temperature, dtype, room
    )


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token_ids: Tensor,
        temperature: float,
        dtype: torch.dtype,
        room: int,
    ) -> Tensor:
        count = len(hidden)
        kept: list[Tensor] = []
        chosen = hidden.new_zeros(count, dtype=torch.float32)
        normaliser = hidden.new_full((count,), -torch.inf, dtype=torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            narrow = hidden.to(dtype)
            for block in _blocks(count, len(weight), hidden.device.type):
                scores = _scores(narrow, weight, bias, temperature, block)
                inside, column = _columns(token_ids, block)
                chosen += scores.gather(1, column).squeeze(1) * inside
                highest = _exp_(scores)
                normaliser = torch.logaddexp(normaliser, scores.sum(dim=1).log_().add_(highest))
                room -= scores.nbytes
                if room >= 0:
                    kept += [scores, highest]
        ctx.save_for_backward(hidden, weight, bias, token_ids, normaliser, *kept)
        ctx.temperature, ctx.dtype = temperature, dtype
        return chosen - normaliser

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, token_ids, normaliser, *kept = ctx.saved_tensors
        for_hidden, for_weight, for_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.zeros_like(hidden, dtype=torch.float32) if for_hidden else None
        grad_weight = torch.empty_like(weight) if for_weight else None
        grad_bias = torch.empty_like(bias) if for_bias else None
        step = (grad / ctx.temperature).unsqueeze(1)
        with torch.autocast(hidden.device.type, enabled=False):
            narrow = hidden.to(ctx.dtype)
            for number, block in enumerate(_blocks(len(hidden), len(weight), hidden.device.type)):
                if 2 * number < len(kept):
                    scores, highest = kept[2 * number : 2 * number + 2]
                    d = scores * (highest - normaliser).exp_().unsqueeze(1).mul_(-step)
                else:
                    scores = _scores(narrow, weight, bias, ctx.temperature, block)
                    d = scores.sub_(normaliser.unsqueeze(1)).exp_().mul_(-step)
                inside, column = _columns(token_ids, block)
                d.scatter_add_(1, column, step * inside.unsqueeze(1))
                if grad_bias is not None:
                    grad_bias[block] = d.sum(dim=0)
                d = d.to(ctx.dtype)
                if grad_hidden is not None:
                    _add_product_(grad_hidden, d, weight[block].to(ctx.dtype))
                if grad_weight is not None:
                    _product(d.t(), narrow, grad_weight[block])
        if grad_hidden is not None:
            grad_hidden = grad_hidden.to(hidden.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _blocks(count: int, vocabulary: int, device: str) -> Iterator[slice]:
    elements = BLOCK_ELEMENTS.get(device, BLOCK_ELEMENTS["default"])
    size = max(1, elements // max(1, count))
    for start in range(0, vocabulary, size):
        yield slice(start, min(start + size, vocabulary))


def _scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, block: slice
) -> Tensor:
    """[N, block] in fp32, in new memory."""
    rows = weight[block].to(hidden.dtype)
    offset = None if bias is None else bias[block].to(hidden.dtype)
    return torch.nn.functional.linear(hidden, rows, offset).float().div_(temperature)


def _columns(token_ids: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """[N] whether each token is in the block, and [N, 1] its column (any, where it is not)."""
    column = token_ids - block.start
    last = block.stop - block.start - 1
    inside = (column >= 0) & (column <= last)
    return inside.float(), column.clamp(0, last).unsqueeze(1)


def _exp_(scores: Tensor) -> Tensor:
    """Turn scores into exponentials relative to each row's highest, and return that: [N]."""
    highest = scores.amax(dim=1)
    scores.sub_(highest.unsqueeze(1)).exp_()
    return highest


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """``out = left @ right``, without a copy if no rounding is needed."""
    if left.dtype == out.dtype:
        torch.mm(left, right, out=out)
    else:
        out.copy_(left @ right)


def _add_product_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """``total += left @ right``, summed in fp32 where the factors are narrower."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
