"""AdamW's groups and schedule, the reference that follows the policy, the gradient's norm."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, GraniteConfig, GraniteForCausalLM

from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.errors import ConfigError
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.logprobs import completion_logprobs
from svr_lightning.policy.policy import Policy, stop_token_ids
from svr_lightning.policy.weights import freeze_vision
from svr_lightning.training.config import OptimizerConfig, ReferenceConfig
from svr_lightning.training.optimizer import (
    clip_and_step,
    make_optimizer,
    make_reference,
    mix_reference,
    set_scheduled_rates,
)
from svr_lightning.training.update import batch_of
from tests.commands import SHIPPED
from tests.models import MODELS, tiny_hybrid, tiny_qwen3
from tests.samples import rollout
from tests.small_fit import same
from tests.tolerance import rounding


def names_by_decay(model: nn.Module) -> dict[float, list[str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        group["weight_decay"]: [names[id(parameter)] for parameter in group["params"]]
        for group in made(model=model)[0].param_groups
    }


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_trained_once_and_norms_and_biases_do_not_decay(name):
    model = MODELS[name]()
    groups = names_by_decay(model)
    assert sorted(groups[0.1] + groups[0.0]) == sorted(dict(model.named_parameters()))
    assert all("norm" in n or n.endswith(("A_log", "dt_bias")) for n in groups[0.0])
    assert not any("norm" in n or "bias" in n for n in groups[0.1])
    assert "model.embed_tokens.weight" in groups[0.1]


def test_what_is_frozen_is_not_trained():
    model = nn.ModuleDict(
        {"visual": nn.Linear(2, 2), "aligner": nn.Linear(2, 2), "language_model": nn.Linear(2, 2)}
    )
    freeze_vision(model)
    assert names_by_decay(model) == {0.1: ["language_model.weight"], 0.0: ["language_model.bias"]}


def made(total: int = 40, model: nn.Module | None = None) -> tuple[Any, Any]:
    config = OptimizerConfig(lr=2e-4, weight_decay=0.1, betas=(0.9, 0.95))
    parts = make_optimizer(model or tiny_qwen3(), config, total)
    assert parts["lr_scheduler"]["interval"] == "step"
    return parts["optimizer"], parts["lr_scheduler"]["scheduler"]


def test_the_first_step_of_adamw_by_hand():
    # At the floor of the schedule lr is 0.05 * 2e-4 = 1e-5. A first step moves by lr against the
    # gradient's sign, and decay takes 0.1 lr of a matrix: 2 (1 - 1e-6) - 1e-5.
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 2.0)
    nn.init.constant_(model.bias, 2.0)
    optimizer, _ = made(model=model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.3)
    optimizer.step()
    spacing = torch.finfo(torch.float32).eps  # of numbers between 1 and 2: two are subtracted
    assert model.weight.item() == pytest.approx(2.0 - 2e-6 - 1e-5, abs=2 * spacing, rel=0)
    assert model.bias.item() == pytest.approx(2.0 - 1e-5, abs=2 * spacing, rel=0)
    assert all(group["betas"] == (0.9, 0.95) for group in optimizer.param_groups)


def test_a_resumed_run_takes_the_rates_of_its_own_schedule_and_not_of_a_shorter_ones():
    shorter, schedule = made(total=20)
    for _ in range(20):
        shorter.step()
        schedule.step()
    assert shorter.param_groups[0]["lr"] == pytest.approx(0.05 * 2e-4)
    longer, resumed = made()
    longer.load_state_dict(shorter.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    set_scheduled_rates(resumed)
    # Step 20 of 40 lies between the warm-up's end at 2 and the decay's beginning at 32.
    assert [group["lr"] for group in longer.param_groups] == [2e-4, 2e-4]


def test_gradients_are_scaled_together_to_their_largest_norm():
    model = nn.Linear(2, 1)
    optimizer, _ = made(model=model)
    model.weight.grad = torch.tensor([[3.0, 0.0]])
    model.bias.grad = torch.tensor([-4.0])
    for limit in (None, 6.0, 2.0):
        assert clip_and_step(None, optimizer, limit, [].append) == 5.0
    factor = 2.0 / (5 + 1e-6)  # torch adds this to the norm
    assert model.bias.grad.item() == pytest.approx(-4 * factor, abs=rounding(3, 2.0), rel=0)
    assert model.weight.grad.norm().item() == pytest.approx(3 * factor, abs=rounding(3, 2.0), rel=0)


def weight(value: list[float], dtype: torch.dtype = torch.float32) -> nn.Module:
    module = nn.Module()
    module.weight = nn.Parameter(torch.tensor(value, dtype=dtype))
    return module


def test_the_reference_moves_six_tenths_of_the_way_to_the_policy():
    # 0.4 * 1 + 0.6 * 2 = 1.6 and 0.4 * (-5) + 0.6 * 5 = 1.
    reference, policy = weight([1.0, -5.0]), weight([2.0, 5.0])
    mix_reference(reference, policy, 0.6)
    torch.testing.assert_close(reference.weight.data, torch.tensor([1.6, 1.0]))
    assert policy.weight.tolist() == [2.0, 5.0]


def test_a_bf16_mix_is_rounded_once_and_not_at_every_product():
    generator = torch.Generator().manual_seed(0)
    old, new = (torch.randn(4096, generator=generator).bfloat16() for _ in range(2))
    reference, policy = weight(old.tolist(), torch.bfloat16), weight(new.tolist(), torch.bfloat16)
    mix_reference(reference, policy, 0.6)
    exact = 0.4 * old.double() + 0.6 * new.double()
    # Half a unit in the last of 8 bits, and fp32's own rounding where the two nearly cancel.
    allowed = rounding(2, old.abs().max().item())
    assert reference.weight.dtype == torch.bfloat16
    torch.testing.assert_close(reference.weight.double(), exact, rtol=2.0**-8, atol=allowed)


@pytest.mark.parametrize("make", [tiny_qwen3, tiny_hybrid])
def test_a_reference_in_bf16_has_the_policys_weights_rounded_and_its_buffers_as_they_are(make):
    policy = make()
    reference = make_reference(policy, ReferenceConfig(dtype="bfloat16"))
    for rounded, weight in zip(reference.parameters(), policy.parameters(), strict=True):
        assert torch.equal(rounded, weight.bfloat16())
        assert (rounded.requires_grad, weight.dtype) == (False, torch.float32)
    assert {buffer.dtype for buffer in reference.buffers()} == {torch.float32}
    assert reference.get_output_embeddings().weight is reference.get_input_embeddings().weight
    batch = batch_of(rollout())
    with torch.no_grad():
        scores = make()(input_ids=batch.input_ids).logits.abs().max().item()
        gap = completion_logprobs(reference, batch, 1.0) - completion_logprobs(policy, batch, 1.0)
    # A random walk of bf16's rounding through the layers: four weighted sums in each.
    assert 0 < gap.abs().max() < rounding(4 * len(policy.base_model.layers), scores, torch.bfloat16)


@pytest.mark.parametrize("path", ["embedded:countdown-tiny", "random:qwen3_5"])
def test_a_policy_has_fp32_weights_and_the_same_ones_for_the_same_seed(path):
    config = PolicyConfig(path=path, max_prompt_tokens=100, max_model_len=200)
    global_state = torch.random.get_rng_state()
    policy = Policy.load(config, seed=3)
    model, tokenizer = policy.model, policy.renderer.tokenizer
    again = Policy.load(config, seed=3).model
    assert torch.equal(torch.random.get_rng_state(), global_state)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert same(model.parameters(), again.parameters())
    assert stop_token_ids(model, tokenizer) == (tokenizer.eos_token_id,)


def test_an_engine_is_told_every_token_that_is_said_to_end_a_turn():
    policy = Policy.load(PolicyConfig())
    model, tokenizer = policy.model, policy.renderer.tokenizer
    model.generation_config.eos_token_id = [7, 9]
    tokenizer.eos_token = "<|pad|>"
    ids = {7, 9, tokenizer.pad_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")}
    engine = TransformersEngine()
    policy.start(engine)
    assert engine._stop_ids == ids


def test_an_architecture_that_reshapes_its_scores_is_refused(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    tokenizer.save_pretrained(tmp_path)
    config = GraniteConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        logits_scaling=8.0,
        max_position_embeddings=8192,
    )
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"after the output layer \(logits_scaling=8.0\)"):
        Policy.load(PolicyConfig(path=str(tmp_path)))


def test_a_context_that_the_checkpoint_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="max_model_len=9000 exceeds the 8192 positions"):
        Policy.load(PolicyConfig(max_model_len=9000))


def test_dropout_is_refused_where_layers_are_computed_twice_in_training_mode(tmp_path):
    policy = Policy.load(PolicyConfig())
    policy.model.config.attention_dropout = 0.1
    policy.model.save_pretrained(tmp_path)
    policy.renderer.tokenizer.save_pretrained(tmp_path)
    assert not Policy.load(PolicyConfig(path=str(tmp_path))).model.training
    with pytest.raises(ConfigError, match=r"attention_dropout=0.1, .* set it to 0"):
        Policy.load(PolicyConfig(path=str(tmp_path), gradient_checkpointing=True))
