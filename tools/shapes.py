"""Models of real shapes with random weights: what needs no download."""

from typing import Any

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

# The text_config of https://huggingface.co/Qwen/Qwen3.5-2B/blob/main/config.json, as public ports
# of that model quote it; 1.88e9 parameters.
_QWEN3_5_2B: dict[str, Any] = {
    "vocab_size": 248_320,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,  # every fourth one of full attention
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
_SMALL: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "initializer_range": 0.1,
}
_SMALL_HYBRID: dict[str, Any] = _SMALL | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "rope_parameters": _QWEN3_5_2B["rope_parameters"] | {"mrope_section": [2, 1, 1]},
}
_QWEN3_1_7B: dict[str, Any] = {
    "vocab_size": _QWEN3_5_2B["vocab_size"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32_768,
}
_INTO_THE_STREAM = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
"""Matrices whose output is added to the residual stream."""
_SHARPER = 0.5
"""Added to the last norm's scale, so that the output distributions are not flat."""


def qwen3_5(small: bool = False, layers: int | None = None) -> Any:
    """The text model of Qwen3.5-2B, a hybrid of linear and full attention.

    Args:
        small: the same architecture at a size for a CPU.
        layers: keep only the first so many.
    """
    dims = _QWEN3_5_2B | (_SMALL_HYBRID if small else {})
    return Qwen3_5TextConfig(**dims | ({"num_hidden_layers": layers} if layers else {}))


def dense(small: bool = False) -> Any:
    """Qwen3-1.7B with Qwen3.5's vocabulary: about the size of :func:`qwen3_5`."""
    return Qwen3Config(**(_SMALL if small else _QWEN3_1_7B), tie_word_embeddings=True)


def random_model(config: Any, device: str) -> Any:
    """A model in fp32 with random weights, the same on every call, in eval mode.

    What each layer adds is scaled down by the root of how many there are. Without that, a deep
    random model makes far more of bf16's rounding than a trained one does.
    """
    torch.manual_seed(0)
    with torch.device(device):
        hybrid = isinstance(config, Qwen3_5TextConfig)
        model: Any = (Qwen3_5ForCausalLM if hybrid else Qwen3ForCausalLM)(config)
    with torch.no_grad():
        model.base_model.norm.weight.add_(_SHARPER)
        for name, weight in model.named_parameters():
            if name.endswith(_INTO_THE_STREAM):
                weight.mul_((2 * config.num_hidden_layers) ** -0.5)
    return model.eval()
