"""Two processes on vLLM, with an engine each under ZeRO-2.

The training is done once without an interruption and once by tasks of SLURM that are killed and put
back into the queue.
"""

import signal
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests import forked
from tests.commands import TINY, embedded, flags, jsonl, logged, sampled
from tests.faults.runs import differences, wait_for
from tests.models import tiny_qwen3
from tests.scripted import TOKENIZER
from tests.vllm.conftest import rounding

STEPS = 4
HELD_OUT = 3
ZERO2 = ("--trainer.strategy", "deepspeed_stage_2")
GAP = "engine/logprob_diff"
"""Rounding alone, which the engine does not repeat from process to process."""
TASK = "tests.vllm.graded_by_rank.GradedByRank"
SOURCE = f"{{name: train, task: {TASK}, path: 'embedded:countdown-tiny', limit: 16}}"
SAVING = "{every_n_train_steps: 1, save_top_k: 0, save_last: true, enable_version_counter: false}"
CALLBACKS = (
    "[{class_path: svr_lightning.callbacks.RolloutLog}, "
    "{class_path: svr_lightning.callbacks.HFExport}, "
    f"{{class_path: lightning.pytorch.callbacks.ModelCheckpoint, init_args: {SAVING}}}]"
)


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    """A checkpoint whose heads two processes can share."""
    folder = tmp_path_factory.mktemp("policy")
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    model = tiny_qwen3(vocab_size=len(TOKENIZER), max_position_embeddings=1024, **heads)
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def start(
    policy: Path, folder: Path, *extra: str, tasks: int = 0, processes: int = 2
) -> list[BaseProcess]:
    """Start a training; of as many tasks as SLURM would, or of one that starts the others."""
    settings = {
        "trainer.default_root_dir": folder,
        "trainer.callbacks": CALLBACKS,
        "model.policy.path": policy,
        "model.resample": "off",
        "model.engine": "svr_lightning.engines.vllm.VLLMEngine",
        "model.sampling.max_completion_tokens": 12,
        "model.evaluation.max_turns": 2,
        "model.evaluation.max_completion_tokens": 12,
        "model.reference.every": 2,
        "trainer.max_steps": STEPS,
        "trainer.val_check_interval": 2,
        "trainer.devices": processes,
        "trainer.enable_progress_bar": "false",
        "data.problems_per_step": 4,
        "data.train": SOURCE,
        "data.val": embedded(HELD_OUT, "dev", "dev"),
        "data.test": "[]",
    }
    command = ["fit", *TINY, *flags(settings), *extra]
    log = folder.with_suffix(".log")
    if not tasks:
        return [forked.start(log, *command)]
    port = str(forked.free_port())
    jobs = [forked.slurm(task, tasks) | {"MASTER_PORT": port} for task in range(tasks)]
    return [forked.start(log, *command, **job) for job in jobs]


def finish(processes: list[BaseProcess], folder: Path) -> Path:
    """Wait for the end of a training that succeeds."""
    codes = [forked.wait(process) for process in processes]
    assert not any(codes), (codes, folder.with_suffix(".log").read_text()[-3000:])
    return folder


@pytest.fixture(scope="module")
def alone(policy: Path, tmp_path_factory) -> Path:
    """The first step of one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    return finish(start(policy, folder, "--trainer.max_steps", "1", processes=1), folder)


@pytest.fixture(scope="module")
def whole(policy: Path, tmp_path_factory) -> Path:
    """The uninterrupted training."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return finish(start(policy, folder, *ZERO2, tasks=2), folder)


def test_two_processes_roll_out_and_evaluate_what_one_would(alone, whole):
    first = sampled(whole, 1)
    assert first == sampled(alone, 1)
    assert len(first) == 4 * 8
    # The second process finds no answer right, and keeps its labels.
    assert sampled(whole, 1, "correct") != sampled(alone, 1, "correct")
    assert sampled(whole, STEPS) != first
    for step in (2, STEPS):
        records = jsonl(whole / "eval" / f"step-{step:06d}" / "samples.jsonl")
        assert len(records) == HELD_OUT
    values = logged(whole)
    assert len(values[GAP]) == STEPS
    assert all(share > 0.5 for share in values["engine/changed_frac"].values())
    assert max(values[GAP].values()) < rounding(whole)


def test_tasks_of_slurm_that_are_killed_and_queued_again_end_like_an_uninterrupted_training(
    policy, whole, tmp_path
):
    folder = tmp_path / "run"
    tasks = start(policy, folder, *ZERO2, tasks=2)
    wait_for(folder / "metrics.csv", tasks[0], "\n3,train/loss,")
    for task in tasks:
        task.kill()
    assert [forked.wait(task) for task in tasks] == [-signal.SIGKILL] * 2
    assert not (folder / "policy").exists()
    finish(start(policy, folder, *ZERO2, "--ckpt_path", "last", tasks=2), folder)
    assert differences(whole, folder, rounded=(GAP,)) == []
    assert max(logged(folder)[GAP].values()) < rounding(folder)
