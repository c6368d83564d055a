"""Floating-point operations of an update, bytes of a rollout, and what devices can do."""

from collections.abc import Sequence
from typing import Any

FORMULA = (
    "model FLOPs of a micro-batch = (3 policy + 1 reference) x forward; forward = "
    "2 x (weights of the layers' matrices) per real token + 2 x hidden x vocabulary per completion "
    "token + 2 x heads x head_dim x L^2 per sequence and layer of full attention (causal) + "
    "6 x value heads x key dim x value dim per token and layer of linear attention; padding and "
    "recomputation do not count"
)
PEAKS = {"H200": 989e12, "H100": 989e12, "H800": 989e12, "A100": 312e12, "A800": 312e12}
"""Dense bf16 FLOP/s that NVIDIA states, by a part of the device's name."""
BANDWIDTHS = {"H200": 4.8e12, "H100": 3.35e12, "H800": 3.35e12, "A100": 2.0e12, "A800": 2.0e12}
"""Bytes/s of device memory that NVIDIA states (SXM boards of 80 GB, where there are several)."""


def nominal(table: dict[str, float], device_name: str) -> float | None:
    """The value of ``table`` for a device; None for an unknown one."""
    return next((value for name, value in table.items() if name in device_name), None)


def forward_flops(model: Any, lengths: Sequence[int], completions: Sequence[int]) -> float:
    """FLOPs of one forward pass that scores the completions only.

    Args:
        model: a transformers causal language model.
        lengths: tokens of each sequence, prompt and completion.
        completions: completion tokens of each sequence.
    """
    config = model.config
    head = model.get_output_embeddings().weight
    tables = (head, model.get_input_embeddings().weight)
    matrices = sum(
        p.numel() for p in model.parameters() if p.ndim == 2 and all(p is not t for t in tables)
    )
    full, linear = layer_counts(config)
    tokens, squares = sum(lengths), sum(length**2 for length in lengths)
    flops = 2.0 * matrices * tokens + 2.0 * head.numel() * sum(completions)
    flops += 2.0 * config.num_attention_heads * config.head_dim * squares * full
    if linear:
        flops += 6.0 * _state_elements(config) * tokens * linear
    return float(flops)


def layer_counts(config: Any) -> tuple[int, int]:
    """Layers of full and of linear attention."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    linear = sum(kind == "linear_attention" for kind in kinds)
    return len(kinds) - linear, linear


def decode_bytes(model: Any, contexts: Sequence[int], width: int) -> float:
    """Bytes of cache that decoding one token for each context has to move.

    Keys and values of full attention are read; the fp32 states of linear attention are read and
    written.

    Args:
        model: a transformers causal language model.
        contexts: tokens before each decoded one.
        width: bytes of a cached key or value element.
    """
    config = model.config
    full, linear = layer_counts(config)
    per_position = 2 * config.num_key_value_heads * config.head_dim * width * full
    states = 2 * 4 * _state_elements(config) * linear if linear else 0
    return float(per_position * sum(contexts) + states * len(contexts))


def _state_elements(config: Any) -> int:
    return int(
        config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim
    )
