"""A policy's weights as tensors: what trains, whether they are sound, and their fingerprint."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from svr_lightning.engines.vllm_weights import is_vision
from svr_lightning.errors import one_line, require


def freeze_vision(model: Any) -> None:
    """Exclude a multimodal checkpoint's vision tower and aligner from training."""
    for name, parameter in model.named_parameters():
        if is_vision(name):
            parameter.requires_grad_(False)


def require_finite(weights: Mapping[str, Tensor], place: str) -> None:
    """Refuse weights of ``place`` that are NaN or infinite: every result would be meaningless."""
    for name, weight in weights.items():
        if weight.is_floating_point() and weight.numel():
            low, high = torch.aminmax(weight)  # a NaN is both
            require(
                math.isfinite(low) and math.isfinite(high),
                f"{place}: the weight {one_line(name)} holds NaN or infinite values; the training "
                "that saved it, or a conversion, went wrong: take another checkpoint",
            )


SAMPLED = 4096
"""Elements that are read of each tensor."""


def sample_elements(tensor: Tensor) -> Tensor:
    """Some evenly spaced elements, at least :data:`SAMPLED` if there are that many.

    They distinguish policies: an optimizer step, a mix or another seed changes almost every one.
    """
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLED)]


def weights_fingerprint(state: Mapping[str, Tensor]) -> str:
    """A sha256 over names, types, shapes and some elements of every tensor of ``state``."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(
            sample_elements(tensor).contiguous().view(torch.uint8).cpu().numpy().tobytes()
        )
    return digest.hexdigest()
