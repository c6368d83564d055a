"""Which weights of a policy make up those of an engine."""

import pytest

from svr_lightning.engines.vllm_weights import check_names, is_vision, wrap
from svr_lightning.errors import ConfigError

FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
POLICY = [
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.0.self_attn.v_proj.weight",
    "model.norm.weight",
]
ENGINE = [
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.qkv_proj.weight",
    "model.norm.weight",
]


def test_fused_projections_take_their_parts_and_a_tied_output_layer_needs_none():
    assert check_names(POLICY, ENGINE, FUSED, tied=True) == {*ENGINE}
    with_head = [*ENGINE, "lm_head.weight"]
    assert check_names(POLICY, with_head, FUSED, tied=True) == {*ENGINE}
    with pytest.raises(ConfigError, match=r"no weights for its lm_head\.weight"):
        check_names(POLICY, with_head, FUSED, tied=False)


def test_text_models_and_conditional_generation_classes_take_each_others_weights():
    text, wrapped = "model.norm.weight", "language_model.model.norm.weight"
    assert check_names([text], [wrapped], {}, tied=True) == {wrapped}
    assert check_names(["model.language_model.norm.weight"], [text], {}, tied=True) == {text}
    assert (
        wrap(text)
        == wrap("model.language_model.norm.weight")
        == ("model.language_model.norm.weight")
    )
    assert wrap("lm_head.weight") == "lm_head.weight"
    assert is_vision("model.visual.blocks.0.attn.qkv.weight")


def test_a_part_that_is_missing_leaves_the_whole_without_weights():
    without_k = [name for name in POLICY if "k_proj" not in name]
    with pytest.raises(ConfigError, match=r"no weights for its .*qkv_proj\.weight"):
        check_names(without_k, ENGINE, FUSED, tied=True)


def test_what_finds_no_place_is_listed_with_a_way_out():
    extra = [f"model.layers.0.gain.{i}" for i in range(7)]
    with pytest.raises(ConfigError) as error:
        check_names([*POLICY, *extra], ENGINE, FUSED, tied=True)
    assert "model.layers.0.gain.4, and 2 more" in str(error.value)
    assert "serve this model with the transformers engine" in str(error.value)


def test_an_engine_with_a_vision_tower_is_refused():
    with pytest.raises(ConfigError, match=r"no weights for its visual\.patch\.weight"):
        check_names(POLICY, [*ENGINE, "visual.patch.weight"], FUSED, tied=True)
