"""How operations are counted, bytes of a rollout, and what devices can move."""

from collections.abc import Sequence
from typing import Any

from svr_lightning.training.flops import layer_counts, state_elements

FORMULA = (
    "model FLOPs of a micro-batch = (3 policy + 1 reference) x forward; forward = "
    "2 x (weights of the layers' matrices) per real token + 2 x hidden x vocabulary per completion "
    "token + 2 x heads x head_dim x L^2 per sequence and layer of full attention (causal) + "
    "6 x value heads x key dim x value dim per token and layer of linear attention; padding and "
    "recomputation do not count"
)
BANDWIDTHS = {
    **dict.fromkeys(("NVIDIA H200", "NVIDIA H200 NVL"), 4.8e12),
    **dict.fromkeys(("NVIDIA H100 80GB HBM3", "NVIDIA H800"), 3.35e12),
    "NVIDIA H100 NVL": 3.9e12,
    "NVIDIA H100 PCIe": 2.0e12,
    **dict.fromkeys(("NVIDIA A100-SXM4-80GB", "NVIDIA A800-SXM4-80GB"), 2.04e12),
    **dict.fromkeys(("NVIDIA A100 80GB PCIe", "NVIDIA A800 80GB PCIe"), 1.94e12),
    "NVIDIA GeForce RTX 4090": 1.008e12,
    "NVIDIA RTX A6000": 0.768e12,
}
"""Bytes/s of device memory that NVIDIA states, by the device's whole name."""


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
    states = 2 * 4 * state_elements(config) * linear if linear else 0
    return float(per_position * sum(contexts) + states * len(contexts))
