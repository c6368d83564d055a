"""Several sequences in one row, if a model's layers can separate them.

A row that holds all sequences of a micro-batch needs no padding. Each layer must then know where
one sequence ends:

- attention: ``flash_attention_*`` by the boundaries; ``sdpa`` is called once per sequence, causal
  and without a mask, which is the fast kernel on every device;
- linear attention and its convolution: only by functions that take boundaries, as those of
  flash-linear-attention and causal-conv1d do. The loops in torch do not.

Where a layer cannot, rows are padded on the right. No mask is needed there either: causal layers
never look to the right of a token, and the loss leaves padding out.
"""

import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils.generic import is_flash_attention_requested

from svr_lightning.training.internals import attention_of
from svr_lightning.training.kernels import CONVOLUTION, LINEAR_ATTENTION, called

PACKING_MODELS = ("qwen3", "qwen3_5_text")
"""Architectures that hand boundaries on to every layer, as their source says."""
_BY_SEQUENCE = "sdpa_by_sequence"
_KINDS = ("full_attention", "linear_attention")
"""Layers that need no mask; sliding windows do."""
_BOUNDARIES = {LINEAR_ATTENTION: "cu_seqlens", CONVOLUTION: "seq_idx"}
"""The parameter that tells each function of linear attention where sequences end."""


def _attention_by_sequence(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sequence_lengths: Sequence[int] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Transformers' ``sdpa`` over [1, heads, L, width] for each sequence of a packed row."""
    sdpa: Any = sdpa_attention_forward
    if sequence_lengths is None:
        return sdpa(module, query, key, value, attention_mask, **options)[0], None
    states = (query, key, value)
    parts = zip(*(torch.split(s, list(sequence_lengths), dim=2) for s in states), strict=True)
    return torch.cat([sdpa(module, *part, None, **options)[0] for part in parts], dim=1), None


AttentionInterface.register(_BY_SEQUENCE, _attention_by_sequence)
AttentionMaskInterface.register(_BY_SEQUENCE, sdpa_mask)


def prepare_packing(model: Any) -> None:
    """Let a model with ``sdpa`` take packed rows; other rows are computed as before."""
    if model.config.model_type in PACKING_MODELS and attention_of(model) == "sdpa":
        model.set_attn_implementation(_BY_SEQUENCE)


def can_pack(model: Any) -> bool:
    """Whether every layer of ``model`` separates the sequences of a packed row."""
    linear = "linear_attention" in (getattr(model.config, "layer_types", None) or ())
    return _attention_can_pack(model) and (not linear or _linear_attention_can_pack(model))


def no_mask(model: Any) -> dict[str, Any]:
    """Arguments that tell ``model`` that its rows need no mask, if it supports them.

    Otherwise transformers derives it from the positions, which waits for the GPU.
    """
    return {"attention_mask": dict.fromkeys(_KINDS)} if _attention_can_pack(model) else {}


def boundaries(model: Any, lengths: Sequence[int], device: torch.device) -> dict[str, Any]:
    """Arguments of ``model`` for a row with sequences of these ``lengths``.

    Raises:
        ValueError: if a layer of the model would mix them.
    """
    if not can_pack(model):
        raise ValueError("this model cannot keep packed sequences apart; pad them instead")
    ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    sizes = torch.tensor(lengths, device=device)
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])
    found = no_mask(model) | {
        "position_ids": positions.unsqueeze(0),
        "cu_seq_lens_q": ends,
        "seq_idx": torch.arange(len(lengths), dtype=torch.int32, device=device)
        .repeat_interleave(sizes, output_size=sum(lengths))
        .unsqueeze(0),
    }
    if _is_flash(model):
        longest = max(lengths)
        return found | {"cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
    return found | {"sequence_lengths": list(lengths)}


def _attention_can_pack(model: Any) -> bool:
    config = model.config
    return (
        config.model_type in PACKING_MODELS
        and (attention_of(model) == _BY_SEQUENCE or _is_flash(model))
        and set(getattr(config, "layer_types", None) or ()) <= set(_KINDS)
    )


def _is_flash(model: Any) -> bool:
    return bool(is_flash_attention_requested(model.config))


def _linear_attention_can_pack(model: Any) -> bool:
    """Whether the functions that its linear attention calls take boundaries."""
    functions = {called(model, name): boundary for name, boundary in _BOUNDARIES.items()}
    return all(
        function is not None and boundary in inspect.signature(function).parameters
        for function, boundary in functions.items()
    )
