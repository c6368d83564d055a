"""Models of real shapes with random weights, and sequences for them: what needs no download."""

from contextlib import nullcontext
from typing import Any

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3ForCausalLM

from tools.shapes import qwen3_5

_SMALL = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "initializer_range": 0.1,
}
_SMALL_HYBRID = _SMALL | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "rope_parameters": qwen3_5().rope_parameters | {"mrope_section": [2, 1, 1]},
}


_INTO_THE_STREAM = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
"""Matrices whose output is added to the residual stream."""
_SHARPER = 0.5
"""Added to the last norm's scale, so that the output distributions are not flat."""


def hybrid(small: bool = False, layers: int | None = None) -> Any:
    """The shipped runs' policy, or the same architecture at a size for a CPU, with its layers."""
    changes = _SMALL_HYBRID if small else {}
    return qwen3_5(**changes | ({"num_hidden_layers": layers} if layers else {}))


def random_model(config: Any, device: str) -> Any:
    """A model in fp32 with random weights, the same on every call, in eval mode.

    What each layer adds is scaled down by the root of how many there are. Without that, a deep
    random model makes far more of bf16's rounding than a trained one does.
    """
    torch.manual_seed(0)
    with torch.device(device):
        hybrid = isinstance(config, Qwen3_5TextConfig)
        model = (Qwen3_5ForCausalLM if hybrid else Qwen3ForCausalLM)(config)
    with torch.no_grad():
        model.base_model.norm.weight.add_(_SHARPER)
        for name, weight in model.named_parameters():
            if name.endswith(_INTO_THE_STREAM):
                weight.mul_((2 * config.num_hidden_layers) ** -0.5)
    return model.eval()


def precision(device: str) -> Any:
    """bf16 over fp32 masters on a GPU, as ``bf16-mixed``; plain fp32 on a CPU."""
    return torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext()
