"""Gradients of linear attention's kernel: the first thing to know of a new GPU.

Wrong ones pass every other test here: training goes on with them, and both engines agree.
"""

from inspect import unwrap

import pytest
import torch
from torch.nn.functional import logsigmoid
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

from tests.gpu.conftest import DEVICE
from tests.gpu.report import Figures

pytestmark = pytest.mark.gpu
SHAPES = [(2, 200, 4, 128), (1, 1500, 16, 128)] if DEVICE == "cuda" else [(1, 70, 2, 16)]
"""Sequences, tokens, heads and features of a head."""
NAMES = ("query", "key", "value", "decay", "beta")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_gradients_of_linear_attention_are_those_of_the_recurrence(figures: Figures, shape):
    generator = torch.Generator().manual_seed(0)

    def random(*sizes):
        return torch.randn(*sizes, generator=generator).to(DEVICE)

    values = [random(*shape) for _ in range(3)]
    values += [logsigmoid(random(*shape[:3]) + 3), random(*shape[:3]).sigmoid()]
    weight = random(*shape)

    def gradients(function, dtype):
        """As the model calls it: the decay stays in fp32."""
        inputs = [value.clone().requires_grad_() for value in values]
        query, key, value, decay, beta = inputs
        output, _ = function(
            query.to(dtype),
            key.to(dtype),
            value.to(dtype),
            g=decay,
            beta=beta.to(dtype),
            use_qk_l2norm_in_kernel=True,
        )
        return list(torch.autograd.grad((output.float() * weight).sum(), inputs))

    computed, bound = torch.float32, 1e-4
    # Where fla is installed, transformers has put its kernels around the torch code.
    chunked = unwrap(qwen.torch_chunk_gated_delta_rule)
    if DEVICE == "cuda":
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        # bf16 keeps eight bits of each of the products that are summed.
        computed, bound, chunked = torch.bfloat16, 2e-2, chunk_gated_delta_rule
    expected = gradients(unwrap(qwen.torch_recurrent_gated_delta_rule), torch.float32)
    for name, found, exact in zip(NAMES, gradients(chunked, computed), expected, strict=True):
        error = float((found - exact).norm() / exact.norm())
        figures(name, error, note="relative error of the gradient")
        assert error < bound, name
