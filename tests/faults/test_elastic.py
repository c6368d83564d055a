"""Of two processes under torchrun one is killed: both begin again from the last checkpoint."""

from pathlib import Path

from tests import forked
from tests.faults.runs import command, differences
from tests.forked import ROOT


def run_two(folder: Path, mark: Path) -> str:
    """Train on two processes that torchrun starts, and starts once more; what was printed."""
    engine = f"{{class_path: tests.faults.rank_engine.KilledOnce, init_args: {{mark: {mark}}}}}"
    training = command(
        folder,
        *("--trainer.devices", "2", "--trainer.strategy", "ddp", "--ckpt_path", "last"),
        *("--model.updates_per_rollout", "1", "--data.problems_per_step", "2"),
        *("--trainer.max_steps", "4", "--trainer.limit_val_batches", "0"),
        *("--model.engine", engine),
    )
    launch = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    log = folder.with_suffix(".log")
    process = forked.start(
        log,
        *(*launch, "-m", "svr_lightning", *training),
        module="torch.distributed.run",
        PYTHONPATH=str(ROOT),
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",  # as configs/hardware/torchrun.sh says
    )
    code = forked.wait(process)
    said = log.read_text(errors="replace")
    assert code == 0, said[-3000:]
    return said


def test_a_killed_process_comes_back_and_the_run_ends_as_one_that_was_not_interrupted(
    tmp_path: Path,
) -> None:
    (tmp_path / "struck before").touch()
    run_two(tmp_path / "whole", tmp_path / "struck before")
    said = run_two(tmp_path / "killed", tmp_path / "struck")
    assert (tmp_path / "struck").exists()
    assert "failed (exitcode: -9) local_rank: 1" in said
    assert said.count("Restored all states from the checkpoint") == 1
    assert differences(tmp_path / "whole", tmp_path / "killed") == []
