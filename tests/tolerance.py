"""How far apart two floating-point results of the same mathematics may be.

A sum of n terms of size s, each rounded to a type with spacing eps, carries an error that behaves
like a random walk: its standard deviation is about eps / 4 * sqrt(n) * s (rounding to nearest is
off by up to eps / 2, uniformly, which is eps / (2 sqrt 3) on average). Two results that are
compared each carry one, and a test looks at the largest of some hundred differences, at four to
five standard deviations: together eps * 2 * sqrt(n) * s. Twice that is allowed, since terms of one
sum are not quite independent of each other.

Another order of summation, thread count, kernel or processor stays within it. An error of the
mathematics (a wrong position, mask, temperature or weight) is orders of magnitude larger.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def rounding(terms: float, scale: float, dtype: torch.dtype = torch.float32) -> float:
    """The difference that rounding explains.

    Args:
        terms: how many rounded numbers go into one result, one after the other.
        scale: the size of the largest of them.
        dtype: in which they are rounded.
    """
    return 4 * torch.finfo(dtype).eps * math.sqrt(terms) * scale


def terms_of(model: Any, length: int) -> int:
    """Terms in one score of a transformer: each layer sums over its widths and the sequence."""
    config = model.config.get_text_config()
    widths = config.hidden_size + config.intermediate_size + length
    return int(config.num_hidden_layers * widths + config.hidden_size)


def of_logprobs(model: Any, scores: Tensor) -> float:
    """For log-probabilities of a sequence.

    Args:
        model: computed them, in float32.
        scores: [L, V] at the sampling temperature; the softmax subtracts numbers of their size.
    """
    return rounding(terms_of(model, len(scores)), scores.abs().max().item())


def of_gradients(model: Any, length: int, tokens: int, expected: Mapping[str, Tensor]) -> float:
    """For gradients, which the backward pass rounds once more and sums over ``tokens``.

    Args:
        model: computed them, in float32.
        length: of the longest sequence.
        tokens: of all sequences.
        expected: the gradients by parameter; the largest gives the scale.
    """
    scale = max(gradient.abs().max().item() for gradient in expected.values())
    return rounding(2 * terms_of(model, length) + tokens, scale)


def assert_same_steps(
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    sizes: Mapping[str, Tensor],
    steps: float,
    relative: float,
) -> None:
    """Two policies took the same steps of AdamW, up to the rounding of their gradients.

    A step is lr times a mean of gradients over the root of a mean of squares, about 1. An error of
    the gradients changes either by its ratio to that root, and the step by no more than 2 lr.

    Args:
        found: the weights to check.
        expected: the other ones.
        sizes: of the gradients: the root of the mean square of each trained weight's.
        steps: how many, each times its learning rate.
        relative: error of a gradient, where the largest of its parameter is 1.
    """
    firm = 0
    for name, size in sizes.items():
        error = max(relative * size.max().item(), torch.finfo(torch.float32).tiny)
        step = steps * (2 * error / size.clamp(min=error)).clamp(max=2.0)
        allowed = step + rounding(3, expected[name].abs().max().item())
        assert ((found[name] - expected[name]).abs() <= allowed).all(), name
        firm += int((step < steps / 10).sum())
    assert firm > 0.5 * sum(size.numel() for size in sizes.values())  # it is strict of most


def root_mean_squares(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], steps: int
) -> dict[str, Tensor]:
    """The sizes of each weight's gradients, as AdamW has them after so many steps."""
    _, beta = optimizer.param_groups[0]["betas"]
    squares = {name: optimizer.state[p]["exp_avg_sq"] for name, p in parameters.items()}
    return {name: (square / (1 - beta**steps)).sqrt() for name, square in squares.items()}


def assert_same_first_step(found: Any, trained: Any, lr: float, length: int, tokens: int) -> None:
    """Two policies took the same first step of AdamW, up to the rounding of its gradient.

    Args:
        found: the policy to check.
        trained: the module of the other one, whose trainer still has the optimizer.
        lr: of the step.
        length: of the longest sequence.
        tokens: of all sequences.
    """
    expected = dict(trained.policy.named_parameters())
    sizes = root_mean_squares(trained.trainer.optimizers[0], expected, 1)
    relative = of_gradients(trained.policy, length, tokens, {"": torch.ones(1)})
    assert_same_steps(dict(found.named_parameters()), expected, sizes, lr, relative)
