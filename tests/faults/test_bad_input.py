"""What a user got wrong ends with exit code 2 and one line: what, where, how to mend it."""

import json
import shutil
from pathlib import Path

import pytest

from svr_lightning.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
TINY = ["--config", str(ROOT / "configs" / "countdown_tiny.yaml")]
POLICY = ROOT / "svr_lightning" / "tiny" / "countdown_policy"
GOOD_ROW = {"nums": [3, 5, 8], "target": 16}


def source(path: Path, **extra: object) -> str:
    return json.dumps({"name": "mine", "task": "countdown", "path": str(path), **extra})


def fails_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], *parts: str
) -> None:
    """The command exits with 2 and a single line that holds all ``parts``."""
    code = main(["fit", *TINY, "--trainer.default_root_dir", str(tmp_path / "run"), *arguments])
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert code == 2, line
    assert line.startswith("svr: error: ")
    for part in parts:
        assert part in line


ENGINE, RECIPE, STOP = "--model.engine", "--model.recipe", "--model.evaluation.stop"
SERVERS = (ENGINE, "svr_lightning.engines.servers.ServersEngine")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        # Of the parser: a value of another type, a class that is not there or lacks something.
        (["--model.optimizer.lr", "fast"], ["model.optimizer.lr: Expected a", "fast"]),
        ([STOP, "Confidnt"], ["model.evaluation.stop: ", "Confidnt"]),
        ([f"{STOP}.threshold", "0.9"], ["model.evaluation.stop: ", "StopRule is abstract"]),
        ([f"{RECIPE}.loss.betaa", "1"], ["model.recipe: ", "--loss.betaa=1"]),
        ([*SERVERS], ["model.engine: ", "required: urls, folder"]),
        ([*SERVERS, f"{ENGINE}.urls", "http://a"], ["model.engine: Expected a", "http://a"]),
        # Of a section: a number out of range, or settings that contradict each other.
        ([STOP, "Confident", f"{STOP}.threshold", "1.5"], ["threshold=1.5", "[0, 1]"]),
        (["--model.evaluation.votes", "10"], ["now --record --model.evaluation.fresh_turns true"]),
        (["--model.sampling.temperature", "0"], ["temperature=0", "above 0"]),
        (["--model.policy.max_model_len", "100"], ["max_prompt_tokens=512", "max_model_len=100"]),
        ([f"{RECIPE}.init_args.horizon", "0"], ["model.recipe.init_args.horizon=0", "at least 1"]),
        (["--model.optimizer.betas", "[1.5, 0.9]"], ["optimizer.betas=[1.5, 0.9]", "[0, 1)"]),
        ([ENGINE, "TransformersEngine", f"{ENGINE}.max_batch", "0"], ["max_batch=0 must be"]),
        # Of Lightning.
        (["--trainer.strategy", "dpp"], ["dpp"]),
        (["--trainer.precision", "bf16-true"], ["bf16-true", "fp32 masters"]),
        # Found where it is used: weights, data, checkpoints.
        (["--model.policy.max_model_len", "99999"], ["max_model_len=99999", "at most"]),
        (["--model.policy.path", "./no/such/folder"], ["./no/such/folder"]),
        (["--model.policy.path", "embedded:nothing"], ["embedded:nothing", "known"]),
        (["--model.policy.liger", "true"], ["model.policy.liger", "need CUDA", "'cpu'", "null"]),
        (["--data.train.task", "chess"], ["chess", "countdown, gsm8k, math"]),
        (["--data.train.path", "./no/such/file.jsonl"], ["./no/such/file.jsonl"]),
        (["--ckpt_path", "no.ckpt"], ["no.ckpt", "--ckpt_path"]),
        (["--ckpt_path", "best"], ["--ckpt_path best", "give last or a file"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_wrong_setting_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    fails_with(capsys, tmp_path, arguments, *parts)


def test_a_configuration_in_another_encoding_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "wide.yaml"
    path.write_text("seed_everything: 3\n", encoding="utf-16")
    fails_with(capsys, tmp_path, ["--config", str(path)], "UTF-8")


@pytest.mark.parametrize("left", ["checkpoints/last.ckpt", "policy"])
def test_a_new_run_does_not_overwrite_an_old_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, left: str
) -> None:
    found = tmp_path / "run" / left
    found.mkdir(parents=True)
    fails_with(capsys, tmp_path, [], str(found), "--ckpt_path last", "default_root_dir of its own")


@pytest.mark.parametrize("command", ["test", "validate", "predict"])
def test_a_checkpoint_that_is_not_there_is_not_replaced_by_the_untrained_policy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    folder = tmp_path / "nowhere"
    words = [*TINY, "--trainer.default_root_dir", str(folder), "--ckpt_path", "last"]
    question = ["--question", "1 2 = 3"] if command == "predict" else []
    assert main([command, *words, *question]) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert f"there is no checkpoint under {folder}" in line
    assert not (folder / "eval").exists()


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        ([], ["no rows"]),
        ([json.dumps(GOOD_ROW), json.dumps({"nums": [1, 2]})], ["rows.jsonl:2", "target"]),
        ([json.dumps(GOOD_ROW), "{not json"], ["rows.jsonl:2"]),
        ([json.dumps({**GOOD_ROW, "nums": "3 5 8"})], ["rows.jsonl:1", "nums"]),
        ([json.dumps({**GOOD_ROW, "id": "a"})] * 2, ["id", "'a'"]),
        ([json.dumps(GOOD_ROW)], ["1 problems", "8 of one rollout"]),
    ],
    ids=["empty", "missing-field", "broken-json", "wrong-type", "same-id", "too-few"],
)
def test_a_faulty_data_file_is_named_with_its_rows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, lines: list[str], parts: list[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    fails_with(capsys, tmp_path, ["--data.train", source(path)], "mine", *parts)


def test_a_model_folder_without_a_chat_template_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(POLICY, folder)
    (folder / "chat_template.jinja").unlink()
    fails_with(capsys, tmp_path, ["--model.policy.path", str(folder)], str(folder), "chat template")


def test_a_damaged_weights_file_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(POLICY, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    fails_with(
        capsys, tmp_path, ["--model.policy.path", str(folder)], str(folder), "cannot be read"
    )
