"""Several sequences in one row: kept apart, and equal to padded rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.qwen3_5 import modeling_qwen3_5

from svr_lightning.core.losses import LossSpec
from svr_lightning.training.packing import can_pack, prepare_packing
from svr_lightning.training.update import (
    TrainBatch,
    batch_of,
    completion_logprobs,
    micro_batches,
    policy_update_loss,
)
from tests.models import MODELS, tiny_hybrid, tiny_qwen3
from tests.samples import TEMPERATURE, rollout, sample
from tests.tolerance import rounding, terms_of

# --- models ---------------------------------------------------------------------------------------


def varlen_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, **options: Any
) -> tuple[Tensor, None]:
    """What flash attention does with boundaries, worked out sequence by sequence."""
    ends, longest = options.pop("cu_seq_lens_q", None), options.pop("max_length_q", None)
    if ends is None:
        return sdpa_attention_forward(module, query, key, value, mask, **options)  # type: ignore
    sizes = ends.diff().tolist()
    assert (max(sizes), options.pop("max_length_k")) == (longest, longest)
    assert torch.equal(options.pop("cu_seq_lens_k"), ends)
    parts = zip(*(states.split(sizes, dim=2) for states in (query, key, value)), strict=True)
    return torch.cat(
        [sdpa_attention_forward(module, *part, None, **options)[0] for part in parts], dim=1
    ), None


delta_rule = modeling_qwen3_5.torch_chunk_gated_delta_rule
convolution = modeling_qwen3_5.causal_conv1d_fn


def varlen_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Any = None, **options: Any
) -> Any:
    """What flash-linear-attention does with boundaries."""
    if cu_seqlens is None:
        return delta_rule(query, key, value, **options)
    sizes = cu_seqlens.diff().tolist()
    gates = [options.pop(name).split(sizes, dim=1) for name in ("g", "beta")]
    parts = zip(*(t.split(sizes, dim=1) for t in (query, key, value)), *gates, strict=True)
    found = [delta_rule(q, k, v, g=g, beta=b, **options)[0] for q, k, v, g, b in parts]
    return torch.cat(found, dim=1), None


def varlen_convolution(
    hidden_states: Tensor, weight: Tensor, bias: Any, seq_idx: Any = None, **options: Any
) -> Tensor:
    """What causal-conv1d does with the sequence of each token."""
    if seq_idx is None:
        return convolution(hidden_states, weight, bias, **options)
    parts = hidden_states.split(seq_idx[0].bincount().tolist(), dim=2)
    return torch.cat([convolution(part, weight, bias, **options) for part in parts], dim=2)


@pytest.fixture
def with_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear attention by functions that keep sequences apart, as on a GPU."""
    monkeypatch.setattr(modeling_qwen3_5, "torch_chunk_gated_delta_rule", varlen_delta_rule)
    monkeypatch.setattr(modeling_qwen3_5, "causal_conv1d_fn", varlen_convolution)


def flash(make: Callable[..., Any]) -> Any:
    model = make()
    model.config._attn_implementation = "flash_attention_2"
    return model


def prepared(make: Callable[..., Any], **changes: Any) -> Any:
    model = make(**changes)
    prepare_packing(model)
    return model


@pytest.fixture(params=["qwen3", "hybrid", "qwen3, flash", "hybrid, flash"])
def model(
    request: pytest.FixtureRequest, with_boundaries: None, monkeypatch: pytest.MonkeyPatch
) -> Any:
    name, _, attention = request.param.partition(", ")
    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", varlen_attention)
    return flash(MODELS[name]) if attention else prepared(MODELS[name])


# --- equal to padded rows -----------------------------------------------------------------------


def gradients(model: Any, batches: list[TrainBatch]) -> dict[str, Tensor]:
    model.zero_grad()
    for batch in batches:
        update = policy_update_loss(model, model, batch, LossSpec(), temperature=TEMPERATURE)
        (update.loss / len(batches)).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_log_probabilities_in_a_packed_row_are_those_of_padded_ones(model: Any) -> None:
    padded, packed = (batch_of(rollout(), 1.0, packed=p) for p in (False, True))
    assert packed.input_ids.shape == (1, sum(padded.lengths))
    assert packed.packed
    with torch.no_grad():
        found, expected = (completion_logprobs(model, b, TEMPERATURE) for b in (packed, padded))
    allowed = rounding(terms_of(model, max(padded.lengths)), expected.abs().max().item())
    torch.testing.assert_close(found, expected, atol=allowed, rtol=0)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_of_packed_rows_are_those_of_padded_ones(model: Any, checkpointing: bool) -> None:
    if checkpointing:  # which runs each layer again, later, and has to know the boundaries then
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    padded, packed = (
        gradients(model, micro_batches(rollout(32), accumulate=4, updates=1, version=0, packed=p))
        for p in (False, True)
    )
    for name, expected in padded.items():
        assert (packed[name] - expected).norm() <= 1e-5 * expected.norm(), name


def test_no_sequence_of_a_row_knows_another_one(model: Any) -> None:
    first, second, other = sample(), sample((9, 4), (3, 2)), sample((1, 30, 2), (7, 7, 7, 8))
    with torch.no_grad():
        alone, after = (
            completion_logprobs(model, batch_of([one, second], 1.0, packed=True), TEMPERATURE)
            for one in (first, other)
        )
    torch.testing.assert_close(alone[1, :2], after[1, :2], atol=1e-6, rtol=0)


def test_micro_batches_are_cut_by_what_goes_through_the_model() -> None:
    def sizes(packed: bool) -> list[list[int]]:
        samples = [sample((1,) * n) for n in (2, 2, 2, 10, 10)]
        found = micro_batches(samples, accumulate=2, updates=1, version=0, packed=packed)
        return [list(batch.input_ids.shape) for batch in found]

    assert sizes(packed=False) == [[3, 4], [2, 12]]
    assert sizes(packed=True) == [[1, 24], [1, 12]]


# --- which models ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_padded_rows_need_no_mask(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    masks = []

    def noting(*args: Any, **options: Any) -> Any:
        masks.append(args[4])
        return sdpa_attention_forward(*args, **options)

    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", noting)
    completion_logprobs(MODELS[name](), batch_of(rollout(), 1.0), TEMPERATURE)
    assert masks
    assert set(masks) == {None}


def test_plain_attention_packs_and_loops_of_linear_attention_do_not() -> None:
    assert can_pack(prepared(tiny_qwen3))
    assert not can_pack(prepared(tiny_hybrid))


def test_functions_that_take_boundaries_pack(with_boundaries: None) -> None:
    assert can_pack(prepared(tiny_hybrid))


def test_both_functions_have_to_take_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_qwen3_5, "torch_chunk_gated_delta_rule", varlen_delta_rule)
    assert not can_pack(prepared(tiny_hybrid))


def test_eager_attention_sliding_windows_and_unknown_architectures_do_not_pack() -> None:
    assert not can_pack(prepared(tiny_qwen3, attn_implementation="eager"))
    layers = ["full_attention", "sliding_attention"]
    sliding = {"use_sliding_window": True, "sliding_window": 4, "layer_types": layers}
    assert not can_pack(prepared(tiny_qwen3, **sliding))
    unknown = tiny_qwen3()
    unknown.config.model_type = "made_up"
    prepare_packing(unknown)
    assert unknown.config._attn_implementation == "sdpa"
    assert not can_pack(unknown)


def test_a_packed_row_is_refused_where_its_sequences_would_mix() -> None:
    packed = batch_of(rollout(), 1.0, packed=True)
    with pytest.raises(ValueError, match="cannot keep packed sequences apart; pad them"):
        completion_logprobs(tiny_hybrid(), packed, TEMPERATURE)
