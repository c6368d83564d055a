"""A checkpoint is whole or not there, whatever happens while it is written or afterwards.

It is one file, or under DeepSpeed a folder with files of each process.
"""

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from svr_lightning.errors import ConfigError
from svr_lightning.training.checkpoint import (
    TAG,
    DurableCheckpointIO,
    make_durable,
    remove,
    replacing,
    require_complete,
)
from tests import small_fit
from tests.commands import SMALL, refused
from tests.limits import files_no_longer_than

ONE_PROCESS = SimpleNamespace(
    broadcast=lambda value: value, barrier=lambda: None, is_global_zero=True
)


def numbers(step: int, part: int = 0) -> torch.Tensor:
    return torch.full((50,), 10.0 * step + part)


class OneFile:
    """The checkpoint of a single process, or of DDP."""

    files = ("",)
    outcomes = (1, 1, 2)
    """Steps that can be read after a kill before each change of a save: the contents flushed, then
    renamed, then the folder flushed."""

    def __init__(self) -> None:
        self._io = DurableCheckpointIO()

    def save(self, step: int, path: Path) -> None:
        self._io.save_checkpoint({"part": numbers(step), "global_step": step}, path)

    def step_of(self, path: Path) -> int:
        """The step of a checkpoint that loads, its tensor compared with what was saved."""
        loaded = self._io.load_checkpoint(path)
        assert torch.equal(loaded["part"], numbers(loaded["global_step"]))
        return int(loaded["global_step"])

    def remove(self, path: Path) -> None:
        self._io.remove_checkpoint(path)


class Shards:
    """What DeepSpeed's strategy does, with one process for all."""

    files = tuple(
        f"{TAG}/{name}.pt"
        for name in ("mp_rank_00_model_states", "zero_0_optim_states", "zero_1_optim_states")
    )
    outcomes = (1,) * (3 * 3 + 2 + 2) + (2,)
    """Three changes for each file, both folders flushed, two renames, the folder above flushed."""

    def __init__(self) -> None:
        self._engine = SimpleNamespace(save=None, load=None)
        make_durable(self._engine)

    def save(self, step: int, path: Path) -> None:
        with replacing(ONE_PROCESS, path) as folder:
            for number, name in enumerate(self.files):
                state = {"step": step, "part": numbers(step, number)}
                self._engine.save(state, path=str(folder / name))

    def step_of(self, path: Path) -> int:
        """The step of a checkpoint of which every part loads and is of the same save."""
        if not path.exists() and (old := path.with_name(".last.ckpt.old")).exists():
            os.rename(old, path)  # between two renames; a person can give it its name back
        require_complete(path, 2)
        loaded = [self._engine.load(str(path / name)) for name in self.files]
        for number, part in enumerate(loaded):
            assert torch.equal(part["part"], numbers(part["step"], number))
        (step,) = {part["step"] for part in loaded}
        return int(step)

    def remove(self, path: Path) -> None:
        remove(path)


Kind = OneFile | Shards


@pytest.fixture(params=["one file", "shards"])
def kind(request) -> Kind:
    if request.param == "one file":
        return OneFile()
    pytest.importorskip("deepspeed")
    return Shards()


@pytest.fixture
def saved(tmp_path, kind: Kind) -> Path:
    """``last.ckpt`` of step 1."""
    path = tmp_path / "checkpoints" / "last.ckpt"
    kind.save(1, path)
    return path


one_file = pytest.mark.parametrize("kind", ["one file"], indirect=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Killed while it writes, or without room


class Killed(BaseException):
    """Stands for SIGKILL: nothing runs after it, no cleaning up either."""


@contextmanager
def ending_at(number: int, fault: BaseException) -> Iterator[None]:
    """Raise before the ``number``-th change to what lies on the disk, and of a kill ever after."""
    calls = 0

    def counted(function):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == number or (calls > number and isinstance(fault, Killed)):
                raise fault
            return function(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace"):
            patch.setattr(os, name, counted(getattr(os, name)))
        if isinstance(fault, Killed):
            patch.setattr(Path, "unlink", lambda *_, **__: None)
        yield


def killed(kind: Kind, step: int, path: Path, call: int) -> bool:
    """Whether a save came as far as its ``call``-th change."""
    try:
        with ending_at(call, Killed()):
            kind.save(step, path)
    except Killed:
        return True
    return False


def test_a_kill_at_any_moment_of_a_save_leaves_the_old_checkpoint_or_the_new_one(kind, saved):
    outcomes = []
    while killed(kind, 2, saved, len(outcomes) + 1):
        outcomes.append(kind.step_of(saved))
        for step in (3, 1):  # what the kill left is in nobody's way
            kind.save(step, saved)
            assert kind.step_of(saved) == step
            assert names(saved.parent) == ["last.ckpt"]
    assert tuple(outcomes) == kind.outcomes
    kind.remove(saved)
    assert names(saved.parent) == []


@one_file
def test_a_write_that_breaks_off_leaves_the_previous_checkpoint_and_says_how_much_is_free(
    kind, saved
):
    large = {"weights": torch.zeros(1_000_000)}  # 4 MB
    message = (
        rf"{saved} could not be written \(File too large\); \d+ MiB are free; "
        "earlier ones are intact"
    )
    with files_no_longer_than(1_000_000), pytest.raises(ConfigError, match=message):
        DurableCheckpointIO().save_checkpoint(large, saved)
    assert kind.step_of(saved) == 1
    assert names(saved.parent) == ["last.ckpt"]


@one_file
def test_what_could_not_be_loaded_is_not_saved(kind, saved):
    with pytest.raises(ConfigError, match=r"would hold pathlib.*Path and could not be loaded"):
        DurableCheckpointIO().save_checkpoint({"callbacks": saved}, saved)
    assert kind.step_of(saved) == 1


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    """In the middle, where the numbers are: the file still loads, with another number in it."""
    data = bytearray(path.read_bytes())
    last = max(data.find(numbers(1, part).numpy().tobytes()) for part in range(3))
    data[last + 80] ^= 1
    path.write_bytes(data)


class Malicious:
    """What an attacker would put into a checkpoint: unpickling it runs a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def plant(path: Path) -> None:
    torch.save({"global_step": Malicious(path.with_name("mark"))}, path)


def plant_a_bare_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Malicious(path.with_name("mark")), protocol=2))


@pytest.mark.parametrize("damage", [truncate, empty, flip_a_bit, plant, plant_a_bare_pickle])
def test_a_checkpoint_that_is_damaged_or_would_run_code_is_refused_by_name_and_runs_none(
    kind, saved, damage
):
    file = saved / kind.files[-1] if kind.files[-1] else saved
    damage(file)
    advice = "resume from another one, or begin again in another folder; "
    with pytest.raises(ConfigError, match=f"{file} is damaged .*{advice}"):
        kind.step_of(saved)
    assert not file.with_name("mark").exists()


@one_file
def test_resuming_from_a_damaged_checkpoint_is_one_line_and_changes_nothing(saved, capsys):
    flip_a_bit(saved)
    before = saved.read_bytes()
    root = ("--trainer.default_root_dir", saved.parents[1])
    line = refused(capsys, "fit", *SMALL, *root, "--ckpt_path", "last")
    assert line.startswith(f"checkpoint {saved} is damaged")
    assert saved.read_bytes() == before


def resumed(path: Path) -> None:
    small_fit.trainer(path.parent).fit(small_fit.module(), small_fit.data(), ckpt_path=path)


def test_a_checkpoint_of_another_kind_or_number_of_processes_is_named(tmp_path):
    single, shards = tmp_path / "single.ckpt", tmp_path / "shards.ckpt"
    io = DurableCheckpointIO()
    OneFile().save(1, single)
    pytest.importorskip("deepspeed")
    Shards().save(1, shards)
    require_complete(shards, None)
    for message, read in (
        ("nowhere does not exist; give --ckpt_path anot", lambda: resumed(tmp_path / "nowhere")),
        ("is a folder, as DeepSpeed writes it; use the", lambda: io.load_checkpoint(shards)),
        ("was not written under DeepSpeed", lambda: require_complete(single, 2)),
        ("optimizer of 2 processes, and this run has 4", lambda: require_complete(shards, 4)),
    ):
        with pytest.raises(ConfigError, match=message):
            read()
