"""What a user got wrong ends with exit code 2 and one line: what, where, how to mend it.

Faults of rows, of data sets and of single settings are shown where they are found.
"""

import shutil

import pytest

from tests.commands import SHIPPED, TINY, refused

ENGINE, RECIPE, STOP = "--model.engine", "--model.recipe", "--model.evaluation.stop"


def fault(capsys, tmp_path, *words: object) -> str:
    """What ``fit`` says of these options of the embedded default."""
    root = ("--trainer.default_root_dir", tmp_path / "run")
    return refused(capsys, "fit", *TINY, *root, *words)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        # Of the parser: a value of another type, a class that is not there or lacks something.
        ("--model.recipe Murphi", ["there is no class Murphi; did you mean 'Murphy'?"]),
        (
            f"{STOP} Confidnt",
            ["model.evaluation.stop: there is no class Confidnt; did you mean 'Confident'?"],
        ),
        ("--seed_everything x", ["a <class 'bool'> or a <class 'int'>. Got value: x"]),
        (f"{STOP}.threshold 0.9", ["model.evaluation.stop: name its class before its options"]),
        (f"{RECIPE}.loss.betaa 1", ["model.recipe: ", "--loss.betaa=1"]),
        (
            f"{ENGINE} svr_lightning.engines.openai.OpenAIEngine",
            ["model.engine: ", "required: base_url, model_name"],
        ),
        ("--data.test [{'orderz':1}]", ["data.test: Option 'orderz' is not accepted; --help"]),
        (f"{ENGINE}.base_url x", ["model.engine: ", "'base_url'", "--model.engine.help CLASS"]),
        ("--seed_everything -1", ["seed_everything=-1 must lie in [0, 4294967295]"]),
        # Of a section: settings that contradict each other.
        ("--model.policy.max_model_len 100", ["max_prompt_tokens=512", "max_model_len=100"]),
        # Found where it is used.
        ("--ckpt_path no.ckpt", ["no.ckpt", "--ckpt_path"]),
        ("--ckpt_path best", ["--ckpt_path best", "file, or last"]),
    ],
)
def test_a_wrong_setting_is_named(capsys, tmp_path, arguments, parts):
    line = fault(capsys, tmp_path, *arguments.split())
    assert all(part in line for part in parts), line


def test_a_configuration_in_another_encoding_is_refused(capsys, tmp_path):
    path = tmp_path / "wide.yaml"
    path.write_text("seed_everything: 3\n", encoding="utf-16")
    line = fault(capsys, tmp_path, "--config", path)
    assert line.startswith(f"{path}: 'utf-8' codec can't decode")


@pytest.mark.parametrize("given", ["long", "folder", "loop", "/proc/self/mem"])
def test_a_path_that_cannot_be_opened_is_one_short_line_of_every_command(capsys, tmp_path, given):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    path = "x" * 50_000 if given == "long" else tmp_path / given
    seen = f"{'x' * 90}...{'x' * 90}" if given == "long" else str(path)
    proxy = ("--upstream", "http://127.0.0.1:9/v1", "--model", "m", "--port", "0")
    for words in (
        ("fit", "--config", path),
        ("serve", "--task", "gsm8k", *proxy, "--certificate", path),
        ("report", path),
        ("replay", path),
        ("certify", path, "--max-pse", "0.1"),
        ("test", *TINY, "--ckpt_path", path),
        ("test", *TINY, "--model.policy.path", path, "--trainer.default_root_dir", tmp_path / "r"),
    ):
        line = refused(capsys, *words)
        assert seen in line, words
        assert len(line) < 800


@pytest.mark.parametrize("left", ["checkpoints/last.ckpt", "policy"])
def test_a_new_run_does_not_overwrite_an_old_one(capsys, tmp_path, left):
    found = tmp_path / "run" / left
    found.mkdir(parents=True)
    line = fault(capsys, tmp_path)
    assert f"{found}" in line
    assert "--ckpt_path last" in line
    assert "default_root_dir of its own" in line


@pytest.mark.parametrize("command", ["test", "predict"])
def test_a_checkpoint_that_is_not_there_is_not_replaced_by_the_untrained_policy(
    capsys, tmp_path, command
):
    folder = tmp_path / "nowhere"
    words = [*TINY, "--trainer.default_root_dir", folder, "--ckpt_path", "last"]
    question = ["--question", "1 2 = 3"] if command == "predict" else []
    line = refused(capsys, command, *words, *question)
    assert f"there is no checkpoint under {folder}" in line
    assert not (folder / "eval").exists()


def test_a_damaged_weights_file_is_named(capsys, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(SHIPPED, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    line = fault(capsys, tmp_path, "--model.policy.path", folder)
    assert f"{folder}" in line
    assert "cannot be read" in line
