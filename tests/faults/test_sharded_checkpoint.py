"""A checkpoint that is a folder with a file per process is whole or not there, too."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from svr_lightning.errors import ConfigError
from svr_lightning.training.checkpoint import (
    TAG,
    DurableCheckpointIO,
    check,
    free_slot,
    make_durable,
    point,
    remove,
)

RANKS = 2


def shards(folder: Path) -> list[Path]:
    """Where DeepSpeed writes: the weights, and a share of the optimizer for each rank."""
    names = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(RANKS)]
    return [folder / TAG / name for name in ("mp_rank_00_model_states.pt", *names)]


def engine() -> Any:
    """DeepSpeed's checkpoint engine, as far as it is replaced."""
    pytest.importorskip("deepspeed")
    made = SimpleNamespace(save=None, load=None)
    make_durable(made)
    return made


def save(step: int, target: Path) -> None:
    """What the strategy does, with one process for all."""
    folder = free_slot(target)
    made = engine()
    for number, path in enumerate(shards(folder)):
        made.save(state_dict={"step": step, "part": torch.full((50,), 10.0 * step + number)},
                  path=str(path))  # fmt: skip
    point(target, folder)


def step_of(target: Path) -> int:
    """The step of a checkpoint of which every shard loads and is of the same save."""
    check(target, RANKS)
    loaded = [engine().load(str(path)) for path in shards(target)]
    for number, part in enumerate(loaded):
        assert torch.equal(part["part"], torch.full((50,), 10.0 * part["step"] + number))
    (step,) = {part["step"] for part in loaded}
    return int(step)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """``last.ckpt`` of step 1."""
    target = tmp_path / "checkpoints" / "last.ckpt"
    save(1, target)
    return target


def test_saves_take_turns_between_two_folders_and_leave_one(saved: Path) -> None:
    for step, slot in ((2, ".last.ckpt.1"), (3, ".last.ckpt.0"), (4, ".last.ckpt.1")):
        save(step, saved)
        assert step_of(saved) == step
        assert names(saved.parent) == [slot, "last.ckpt"]
    remove(saved)
    assert names(saved.parent) == []


class Killed(BaseException):
    """Stands for SIGKILL: nothing runs after it."""


def kill_while_saving(step: int, target: Path, call: int) -> bool:
    """Whether a save came as far as its ``call``-th change to what lies on the disk."""
    calls = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= call:
                raise Killed
            return function(*arguments, **options)

        return run

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((os, "fsync"), (os, "replace"), (shutil, "rmtree")):
            patch.setattr(module, name, counted(getattr(module, name)))
        patch.setattr(Path, "symlink_to", counted(Path.symlink_to))
        try:
            save(step, target)
        except Killed:
            return True
    return False


def test_a_kill_at_any_moment_leaves_all_shards_of_the_old_save_or_all_of_the_new(
    saved: Path,
) -> None:
    outcomes = []
    call = 1
    while True:
        save(1, saved)
        if not kill_while_saving(2, saved, call):
            break
        outcomes.append(step_of(saved))
        save(3, saved)  # what the kill left is in nobody's way
        assert step_of(saved) == 3
        assert len(names(saved.parent)) == 2
        call += 1
    # Three changes for each of three shards, two folders flushed, the link made and moved: all of
    # it changes nothing. Then the folder's flush and the removal of the old one.
    assert outcomes == [1] * (3 * 3 + 4) + [2, 2]


def test_a_first_save_that_is_killed_leaves_no_name_to_resume_from(tmp_path: Path) -> None:
    target = tmp_path / "last.ckpt"
    assert kill_while_saving(1, target, 12)
    assert not target.exists()
    save(2, target)
    assert step_of(target) == 2


def test_a_copy_in_which_the_link_became_a_folder_is_saved_to_as_well(
    saved: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy" / "last.ckpt"
    shutil.copytree(saved, copy)
    assert step_of(copy) == 1
    save(2, copy)
    assert step_of(copy) == 2
    assert names(copy.parent) == [".last.ckpt.0", "last.ckpt"]


def test_a_damaged_shard_is_refused_by_name(saved: Path) -> None:
    shard = shards(saved)[2]
    data = bytearray(shard.read_bytes())
    data[data.index(torch.full((50,), 12.0).numpy().tobytes())] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ConfigError, match=rf"{shard} is damaged"):
        step_of(saved)


class Malicious:
    """Unpickling it runs a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_a_shard_that_would_run_code_is_refused_and_runs_none(saved: Path) -> None:
    shard, mark = shards(saved)[0], saved.with_name("mark")
    shard.write_bytes(pickle.dumps(Malicious(mark), protocol=2))
    with pytest.raises(ConfigError, match="is damaged"):
        step_of(saved)
    assert not mark.exists()


def test_a_checkpoint_of_another_kind_or_number_of_processes_is_named(saved: Path) -> None:
    with pytest.raises(ConfigError, match="optimizer of 2 processes, and this run has 4"):
        check(saved, 4)
    check(saved, None)
    with pytest.raises(ConfigError, match="does not exist; check --ckpt_path"):
        check(saved.with_name("nowhere.ckpt"), RANKS)
    with pytest.raises(ConfigError, match="is a folder, as DeepSpeed writes it; use its strategy"):
        DurableCheckpointIO().load_checkpoint(saved)
    single = saved.with_name("single.ckpt")
    DurableCheckpointIO().save_checkpoint({"step": 1}, single)
    with pytest.raises(ConfigError, match="was not written under DeepSpeed"):
        check(single, RANKS)
