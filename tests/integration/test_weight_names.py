"""Which weight of a policy goes where in an engine."""

import pytest

from svr_lightning.engines.vllm_weights import Route, routes
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


def test_fused_projections_take_their_parts() -> None:
    found = routes(POLICY, ENGINE, FUSED, tied=True)
    assert [(way.policy, way.engine) for way in found] == [
        (POLICY[0], ENGINE[0]),
        (POLICY[1], ENGINE[1]),
        (POLICY[2], ENGINE[1]),
        (POLICY[3], ENGINE[1]),
        (POLICY[4], ENGINE[2]),
    ]
    assert [way.checkpoint for way in found] == POLICY


def test_the_output_layer_of_tied_embeddings_needs_no_weight() -> None:
    with_head = [*ENGINE, "lm_head.weight"]
    assert routes(POLICY, with_head, FUSED, tied=True) == routes(POLICY, ENGINE, FUSED, tied=True)
    with pytest.raises(ConfigError, match=r"no weights for its lm_head\.weight"):
        routes(POLICY, with_head, FUSED, tied=False)


def test_a_text_model_goes_into_the_decoder_of_a_conditional_generation_class() -> None:
    engine = ["language_model.model.norm.weight", "language_model.lm_head.weight"]
    assert routes(["model.norm.weight", "lm_head.weight"], engine, {}, tied=False) == [
        Route("model.norm.weight", "model.language_model.norm.weight", engine[0]),
        Route("lm_head.weight", "lm_head.weight", engine[1]),
    ]


def test_a_conditional_generation_policy_goes_into_either_class_without_its_vision_tower() -> None:
    policy = ["model.visual.blocks.0.attn.qkv.weight", "model.language_model.norm.weight"]
    (text,) = routes(policy, ["model.norm.weight"], {}, tied=True)
    assert text == Route(policy[1], "model.norm.weight", "model.norm.weight")
    (wrapped,) = routes(policy, ["language_model.model.norm.weight"], {}, tied=True)
    assert wrapped.checkpoint == "model.language_model.norm.weight"


def test_a_part_that_is_missing_leaves_the_whole_without_weights() -> None:
    without_k = [name for name in POLICY if "k_proj" not in name]
    with pytest.raises(ConfigError, match=r"no weights for its .*qkv_proj\.weight"):
        routes(without_k, ENGINE, FUSED, tied=True)


def test_what_finds_no_place_is_listed_with_a_way_out() -> None:
    extra = [f"model.layers.0.gain.{i}" for i in range(7)]
    with pytest.raises(ConfigError) as error:
        routes([*POLICY, *extra], ENGINE, FUSED, tied=True)
    assert "model.layers.0.gain.4 and 2 more" in str(error.value)
    assert "serve this model with the transformers engine" in str(error.value)


def test_an_engine_that_keeps_the_vision_tower_is_told_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match=r"no weights for its visual\.patch\.weight"):
        routes(POLICY, [*ENGINE, "visual.patch.weight"], FUSED, tied=True)
