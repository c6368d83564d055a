"""A checkpoint that is not whole is refused by every command, before it writes anything."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from svr_lightning.training.config import PolicyConfig
from svr_lightning.training.policy import read_policy
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
def folder(tmp_path: Path) -> Path:
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


@pytest.mark.parametrize("own", [True, False])
def test_a_tokenizer_that_does_not_fit_is_refused(own, folder):
    """One with tokens that the model has not, and the empty one that stands for none."""
    if own:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens(["1+1=2"])
        tokenizer.save_pretrained(folder)
    else:
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match=r"does not fit the model, which has 1200 tokens: it re"):
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
