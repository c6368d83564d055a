"""Of two real processes one fails: its own error is shown, and soon both are gone."""

import signal
import time
from pathlib import Path

import psutil

from tests import forked
from tests.commands import flags
from tests.faults.runs import command

# Two updates per rollout would split one problem between two processes.
ONE_UPDATE = flags(
    {"model.updates_per_rollout": 1, "data.problems_per_step": 2, "trainer.max_steps": 3}
)


def run_two(folder: Path, rank: int, fault: str, others: str = "wait") -> tuple[int, str]:
    """Train on two processes until the fault; the exit code, and what both printed."""
    engine = (
        "{class_path: tests.faults.rank_engine.FaultyRank, "
        f"init_args: {{rank: {rank}, fault: {fault}, others: {others}, marks: {folder}}}}}"
    )
    two = {"devices": 2, "strategy": "ddp", "limit_val_batches": 0}
    settings = {f"trainer.{name}": value for name, value in two.items()} | {"model.engine": engine}
    arguments = command(folder / "run", *flags(settings), *ONE_UPDATE)
    port = str(forked.free_port())
    code = forked.wait(forked.start(folder / "log", *arguments, MASTER_PORT=port))
    everyone = [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]
    assert len(everyone) == 2
    struck = (folder / "struck").stat().st_mtime
    while left := [pid for pid in everyone if runs(pid)]:
        errors = (folder / "log").read_text(errors="replace")
        assert time.time() < struck + 60, f"{left} of {everyone} still run: {errors[-2000:]}"
        time.sleep(0.2)
    return code, (folder / "log").read_text(errors="replace")


def runs(pid: int) -> bool:
    """Whether a process does anything; a dead one may be listed until somebody asks after it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_rank_that_raises_ends_one_that_is_busy_elsewhere(tmp_path):
    code, errors = run_two(tmp_path, 1, "raise", others="busy")
    assert code != 0
    assert "in _strike" in errors
    assert "error: rank 1 failed: ValueError: the fault of this test" in errors


def test_what_all_ranks_find_wrong_is_said_once(tmp_path):
    code, errors = run_two(tmp_path, -1, "config")
    assert code == 2
    lines = [line for line in errors.splitlines() if "error" in line]
    assert lines == ["python -m svr_lightning: error: data.train: what every process finds wrong"]


def test_of_two_ranks_that_are_ended_none_waits_for_the_other(tmp_path):
    code, output = run_two(tmp_path, 1, "end")
    assert code == 128 + signal.SIGTERM
    assert "interrupted after optimizer step 0; the same command" in output
