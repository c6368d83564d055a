"""Adapters: what they compute, what is saved, served and exported of them, and the reference."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

pytest.importorskip("peft")

from peft import PeftModel
from transformers import AutoModelForCausalLM

from svr_lightning.callbacks import HFExport
from svr_lightning.engines.acting_weights import base_of
from svr_lightning.errors import ConfigError
from svr_lightning.policy import lora
from svr_lightning.policy.config import LoRAConfig, PolicyConfig
from svr_lightning.policy.policy import Policy, exported_weights
from svr_lightning.training.config import ReferenceConfig
from svr_lightning.training.distributed import SVRDeepSpeedStrategy
from svr_lightning.training.module import SVRModule
from svr_lightning.training.optimizer import make_reference
from tests import small_fit
from tests.forked import free_port
from tests.models import MODELS, with_adapter
from tests.tolerance import of_logprobs

LORA = LoRAConfig(r=2, alpha=6)
IDS = torch.arange(24).reshape(2, 12)


@pytest.mark.parametrize("kind", MODELS)
def test_it_begins_as_the_base_model_and_acts_as_its_merged_weights(kind):
    base = MODELS[kind]()
    scores = base(IDS).logits
    new = MODELS[kind]()
    lora.attach(new, LoRAConfig(r=4, alpha=8), seed=1, base="tiny")
    assert torch.equal(new(IDS).logits, scores)
    adapted = with_adapter(base)
    merged = MODELS[kind](seed=9)
    merged.load_state_dict(exported_weights(adapted))
    found = adapted(IDS).logits
    allowed = of_logprobs(merged, found[0])
    assert (found - merged(IDS).logits).abs().max() < allowed
    assert (found - scores).abs().max() > 100 * allowed
    layer = adapted.model.layers[0].mlp.up_proj
    product = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    expected = layer.base_layer.weight + 8 / 4 * product
    assert torch.equal(merged.model.layers[0].mlp.up_proj.weight, expected)


def test_every_projection_of_a_hybrid_gets_one_and_nothing_else_does():
    model = with_adapter(MODELS["hybrid"]())
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    adapted = {name.split(".lora_")[0].split(".")[-1] for name in trained}
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    linear_attention = {"in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"}
    assert adapted == attention | linear_attention | {"gate_proj", "up_proj", "down_proj"}
    model(IDS).logits.logsumexp(-1).sum().backward()
    # All of them act: none is passed over by a kernel that reads a weight itself.
    assert all(p.grad is not None and p.grad.any() for p in model.parameters() if p.requires_grad)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def hidden(model: Any) -> torch.Tensor:
    return model.base_model(input_ids=IDS).last_hidden_state


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_the_reference_is_the_base_model_and_leaves_the_policy_as_it_was(kind):
    base = MODELS[kind]()
    policy = with_adapter(base)
    of_policy = hidden(policy)
    reference = make_reference(policy, ReferenceConfig(every=0))
    assert torch.equal(hidden(reference), hidden(base))
    assert torch.equal(hidden(policy), of_policy)
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * sum(".base_layer." in n for n, _ in policy.named_parameters())


def train(folder: Path, *callbacks: Callback, resume: str | None = None, **policy: Any) -> Any:
    """Four steps of the embedded policy, with a checkpoint of each; returns module and trainer."""
    settings = small_fit.policy(**{"lora": LORA} | policy)
    model = small_fit.module(policy=settings, reference=ReferenceConfig(every=0))
    trainer = small_fit.trainer(folder, small_fit.saver(), *callbacks, max_steps=4, max_epochs=-1)
    trainer.fit(model, small_fit.data(), ckpt_path=resume)
    return model, trainer


def last(folder: Path) -> Any:
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, SVRModule]:
    """A run of four steps."""
    folder = tmp_path_factory.mktemp("lora")
    model, _ = train(folder, HFExport())
    return folder, model


def test_only_adapters_train_and_are_saved(trained):
    folder, model = trained
    base = Policy.load(PolicyConfig()).model
    before = base.state_dict()
    for name, value in base_of(model.policy.state_dict()).items():
        assert torch.equal(value, before[name.replace(".base_layer.", ".")])
    saved = last(folder)
    assert all(".lora_A." in name or ".lora_B." in name for name in saved["state_dict"])
    layers = [m for m in base.modules() if isinstance(m, torch.nn.Linear)][:-1]
    numbers = LORA.r * sum(layer.in_features + layer.out_features for layer in layers)
    assert sum(value.numel() for value in saved["state_dict"].values()) == numbers


def test_merged_policy_and_adapter_are_exported(trained):
    folder, model = trained
    merged = AutoModelForCausalLM.from_pretrained(folder / "policy")
    base = Policy.load(PolicyConfig()).model
    with torch.no_grad():
        expected = model.policy(IDS).logits
        plain = base(IDS).logits
        by_peft = PeftModel.from_pretrained(base, folder / "adapter")(IDS).logits
        assert torch.equal(by_peft, expected)
        allowed = of_logprobs(merged, expected[0])
        assert (merged(IDS).logits - expected).abs().max() < allowed
        assert (plain - expected).abs().max() > 10 * allowed


def test_a_checkpoint_is_evaluated_without_its_reference(trained):
    folder, model = trained
    again = small_fit.module(policy=small_fit.policy(lora=LORA))
    trainer = small_fit.trainer(folder / "validated", limit_val_batches=1)
    checkpoint = str(folder / "checkpoints" / "last.ckpt")
    trainer.validate(again, small_fit.data(), ckpt_path=checkpoint, verbose=False)
    with torch.no_grad():
        assert torch.equal(again.policy(IDS).logits, model.policy(IDS).logits)
    assert not any("reference" in name.split(".") for name in again.state_dict())


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["lm_head"], "an adapter on lm_head would have no effect"),
        (["embed_tokens"], "an adapter on model.embed_tokens would have no effect"),
        (["conv1d"], "peft refuses them .Targeting a Conv1d"),
        (["q_porj"], "peft refuses them .Target modules {'q_porj'} not found"),
        ("q_proj)", "peft refuses them .unbalanced parenthesis"),
    ],
)
def test_adapters_that_would_not_act_are_refused(targets, message):
    config = PolicyConfig(path="random:qwen3_5", lora=LoRAConfig(target_modules=targets))
    with pytest.raises(ConfigError, match=message):
        Policy.load(config, seed=1)


def test_a_checkpoint_of_another_base_model_or_alpha_is_refused(trained):
    folder, path = trained[0], str(trained[0] / "checkpoints" / "last.ckpt")
    with pytest.raises(ConfigError, match="a base model with other weights"):
        train(folder / "other", resume=path, path=str(folder / "policy"))  # of the same shapes
    with pytest.raises(ConfigError, match=r"'alpha': 12.*but the.*'alpha': 6"):
        train(folder / "other", resume=path, lora=LoRAConfig(r=2, alpha=12))


def test_an_adapter_alone_is_no_policy(trained):
    with pytest.raises(ConfigError, match="an adapter without its base model"):
        Policy.load(PolicyConfig(path=str(trained[0] / "adapter")))


def test_deepspeed_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    trainer = small_fit.trainer(tmp_path, strategy=SVRDeepSpeedStrategy())
    model = small_fit.module(policy=small_fit.policy(lora=LORA), reference=ReferenceConfig(every=0))
    with pytest.raises(ConfigError, match="leaves DeepSpeed next to nothing to shard"):
        trainer.fit(model, small_fit.data())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ReferenceConfig(every=0, dtype="bfloat16"), "the reference has no weights of its own"),
        (ReferenceConfig(every=2), "the reference is the base model; set model.reference.every=0"),
    ],
)
def test_a_reference_with_weights_of_its_own_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        make_reference(with_adapter(MODELS["qwen3"]()), config)
