"""A checkpoint that is not whole is refused by every command, before it writes anything."""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from svr_lightning.errors import ConfigError
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.loading import read_policy
from svr_lightning.rollout.rendering import Renderer
from tests.commands import SHIPPED, TINY, read_json, refused

DOWN = "model.layers.0.mlp.down_proj.weight"
COMMANDS = (
    ("fit", *TINY),
    ("validate", *TINY),
    ("test", *TINY),
    ("predict", *TINY, "--question", "3 5 8 = 16"),
    ("export", *TINY),
)


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "policy"))


def read(folder: Path) -> tuple[Any, Renderer]:
    return read_policy(PolicyConfig(path=str(folder)), 0)


def assert_refused(folder: Path, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(folder)


def add_token(folder: Path, token: str, template: str = "") -> None:
    """A token that the model lacks; also at the end of the chat template, if it is given."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([token])
    tokenizer.chat_template += template
    tokenizer.save_pretrained(folder)


@contextmanager
def weights_of(folder: Path) -> Iterator[dict[str, torch.Tensor]]:
    """The weights of a policy, to change."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    yield weights
    save_file(weights, file, metadata={"format": "pt"})


def rename(folder: Path, prefix: str) -> None:
    with weights_of(folder) as weights:
        for name in [*weights]:
            weights[prefix + name] = weights.pop(name)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_a_missing_weight_is_named_by_every_command_before_it_writes_anything(
    command, folder, tmp_path, capsys
):
    with weights_of(folder) as weights:
        del weights[DOWN]
    run = tmp_path / "run"
    line = refused(
        capsys, *command, "--model.policy.path", folder, "--trainer.default_root_dir", run
    )
    assert f"{str(folder)!r}: the checkpoint lacks 1 of the model's weights ({DOWN})." in line
    assert not run.exists()


def test_serve_names_a_missing_weight(folder, capsys):
    rename(folder, "_orig_mod.")
    assert "the checkpoint lacks 47 of the model's weights" in refused(
        capsys, "serve", "--task", "countdown", "--policy", folder
    )


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "student."])
def test_weights_under_other_names_are_not_drawn_at_random(prefix, folder):
    rename(folder, prefix)
    assert_refused(folder, f"lacks 47 .* others, such as {prefix}model.embed")


def test_an_output_layer_that_is_neither_tied_nor_there_is_named(folder):
    file = folder / "config.json"
    file.write_text(
        file.read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false')
    )
    assert_refused(folder, r"lacks 1 of the model's weights \(lm_head.weight\)")


def test_a_folder_without_a_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert_refused(folder, "its tokenizer has no tokens for text")


ADDED = 1200
"""The number of a token that is added to the tokenizer. The model has embeddings of 0 to 1199."""


@pytest.mark.parametrize(
    "token",
    [
        "1+1=2",  # of a completion that a second prompt quotes
        "You are a careful math",  # of a first prompt
        "Your previous solution",  # of the heading of a second prompt
    ],
)
def test_a_token_of_prompts_that_the_model_lacks_is_refused(token, folder):
    add_token(folder, token)
    assert_refused(folder, rf"has 1200 tokens: '.*' is number {ADDED}; put the")


def test_a_token_of_the_chat_template_that_the_model_lacks_is_refused(folder):
    add_token(folder, "Now:", template="Now:")
    assert_refused(folder, "'Now:' is number 1200; put the model's own")


def test_an_end_of_turns_that_the_model_lacks_is_refused(folder):
    add_token(folder, "<|end|>")
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_end|>", "<|end|>"))
    assert_refused(folder, r"'<\|end\|>' is number 1200; put the")


@pytest.mark.parametrize("role", ["eos_token", "pad_token"])
def test_an_end_or_a_padding_that_the_model_lacks_is_refused(role, folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({role: "<|new|>"})
    tokenizer.save_pretrained(folder)
    assert_refused(folder, rf"'<\|new\|>' is number {ADDED}; put the")


def test_a_token_that_only_a_question_takes_is_refused_when_the_question_is_rendered(folder):
    add_token(folder, "elephants")
    _, renderer = read(folder)
    messages = [{"role": "user", "content": "How many elephants?"}]
    with pytest.raises(ConfigError, match="'elephants' is number 1200; put the model's own"):
        renderer.prompt_ids(messages)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (DOWN, math.nan),
        ("model.embed_tokens.weight", math.inf),
        ("model.norm.weight", -math.inf),
    ],
)
def test_a_weight_that_is_not_finite_is_named(name, value, folder):
    with weights_of(folder) as weights:
        weights[name].view(-1)[-1] = value
    assert_refused(folder, f"the weight {name} holds NaN or infinite values")


def test_a_policy_that_computes_nan_gives_no_answer(folder, tmp_path, capsys):
    change(folder / "config.json", rms_norm_eps=math.nan)
    asked = (*COMMANDS[3], "--model.policy.path", folder)
    line = refused(capsys, *asked, "--trainer.default_root_dir", tmp_path / "run")
    assert line.startswith("the policy's probabilities are NaN or infinite: its config.json or")


def test_a_weight_of_another_shape_than_the_configuration_says_is_named(folder):
    with weights_of(folder) as weights:
        weights["model.norm.weight"] = torch.ones(90)
    assert_refused(folder, r"the weight model.norm.weight is \[90\], and by config.json \[96\]")


@pytest.fixture
def code(folder: Path, monkeypatch) -> Iterator[Path]:
    """Python in a policy's folder that leaves a file when it runs, and a user who says yes."""
    trace = folder / "it_ran"
    (folder / "code.py").write_text(f"open({str(trace)!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda _: "y")
    yield folder / "code.py"
    assert not trace.exists()


def change(file: Path, **settings: object) -> None:
    file.write_text(json.dumps(read_json(file) | settings))


def test_a_model_whose_code_lies_in_its_folder_is_refused(folder, code):
    classes = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}
    change(folder / "config.json", auto_map=classes, model_type="unheard_of")
    assert_refused(folder, r"code in its own folder \(auto_map\), which is never run")


def test_code_beside_a_model_that_transformers_knows_is_not_run(folder, code):
    change(folder / "config.json", auto_map={"AutoModelForCausalLM": "code.M"})
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["code.T", None]})
    read(folder)


def test_weights_that_the_model_does_not_have_are_no_fault(folder):
    """Other heads, and towers for images, come with many checkpoints."""
    with weights_of(folder) as weights:
        weights["mtp.x"] = weights[DOWN].clone()
    read(folder)


def test_a_pointer_of_git_lfs_is_no_policy(folder):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (folder / "model.safetensors").write_text(pointer)
    assert_refused(folder, r"model\.safetensors is a pointer of git-lfs")
