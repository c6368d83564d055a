"""Two processes that share an engine: the same problems and completions, half the samples."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.models import tiny_qwen3
from tests.scripted import TOKENIZER
from tests.vllm.conftest import served_model

SOURCE = "{name: train, task: countdown, path: 'embedded:countdown-tiny', limit: 8}"
DEV = "[{name: dev, task: countdown, path: 'embedded:countdown-tiny', split: dev, limit: 3}]"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose heads two processes can share."""
    folder = tmp_path_factory.mktemp("policy")
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    model = tiny_qwen3(vocab_size=len(TOKENIZER), max_position_embeddings=1024, **heads)
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def rollouts(policy: Path, folder: Path, processes: int) -> list[dict[str, Any]]:
    """What the first optimizer step was trained on, by problem and sample."""
    command = [
        *(
            "fit",
            "--config",
            "configs/countdown_tiny.yaml",
            "--trainer.default_root_dir",
            str(folder),
        ),
        *("--model.policy.path", str(policy), "--model.resample", "off"),
        *("--model.engine", "svr_lightning.engines.vllm.VLLMEngine"),
        *("--model.engine.tensor_parallel_size", str(processes)),
        *("--model.sampling.max_completion_tokens", "12", "--model.evaluation.max_turns", "2"),
        *("--model.evaluation.max_completion_tokens", "12", "--trainer.max_steps", "1"),
        *("--trainer.devices", str(processes), "--trainer.val_check_interval", "1"),
        *("--trainer.strategy", "ddp" if processes > 1 else "auto"),
        *("--trainer.enable_progress_bar", "false", "--data.problems_per_step", "4"),
        *("--data.train", SOURCE, "--data.val", DEV, "--data.test", "[]"),
    ]
    log = folder.with_suffix(".log")
    assert forked.wait(forked.start(log, *command)) == 0, log.read_text()[-3000:]
    lines = [json.loads(line) for line in (folder / "rollouts.jsonl").open()]
    return sorted(lines, key=lambda line: (line["id"], line["sample"]))


@pytest.fixture
def killed_run() -> Iterator[None]:
    """Shared memory that a killed run left, under the name that vLLM gives that of all runs."""
    folder = Path("/dev/shm")
    left = {folder / f"-tp:0-[0-1]-cpushm_{rank}" for rank in (0, 1)}
    for file in left:
        file.touch()
    yield
    assert {*folder.glob("*cpushm*")} == left
    for file in left:
        file.unlink()


@pytest.mark.usefixtures("killed_run")
def test_a_shared_engine_rolls_out_what_one_process_would(policy: Path, tmp_path: Path) -> None:
    alone, shared = rollouts(policy, tmp_path / "1", 1), rollouts(policy, tmp_path / "2", 2)
    assert [(line["id"], line["sample"]) for line in shared] == [
        (line["id"], line["sample"]) for line in alone
    ]
    texts = [[turn["text"] for turn in line["turns"]] for line in shared]
    assert texts == [[turn["text"] for turn in line["turns"]] for line in alone]
    assert len(texts) == 4 * 8
    evaluated = [
        (tmp_path / name / "eval" / "step-000001" / "samples.jsonl").read_text().splitlines()
        for name in ("1", "2")
    ]
    assert [len(lines) for lines in evaluated] == [3, 3]


def test_an_engine_for_more_processes_than_there_are_is_refused() -> None:
    from svr_lightning.engines.vllm import VLLMEngine
    from svr_lightning.errors import ConfigError

    engine = VLLMEngine(tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="tensor_parallel_size=2 does not divide the 1 processes"):
        engine.start(served_model("qwen3"), (), 512)
