"""A checkpoint is whole or not there, whatever happens while it is written or afterwards."""

import errno
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from svr_lightning.__main__ import main
from svr_lightning.errors import ConfigError
from svr_lightning.training.checkpoint import DurableCheckpointIO
from tests.limits import files_no_longer_than

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = DurableCheckpointIO()


def contents(number: int) -> dict[str, Any]:
    return {"weights": torch.full((50,), float(number)), "global_step": number}


def step_of(path: Path) -> int:
    """The step of a checkpoint that loads, its tensor compared with what was saved."""
    loaded = CHECKPOINTS.load_checkpoint(path)
    assert torch.equal(loaded["weights"], contents(loaded["global_step"])["weights"])
    return int(loaded["global_step"])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """``last.ckpt`` of step 1."""
    path = tmp_path / "checkpoints" / "last.ckpt"
    CHECKPOINTS.save_checkpoint(contents(1), path)
    return path


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_reads_back_and_leaves_nothing_else_behind(saved: Path) -> None:
    CHECKPOINTS.save_checkpoint(contents(2), saved)
    assert step_of(saved) == 2
    assert files(saved.parent) == ["last.ckpt"]
    CHECKPOINTS.remove_checkpoint(saved)
    assert files(saved.parent) == []


# Killed while it writes


class Killed(BaseException):
    """Stands for SIGKILL: nothing runs after it, no cleaning up either."""


@contextmanager
def killed_before_call(number: int) -> Iterator[None]:
    """End the process, as it were, before its ``number``-th change to what lies on the disk."""
    calls = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                raise Killed
            return function(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", counted(os.fsync))
        patch.setattr(os, "replace", counted(os.replace))
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        yield


def kill_while_saving(number: int, path: Path, call: int) -> bool:
    """Whether the save of step ``number`` came as far as its ``call``-th change."""
    with killed_before_call(call):
        try:
            CHECKPOINTS.save_checkpoint(contents(number), path)
        except Killed:
            return True
    return False


def test_a_kill_at_any_moment_of_a_save_leaves_the_old_checkpoint_or_the_new_one(
    saved: Path,
) -> None:
    # A save makes three changes: the contents flushed, then renamed, then the folder flushed.
    outcomes = []
    call = 1
    while True:
        CHECKPOINTS.save_checkpoint(contents(1), saved)
        if not kill_while_saving(2, saved, call):
            break
        outcomes.append(step_of(saved))
        call += 1
    assert outcomes == [1, 1, 2]


# Damaged afterwards


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    """In the middle, where the numbers are: the file still loads, with another number in it."""
    data = bytearray(path.read_bytes())
    data[data.index(contents(1)["weights"].numpy().tobytes()) + 80] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, empty, flip_a_bit])
def test_a_damaged_checkpoint_is_refused_by_name(
    saved: Path, damage: Callable[[Path], None]
) -> None:
    damage(saved)
    with pytest.raises(ConfigError, match=rf"{saved} is damaged .*give --ckpt_path another"):
        CHECKPOINTS.load_checkpoint(saved)


def test_no_flipped_bit_of_a_checkpoint_changes_what_is_read(saved: Path) -> None:
    whole = saved.read_bytes()
    refused = 0
    for index in range(len(whole)):
        with saved.open("r+b", buffering=0) as file:
            file.seek(index)
            file.write(bytes([whole[index] ^ 4]))
            try:
                assert step_of(saved) == 1  # in the padding between two tensors, say
            except ConfigError:
                refused += 1
            file.seek(index)
            file.write(whole[index : index + 1])
    assert refused > len(contents(1)["weights"]) * 4


def test_a_checkpoint_that_is_not_there_is_named(saved: Path) -> None:
    missing = saved.with_name("nowhere.ckpt")
    with pytest.raises(ConfigError, match=rf"{missing} does not exist; check --ckpt_path"):
        CHECKPOINTS.load_checkpoint(missing)


def test_resuming_from_a_damaged_checkpoint_is_one_line_and_changes_nothing(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_a_bit(saved)
    before = saved.read_bytes()
    configurations = [
        ROOT / "configs" / "countdown_tiny.yaml",
        ROOT / "tests/faults/small_run.yaml",
    ]
    code = main(
        [
            "fit",
            *(part for path in configurations for part in ("--config", str(path))),
            *("--trainer.default_root_dir", str(saved.parents[1])),
            *("--ckpt_path", "last"),
        ]
    )
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert line.startswith(f"svr: error: checkpoint {saved} is damaged")
    assert saved.read_bytes() == before


class Malicious:
    """What an attacker would put into a checkpoint: unpickling it runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize(
    "write", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, protocol=2))]
)
def test_a_checkpoint_that_would_run_code_is_refused_and_runs_none(
    tmp_path: Path, write: Callable[[Any, Path], None]
) -> None:
    path, mark = tmp_path / "evil.ckpt", tmp_path / "mark"
    write({"global_step": Malicious(f"touch {mark}")}, path)
    with pytest.raises(ConfigError, match=rf"{path} is damaged"):
        CHECKPOINTS.load_checkpoint(path)
    assert not mark.exists()


# No room


def test_a_write_that_breaks_off_leaves_the_previous_checkpoint_and_says_how_much_is_free(
    saved: Path,
) -> None:
    large = {"weights": torch.zeros(1_000_000)}  # 4 MB
    with (
        files_no_longer_than(1_000_000),
        pytest.raises(
            RuntimeError,
            match=rf"{saved} could not be written \(File too large\); \d+ MiB are free; "
            "the previous one is intact",
        ),
    ):
        CHECKPOINTS.save_checkpoint(large, saved)
    assert step_of(saved) == 1
    assert files(saved.parent) == ["last.ckpt"]


def test_a_full_disk_at_any_moment_of_a_save_leaves_a_whole_checkpoint(saved: Path) -> None:
    # As above, but the process lives on and cleans up.
    for call in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            _fail_at(patch, call)
            with pytest.raises(
                RuntimeError, match=r"\(No space left on device\); \d+ MiB are free"
            ):
                CHECKPOINTS.save_checkpoint(contents(2), saved)
        assert step_of(saved) == 1
        assert files(saved.parent) == ["last.ckpt"]


def _fail_at(patch: pytest.MonkeyPatch, number: int) -> None:
    calls = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*arguments)

        return call

    patch.setattr(os, "fsync", counted(os.fsync))
    patch.setattr(os, "replace", counted(os.replace))
