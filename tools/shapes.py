"""The shape of the shipped runs' policy, which needs no download."""

from typing import Any

from transformers import Qwen3_5TextConfig

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


def qwen3_5(**changes: Any) -> Any:
    """The text model of Qwen3.5-2B, a hybrid of linear and full attention, with some changes."""
    return Qwen3_5TextConfig(**_QWEN3_5_2B | changes)
