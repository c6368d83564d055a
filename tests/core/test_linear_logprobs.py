"""Log-probabilities block by block: the values and gradients of the full scores, in less memory."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from svr_lightning.core import linear_logprobs as blockwise
from svr_lightning.core.linear_logprobs import linear_logprobs
from tests.tolerance import rounding

N, H, V = 5, 4, 11


@pytest.fixture(
    params=[(e, b) for e in (1, 15, 55, 10_000) for b in (0, 130, 10_000)],
    ids=lambda sizes: "{}-elements-{}-bytes".format(*sizes),
)
def _block(request, monkeypatch) -> None:
    """Blocks of 1 and of 3 of the 11 tokens, the last of them shorter, and of all 11.

    None, some or all of them are kept for the backward pass.
    """
    monkeypatch.setitem(blockwise.BLOCK_ELEMENTS, "cpu", request.param[0])
    monkeypatch.setattr(blockwise, "KEPT_BYTES", request.param[1])


def inputs(
    bias: bool = True, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_()

    tokens = torch.tensor([0, 10, 3, 3, 7])  # both ends, a repeated one
    return draw(N, H), draw(V, H), draw(V) if bias else None, tokens


def plain(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, token_ids: Tensor, temperature: float
) -> Tensor:
    scores = torch.nn.functional.linear(hidden, weight, bias).float() / temperature
    return scores.log_softmax(1).gather(1, token_ids.unsqueeze(1)).squeeze(1)


def gradients(function: Any, *args: Any, upstream: Tensor) -> list[Tensor]:
    values = function(*args)
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    return [values, *torch.autograd.grad(values, leaves, upstream)]


UPSTREAM = torch.tensor([1.0, -2.0, 0.0, 0.5, 3.0])


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize("bias", [True, False])
def test_blocks_of_any_size_give_the_values_and_gradients_of_the_full_scores(bias):
    args = (*inputs(bias), 0.9)
    found = gradients(linear_logprobs, *args, upstream=UPSTREAM)
    expected = gradients(plain, *args, upstream=UPSTREAM)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        allowed = rounding(H + V, theirs.abs().max().item())
        torch.testing.assert_close(mine, theirs, atol=allowed, rtol=0)


@pytest.mark.usefixtures("_block")
def test_under_autocast_the_product_is_taken_in_bf16_and_the_softmax_in_fp32():
    args = (*inputs(), 0.9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = plain(*args)
        found = linear_logprobs(*args)
    # Scores rounded to bf16 are the same numbers in both; fp32 scores would differ by 1e-3.
    allowed = rounding(V, expected.abs().max().item())
    torch.testing.assert_close(found, expected, atol=allowed, rtol=0)
    assert (linear_logprobs(*args) - found).abs().max() > 10 * allowed
    leaves = args[:3]
    mine = torch.autograd.grad(found, leaves, UPSTREAM)
    theirs = torch.autograd.grad(expected, leaves, UPSTREAM)
    for one, other in zip(mine, theirs, strict=True):
        assert one.dtype == torch.float32
        allowed = rounding(1, other.abs().max().item(), torch.bfloat16)
        torch.testing.assert_close(one, other, atol=allowed, rtol=0)


@pytest.mark.usefixtures("_block")
def test_bf16_weights_get_bf16_gradients_and_fp32_values():
    args = (*inputs(dtype=torch.bfloat16), 0.9)
    found = gradients(linear_logprobs, *args, upstream=UPSTREAM)
    expected = gradients(plain, *args, upstream=UPSTREAM)
    assert [tensor.dtype for tensor in found] == [torch.float32] + [torch.bfloat16] * 3
    for mine, theirs in zip(found, expected, strict=True):
        allowed = rounding(1, theirs.abs().max().item(), torch.bfloat16)
        torch.testing.assert_close(mine.float(), theirs.float(), atol=allowed, rtol=0)


def test_scores_far_apart_neither_overflow_nor_lose_the_certain_token():
    weight = torch.tensor([[3e4], [0.0], [-3e4]], requires_grad=True)
    value = linear_logprobs(torch.ones(2, 1), weight, None, torch.tensor([0, 2]), 0.5)
    torch.testing.assert_close(value, torch.tensor([0.0, -1.2e5]))
    value.sum().backward()
    torch.testing.assert_close(weight.grad, torch.tensor([[-2.0], [0.0], [2.0]]))


def test_no_position_at_all_is_no_value_and_a_gradient_of_zero():
    weight = torch.ones(3, 2, requires_grad=True)
    value = linear_logprobs(torch.ones(0, 2), weight, None, torch.zeros(0, dtype=torch.long), 1.0)
    assert value.shape == (0,)
    value.sum().backward()
    assert torch.equal(weight.grad, torch.zeros(3, 2))


class _Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.fixture
def in_blocks(monkeypatch) -> tuple[Any, ...]:
    """Arguments for 64 tokens of 1,000, which take ten blocks of 25,600 bytes."""
    monkeypatch.setitem(blockwise.BLOCK_ELEMENTS, "cpu", 6400)
    hidden, weight = (torch.ones(count, 4, requires_grad=True) for count in (64, 1000))
    return hidden, weight, None, torch.zeros(64, dtype=torch.long), 0.9


def test_no_tensor_of_all_scores_exists_forward_or_backward(in_blocks):
    for function, largest in ((plain, 64 * 1000), (linear_logprobs, 6400)):
        watch = _Largest()
        with watch:
            function(*in_blocks).sum().backward()
        assert watch.elements == largest


def test_what_is_kept_for_the_backward_pass_is_bounded(in_blocks, monkeypatch):
    def blocks_kept(room):
        monkeypatch.setattr(blockwise, "KEPT_BYTES", room)
        kept = []

        def note(tensor):
            kept.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            linear_logprobs(*in_blocks)
        return kept.count(25_600)

    assert [blocks_kept(room) for room in (0, 25_599, 25_600, 80_000, 2**30)] == [0, 0, 1, 3, 10]
    with torch.no_grad():
        assert blocks_kept(2**30) == 0
