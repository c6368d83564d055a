"""A checkpoint that is not whole is refused by every command, before it writes anything."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from svr_lightning.errors import ConfigError
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.loading import read_policy
from tests.commands import SHIPPED, TINY, refused

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


def rename(folder: Path, prefix: str) -> None:
    file = folder / "model.safetensors"
    renamed = {prefix + name: weight for name, weight in load_file(file).items()}
    save_file(renamed, file, metadata={"format": "pt"})


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_a_missing_weight_is_named_by_every_command_before_it_writes_anything(
    command, folder, tmp_path, capsys
):
    file = folder / "model.safetensors"
    weights = load_file(file)
    del weights[DOWN]
    save_file(weights, file, metadata={"format": "pt"})
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
    with pytest.raises(ValueError, match=f"lacks 47 .* others, such as {prefix}model.embed"):
        read_policy(PolicyConfig(path=str(folder)), 0)


def test_an_output_layer_that_is_neither_tied_nor_there_is_named(folder):
    file = folder / "config.json"
    file.write_text(
        file.read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false')
    )
    with pytest.raises(ValueError, match=r"lacks 1 of the model's weights \(lm_head.weight\)"):
        read_policy(PolicyConfig(path=str(folder)), 0)


def test_a_folder_without_a_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match="its tokenizer has no tokens for text"):
        read_policy(PolicyConfig(path=str(folder)), 0)


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
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([token])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match=rf"has 1200 tokens: '.*' is number {ADDED}; put the"):
        read_policy(PolicyConfig(path=str(folder)), 0)


def test_a_token_of_the_chat_template_that_the_model_lacks_is_refused(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["Now:"])
    tokenizer.chat_template = f"{tokenizer.chat_template}Now:"
    tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match="'Now:' is number 1200; put the model's own"):
        read_policy(PolicyConfig(path=str(folder)), 0)


@pytest.mark.parametrize("role", ["eos_token", "pad_token"])
def test_an_end_or_a_padding_that_the_model_lacks_is_refused(role, folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({role: "<|new|>"})
    tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match=rf"'<\|new\|>' is number {ADDED}; put the"):
        read_policy(PolicyConfig(path=str(folder)), 0)


def test_a_token_that_only_a_question_takes_is_refused_when_the_question_is_rendered(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["elephants"])
    tokenizer.save_pretrained(folder)
    _, renderer = read_policy(PolicyConfig(path=str(folder)), 0)
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
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights[name].view(-1)[-1] = value
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=f"the weight {name} holds NaN or infinite values"):
        read_policy(PolicyConfig(path=str(folder)), 0)


@pytest.fixture
def code(folder: Path, monkeypatch) -> Iterator[Path]:
    """Python in a policy's folder that leaves a file when it runs, and a user who says yes."""
    trace = folder / "it_ran"
    (folder / "code.py").write_text(f"open({str(trace)!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda _: "y")
    yield folder / "code.py"
    assert not trace.exists()


def change(file: Path, **settings: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def test_a_model_whose_code_lies_in_its_folder_is_refused(folder, code):
    classes = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}
    change(folder / "config.json", auto_map=classes, model_type="unheard_of")
    with pytest.raises(
        ConfigError, match=r"code in its own folder \(auto_map\), which is never run"
    ):
        read_policy(PolicyConfig(path=str(folder)), 0)


def test_code_beside_a_model_that_transformers_knows_is_not_run(folder, code):
    change(folder / "config.json", auto_map={"AutoModelForCausalLM": "code.M"})
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["code.T", None]})
    read_policy(PolicyConfig(path=str(folder)), 0)


def test_weights_that_the_model_does_not_have_are_no_fault(folder):
    """Other heads, and towers for images, come with many checkpoints."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    save_file({**weights, "mtp.x": weights[DOWN].clone()}, file, metadata={"format": "pt"})
    read_policy(PolicyConfig(path=str(folder)), 0)


def test_a_pointer_of_git_lfs_is_no_policy(folder):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (folder / "model.safetensors").write_text(pointer)
    with pytest.raises(ValueError, match=r"model\.safetensors is a pointer of git-lfs"):
        read_policy(PolicyConfig(path=str(folder)), 0)
