"""DeepSpeed's checkpoint, a folder with files of each process, is whole or not there, too."""

import os
import pickle
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
    make_durable,
    remove,
    replacing,
)

RANKS = 2
NAMES = ("mp_rank_00_model_states.pt", *(f"zero_{rank}_optim_states.pt" for rank in range(RANKS)))
CHANGES = 3 * 3 + 2
"""Of what lies on the disk, until the old checkpoint gives way: three for each file, both folders
flushed."""
ONE_PROCESS: Any = SimpleNamespace(
    broadcast=lambda value: value, barrier=lambda: None, is_global_zero=True
)


def part_of(step: int, number: int) -> torch.Tensor:
    return torch.full((50,), 10.0 * step + number)


@pytest.fixture(scope="module")
def engine() -> Any:
    """DeepSpeed's checkpoint engine, as far as it is replaced."""
    pytest.importorskip("deepspeed")
    replaced: Any = SimpleNamespace(save=None, load=None)
    make_durable(replaced)
    return replaced


def save(engine: Any, step: int, target: Path) -> None:
    """What the strategy does, with one process for all."""
    with replacing(ONE_PROCESS, target) as folder:
        for number, name in enumerate(NAMES):
            state = {"step": step, "part": part_of(step, number)}
            engine.save(state, path=str(folder / TAG / name))


def step_of(engine: Any, folder: Path) -> int:
    """The step of a checkpoint of which every part loads and is of the same save."""
    check(folder, RANKS)
    loaded = [engine.load(str(folder / TAG / name)) for name in NAMES]
    for number, part in enumerate(loaded):
        assert torch.equal(part["part"], part_of(part["step"], number))
    (step,) = {part["step"] for part in loaded}
    return int(step)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def saved(tmp_path: Path, engine: Any) -> Path:
    """``last.ckpt`` of step 1."""
    target = tmp_path / "checkpoints" / "last.ckpt"
    save(engine, 1, target)
    return target


def test_a_save_takes_the_place_of_the_one_before_and_leaves_nothing_else(
    engine: Any, saved: Path
) -> None:
    for step in (2, 3):
        save(engine, step, saved)
        assert step_of(engine, saved) == step
        assert names(saved.parent) == ["last.ckpt"]
    remove(saved)
    assert names(saved.parent) == []


class Killed(BaseException):
    """Stands for SIGKILL: nothing runs after it."""


def kill_while_saving(engine: Any, step: int, target: Path, call: int) -> bool:
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
        for name in ("fsync", "replace"):
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            save(engine, step, target)
        except Killed:
            return True
    return False


def test_a_kill_at_any_moment_leaves_all_shards_of_one_save(engine: Any, saved: Path) -> None:
    outcomes = []
    call = 1
    while True:
        save(engine, 1, saved)
        if not kill_while_saving(engine, 2, saved, call):
            break
        # Between two renames the old save has another name, which a person can give back.
        if not saved.exists():
            os.rename(saved.with_name(".last.ckpt.old"), saved)
        outcomes.append(step_of(engine, saved))
        save(engine, 3, saved)  # what the kill left is in nobody's way
        assert step_of(engine, saved) == 3
        assert names(saved.parent) == ["last.ckpt"]
        call += 1
    # In the end two renames and the folder's flush.
    assert outcomes == [1] * (CHANGES + 2) + [2]


def test_a_first_save_that_is_killed_leaves_no_name_to_resume_from(
    engine: Any, tmp_path: Path
) -> None:
    target = tmp_path / "last.ckpt"
    assert kill_while_saving(engine, 1, target, CHANGES)
    assert not target.exists()
    save(engine, 2, target)
    assert step_of(engine, target) == 2


def test_a_damaged_shard_is_refused_by_name(engine: Any, saved: Path) -> None:
    shard = saved / TAG / NAMES[2]
    data = bytearray(shard.read_bytes())
    data[data.index(part_of(1, 2).numpy().tobytes())] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ConfigError, match=rf"{saved}.* is damaged") as refused:
        step_of(engine, saved)
    assert shard.name in str(refused.value)


class Malicious:
    """Unpickling it runs a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_a_shard_that_would_run_code_is_refused_and_runs_none(engine: Any, saved: Path) -> None:
    mark = saved.with_name("mark")
    (saved / TAG / NAMES[0]).write_bytes(pickle.dumps(Malicious(mark), protocol=2))
    with pytest.raises(ConfigError, match="is damaged"):
        step_of(engine, saved)
    assert not mark.exists()


def test_a_checkpoint_of_another_kind_or_number_of_processes_is_named(saved: Path) -> None:
    with pytest.raises(ConfigError, match="optimizer of 2 processes, and this run has 4"):
        check(saved, 4)
    check(saved, None)
    with pytest.raises(ConfigError, match="does not exist; check --ckpt_path"):
        check(saved.with_name("nowhere.ckpt"), RANKS)
    with pytest.raises(ConfigError, match="is a folder, as DeepSpeed writes it; use the"):
        DurableCheckpointIO().load_checkpoint(saved)
    single = saved.with_name("single.ckpt")
    DurableCheckpointIO().save_checkpoint({"step": 1}, single)
    with pytest.raises(ConfigError, match="was not written under DeepSpeed"):
        check(single, RANKS)
