"""Two processes under torchrun share a training; of one that is killed, both begin again."""

from pathlib import Path

import pytest

from svr_lightning.core.metrics import METRIC_NAMES
from tests import forked
from tests.commands import ROOT, embedded, flags, jsonl, logged, read_json
from tests.faults.runs import command, differences

STEPS = 3
SAVING = "{every_n_train_steps: 1, save_top_k: 0, save_last: true, enable_version_counter: false}"
CALLBACKS = (
    "[{class_path: svr_lightning.callbacks.RolloutLog, init_args: {every: 0}}, "
    "{class_path: svr_lightning.callbacks.BeforeAfter}, "
    f"{{class_path: lightning.pytorch.callbacks.ModelCheckpoint, init_args: {SAVING}}}]"
)


def run_two(folder: Path, mark: Path) -> str:
    """Train on two processes that torchrun starts, and starts once more; what was printed."""
    engine = f"{{class_path: tests.faults.rank_engine.KilledOnce, init_args: {{mark: {mark}}}}}"
    settings = {
        "trainer.devices": 2,
        "ckpt_path": "last",
        "trainer.strategy": "{class_path: tests.faults.rank_engine.ReducesNoMetrics}",
        "trainer.max_steps": STEPS,
        "trainer.val_check_interval": STEPS,
        "trainer.callbacks": CALLBACKS,
        "model.updates_per_rollout": 1,
        "data.problems_per_step": 2,
        "data.val": embedded(3, "dev", "dev"),
        "data.test": embedded(5),
        "model.engine": engine,
    }
    training = command(folder, *flags(settings))
    launch = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    log = folder.with_suffix(".log")
    process = forked.start(
        log,
        *launch,
        "-m",
        "svr_lightning",
        *training,
        module="tests.faults.torchrun",
        PYTHONPATH=str(ROOT),
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",  # as configs/hardware/torchrun.sh says
    )
    code = forked.wait(process)
    output = log.read_text(errors="replace")
    assert code == 0, output[-3000:]
    return output


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A training in which no process is killed."""
    folder = tmp_path_factory.mktemp("elastic") / "whole"
    mark = folder.with_name("struck before")
    mark.touch()
    assert "failed (exitcode" not in run_two(folder, mark)
    return folder


def test_two_processes_share_the_work_and_write_one_run(whole):
    values = logged(whole)
    assert [*values["train/grad_norm"]] == [*range(1, STEPS + 1)]
    rollouts = jsonl(whole / "rollouts.jsonl")
    # 2 problems over both processes, 4 trajectories of each.
    assert len(rollouts) == STEPS * 2 * 4
    assert len({(line["step"], line["id"]) for line in rollouts}) == STEPS * 2
    for name, count in ((f"step-{STEPS:06d}", 3), ("after", 5)):
        results = read_json(whole / "eval" / name / "results.json")
        assert [values["n"] for values in results["datasets"].values()] == [count]
    # What validation logs is reduced over the processes by the metrics themselves.
    results = read_json(whole / "eval" / f"step-{STEPS:06d}" / "results.json")
    for name in METRIC_NAMES:
        value = results["datasets"]["dev"][name]
        found = values.get(f"val/dev/{name}", {None: None})
        assert [*found.values()] == [value], name


def test_a_killed_process_comes_back_and_the_run_ends_as_one_that_was_not_interrupted(
    whole, tmp_path
):
    output = run_two(tmp_path / "killed", tmp_path / "struck")
    assert (tmp_path / "struck").exists()
    assert "failed (exitcode: -9) local_rank: 1" in output
    assert output.count("Restored all states from the checkpoint") == 1
    assert differences(whole, tmp_path / "killed") == []
