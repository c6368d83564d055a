"""A checkpoint that is a folder with files of each process is whole or not there, too."""

import os
import pickle
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load

from svr_lightning.errors import ConfigError
from svr_lightning.training import parts
from svr_lightning.training.checkpoint import (
    TAG,
    DurableCheckpointIO,
    check,
    free_slot,
    make_durable,
    point,
    remove,
)
from svr_lightning.training.parts import SUM, check_parts, save_parts
from tests.limits import files_no_longer_than

RANKS = 2


def part_of(step: int, number: int) -> torch.Tensor:
    return torch.full((50,), 10.0 * step + number)


class DeepSpeedFiles:
    """A file with the weights, and one with a share of the optimizer for each rank."""

    changes = 3 * 3 + 4
    """Of what lies on the disk, until the link is moved: three for each file, both folders flushed,
    the link made and moved."""

    def __init__(self) -> None:
        pytest.importorskip("deepspeed")
        self.engine: Any = SimpleNamespace(save=None, load=None)  # as far as it is replaced
        make_durable(self.engine)

    def files(self, folder: Path) -> list[Path]:
        names = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(RANKS)]
        return [folder / TAG / name for name in ("mp_rank_00_model_states.pt", *names)]

    def fill(self, folder: Path, step: int) -> None:
        """What the strategy does, with one process for all."""
        for number, path in enumerate(self.files(folder)):
            self.engine.save({"step": step, "part": part_of(step, number)}, path=str(path))

    def read(self, folder: Path) -> list[Any]:
        check(folder, RANKS)
        return [self.engine.load(str(path)) for path in self.files(folder)]


class FSDPFiles:
    """Files of torch's distributed format, an index and all the rest."""

    changes = 2 + 2 + 3 + 3
    """As above: the file with the parts and the index, each flushed by torch and once more, the
    rest written and moved and its folder flushed, the folder flushed, the link made and moved."""

    def files(self, folder: Path) -> list[Path]:
        return [folder / name for name in ("__0_0_0.distcp", ".metadata", "meta.pt")]

    def fill(self, folder: Path, step: int) -> None:
        """What the strategy does, with one process for all."""
        weights = {str(number): part_of(step, number) for number in range(3)}
        states = [{"lr": 0.1, "step": torch.tensor(step)}]
        rest = {"state_dict": weights, "optimizer_states": states, "step": step}
        save_parts(rest, folder, rank=0)

    def read(self, folder: Path) -> list[Any]:
        assert set(check_parts(folder, rank=0, ranks=1)) == {"0", "1", "2"}
        step = torch.load(folder / "meta.pt", weights_only=True)["step"]
        weights = {str(number): torch.empty(50) for number in range(3)}
        load({"state_dict": weights}, checkpoint_id=folder)
        return [{"step": step, "part": part} for part in weights.values()]


Files = DeepSpeedFiles | FSDPFiles


@pytest.fixture(params=[DeepSpeedFiles, FSDPFiles])
def files(request: pytest.FixtureRequest) -> Files:
    made: Files = request.param()
    return made


def save(files: Files, step: int, target: Path) -> None:
    folder = free_slot(target)
    files.fill(folder, step)
    point(target, folder)


def step_of(files: Files, target: Path) -> int:
    """The step of a checkpoint of which every part loads and is of the same save."""
    loaded = files.read(target)
    for number, part in enumerate(loaded):
        assert torch.equal(part["part"], part_of(part["step"], number))
    (step,) = {part["step"] for part in loaded}
    return int(step)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def saved(tmp_path: Path, files: Files) -> Path:
    """``last.ckpt`` of step 1."""
    target = tmp_path / "checkpoints" / "last.ckpt"
    save(files, 1, target)
    return target


def test_saves_take_turns_between_two_folders_and_leave_one(files: Files, saved: Path) -> None:
    for step, slot in ((2, ".last.ckpt.1"), (3, ".last.ckpt.0"), (4, ".last.ckpt.1")):
        save(files, step, saved)
        assert step_of(files, saved) == step
        assert names(saved.parent) == [slot, "last.ckpt"]
    remove(saved)
    assert names(saved.parent) == []


class Killed(BaseException):
    """Stands for SIGKILL: nothing runs after it."""


def kill_while_saving(files: Files, step: int, target: Path, call: int) -> bool:
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
            save(files, step, target)
        except Killed:
            return True
    return False


def test_a_kill_at_any_moment_leaves_all_shards_of_the_old_save_or_all_of_the_new(
    files: Files, saved: Path
) -> None:
    outcomes = []
    call = 1
    while True:
        save(files, 1, saved)
        if not kill_while_saving(files, 2, saved, call):
            break
        outcomes.append(step_of(files, saved))
        save(files, 3, saved)  # what the kill left is in nobody's way
        assert step_of(files, saved) == 3
        assert len(names(saved.parent)) == 2
        call += 1
    # In the end the folder's flush and the removal of the old one.
    assert outcomes == [1] * files.changes + [2, 2]


def test_a_first_save_that_is_killed_leaves_no_name_to_resume_from(
    files: Files, tmp_path: Path
) -> None:
    target = tmp_path / "last.ckpt"
    assert kill_while_saving(files, 1, target, files.changes - 1)
    assert not target.exists()
    save(files, 2, target)
    assert step_of(files, target) == 2


def test_a_copy_in_which_the_link_became_a_folder_is_saved_to_as_well(
    files: Files, saved: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy" / "last.ckpt"
    shutil.copytree(saved, copy)
    assert step_of(files, copy) == 1
    save(files, 2, copy)
    assert step_of(files, copy) == 2
    assert names(copy.parent) == [".last.ckpt.0", "last.ckpt"]


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_damaged_shard_is_refused_by_name(files: Files, saved: Path) -> None:
    part = part_of(1, 2).numpy().tobytes()
    shard = next(path for path in files.files(saved) if part in path.read_bytes())
    damage(shard, shard.read_bytes().index(part))
    with pytest.raises(ConfigError, match=rf"{saved}.* is damaged") as refused:
        step_of(files, saved)
    assert shard.name in str(refused.value)


FSDP = pytest.mark.parametrize("files", [FSDPFiles], indirect=True)
DEEPSPEED = pytest.mark.parametrize("files", [DeepSpeedFiles], indirect=True)


@FSDP
def test_a_damaged_index_and_a_lost_shard_are_refused(files: Files, saved: Path) -> None:
    shard, index, _ = files.files(saved)
    damage(index, index.read_bytes().index(b"state_dict.1"))
    with pytest.raises(ConfigError, match=r"is damaged .*\.metadata does not match its checksum"):
        step_of(files, saved)
    save(files, 1, saved)
    shard, *_ = files.files(saved)
    shard.unlink()
    with pytest.raises(ConfigError, match=f"is damaged .*{shard.name}"):
        step_of(files, saved)


class Malicious:
    """Unpickling it runs a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@DEEPSPEED
def test_a_shard_that_would_run_code_is_refused_and_runs_none(files: Files, saved: Path) -> None:
    shard, mark = files.files(saved)[0], saved.with_name("mark")
    shard.write_bytes(pickle.dumps(Malicious(mark), protocol=2))
    with pytest.raises(ConfigError, match="is damaged"):
        step_of(files, saved)
    assert not mark.exists()


def test_an_index_that_would_run_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    mark, files = tmp_path / "mark", FSDPFiles()
    files.fill(tmp_path, 1)
    _, index, rest = files.files(tmp_path)
    index.write_bytes(pickle.dumps(Malicious(mark)))
    planted = torch.load(rest, weights_only=True) | {SUM: zlib.crc32(index.read_bytes())}
    torch.save(planted, rest)
    with pytest.raises(ConfigError, match=r"posix.system in \.metadata may run code"):
        step_of(files, tmp_path)
    assert not mark.exists()


def test_a_value_that_would_run_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    weights = {"0": torch.ones(3), "evil": Malicious(mark)}
    save_parts({"state_dict": weights}, tmp_path / "last.ckpt", rank=0)
    with pytest.raises(ConfigError, match="UnpicklingError: Weights only load failed"):
        check_parts(tmp_path / "last.ckpt", rank=0, ranks=1)
    assert not mark.exists()


def test_a_training_does_not_go_on_from_parts_of_weights_only(tmp_path: Path) -> None:
    save_parts({"state_dict": {"0": torch.ones(3)}}, tmp_path, rank=0)
    assert set(check_parts(tmp_path, rank=0, ranks=1)) == {"0"}
    with pytest.raises(ConfigError, match="saved with save_weights_only"):
        check_parts(tmp_path, rank=0, ranks=1, resumes=True)


def test_parts_are_written_in_files_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "FILE_BYTES", 400)  # two parts of 50 numbers
    files = FSDPFiles()
    files.fill(tmp_path, 1)
    assert len(list(tmp_path.glob("*.distcp"))) == 2
    assert step_of(files, tmp_path) == 1


def test_a_write_of_parts_that_breaks_off_says_how_much_is_free(tmp_path: Path) -> None:
    large = {"weights": torch.zeros(1_000_000)}  # 4 MB
    said = rf"{tmp_path} could not be written \(File too large\); \d+ MiB are free; the previous"
    with files_no_longer_than(1_000_000), pytest.raises(RuntimeError, match=said):
        save_parts({"state_dict": large}, tmp_path, rank=0)


@DEEPSPEED
def test_a_checkpoint_of_another_kind_or_number_of_processes_is_named(
    files: Files, saved: Path
) -> None:
    with pytest.raises(ConfigError, match="optimizer of 2 processes, and this run has 4"):
        check(saved, 4)
    check(saved, None)
    with pytest.raises(ConfigError, match="does not exist; check --ckpt_path"):
        check(saved.with_name("nowhere.ckpt"), RANKS)
    with pytest.raises(ConfigError, match="is a folder, as DeepSpeed and FSDP2 write it; use the"):
        DurableCheckpointIO().load_checkpoint(saved)
    with pytest.raises(ConfigError, match="was not written under SVRFSDPStrategy"):
        check_parts(saved, rank=0, ranks=1)
    single = saved.with_name("single.ckpt")
    DurableCheckpointIO().save_checkpoint({"step": 1}, single)
    with pytest.raises(ConfigError, match="was not written under DeepSpeed"):
        check(single, RANKS)
    with pytest.raises(ConfigError, match="was not written under SVRFSDPStrategy"):
        check_parts(single, rank=0, ranks=1)
