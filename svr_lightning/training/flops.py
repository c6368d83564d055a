"""Floating-point operations of an update, and what share of a GPU's peak it reaches."""

from collections.abc import Sequence
from typing import Any

import torch

PEAKS = {
    **dict.fromkeys(("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H800"), 989e12),
    **dict.fromkeys(("NVIDIA H100 NVL", "NVIDIA H200 NVL"), 835e12),
    "NVIDIA H100 PCIe": 756e12,
    **dict.fromkeys(
        (
            *("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A800-SXM4-80GB"),
            *("NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe", "NVIDIA A800 80GB PCIe"),
        ),
        312e12,
    ),
    "NVIDIA L40S": 362e12,
    "NVIDIA GeForce RTX 4090": 165e12,
    "NVIDIA RTX A6000": 155e12,
}
"""Dense bf16 FLOP/s that NVIDIA states, by the device's whole name: boards of one chip differ."""


def peak_flops(device: torch.device) -> float | None:
    """Dense bf16 FLOP/s of a GPU; None for any that is not in :data:`PEAKS`, and for a CPU."""
    return PEAKS.get(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def utilization(flops: float, seconds: float, peak: float) -> float:
    """MFU: the model's operations over those that the GPU could have done, in [0, 1].

    Examples:
        >>> utilization(1.4e15, 10.0, 312e12)  # 1.4 PFLOP in ten seconds on an A800
        0.44871794871794873
    """
    return flops / (seconds * peak)


def update_flops(
    model: Any, lengths: Sequence[int], completions: Sequence[int], *, reference: bool
) -> float:
    """FLOPs of forward and backward passes of the policy, and the reference's forward pass.

    A backward pass counts as two forward passes. Padding, and what gradient checkpointing
    computes again, do not count. The other arguments are those of :func:`forward_flops`.
    """
    return (3 + reference) * forward_flops(model, lengths, completions)


def batch_flops(policy: Any, batch: Any, *, reference: bool) -> float:
    """Those of a ``TrainBatch``; 0 for one without weight, and where no peak is known."""
    if not batch.weight or peak_flops(batch.mask.device) is None:
        return 0.0
    return update_flops(policy, batch.lengths, [int(batch.mask.sum())], reference=reference)


def forward_flops(model: Any, lengths: Sequence[int], completions: Sequence[int]) -> float:
    """FLOPs of one forward pass that scores the completions only.

    Each weight of a layer's matrices costs 2 per token; the output layer's 2 per scored token;
    scores and values of causal full attention 2 x heads x width x L^2 per sequence and layer; the
    recurrent state of linear attention 6 per element, token and layer.

    Args:
        model: a transformers causal language model.
        lengths: tokens of each sequence, prompt and completion.
        completions: scored tokens of each sequence.
    """
    config = model.config.get_text_config()
    head = model.get_output_embeddings().weight
    tables = (head, model.get_input_embeddings().weight)
    matrices = sum(
        p.numel() for p in model.parameters() if p.ndim == 2 and all(p is not t for t in tables)
    )
    full, linear = layer_counts(config)
    tokens, squares = sum(lengths), sum(length**2 for length in lengths)
    flops = 2.0 * matrices * tokens + 2.0 * head.numel() * sum(completions)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    flops += 2.0 * config.num_attention_heads * width * squares * full
    if linear:
        flops += 6.0 * state_elements(config) * tokens * linear
    return float(flops)


def layer_counts(config: Any) -> tuple[int, int]:
    """Layers of full and of linear attention."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    linear = sum(kind == "linear_attention" for kind in kinds)
    return len(kinds) - linear, linear


def state_elements(config: Any) -> int:
    """Numbers in the recurrent state of one layer of linear attention, for one sequence."""
    return int(
        config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim
    )
