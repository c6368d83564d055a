"""Checkpoints that are complete or absent, and are checked before they are read.

A file or folder is written under another name, flushed, then renamed. A kill leaves the previous
checkpoint, or the new one; of a folder (DeepSpeed's) possibly both, the previous one as ``.old``.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from svr_lightning.errors import ConfigError, format_exception, one_line, require
from svr_lightning.policy.weights import require_finite


class DurableCheckpointIO(TorchCheckpointIO):
    """Saves atomically, and refuses a file that does not match its own checksums.

    A checkpoint holds tensors and plain values only, so loading one never runs code.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write ``path`` so that a kill at any moment leaves the old file or the new one.

        Raises:
            ConfigError: if it holds what :meth:`load_checkpoint` refuses, or the disk is full.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.writing")
        try:
            with aside.open("wb") as stream:
                torch.save(checkpoint, stream)
                stream.flush()
                os.fsync(stream.fileno())
            refused = torch.serialization.get_unsafe_globals_in_checkpoint(aside)
            require(
                not refused,
                f"checkpoint {target} would hold {', '.join(refused)} and could not be loaded: "
                "only tensors and plain values are; leave such objects out of the state_dict() of "
                "callbacks",
            )
            os.replace(aside, target)
        except BaseException as error:
            aside.unlink(missing_ok=True)
            # torch.save reports as its own RuntimeError why the system did not write.
            fault = error if isinstance(error, OSError) else error.__context__
            if not isinstance(fault, OSError):
                raise
            free = os.statvfs(target.parent)
            raise ConfigError(
                f"checkpoint {target} could not be written ({fault.strerror or fault}); "
                f"{free.f_bavail * free.f_frsize // 2**20} MiB are free; earlier ones are intact"
            ) from fault
        flush(target.parent)

    def load_checkpoint(
        self, path: Any, map_location: Any = lambda storage, loc: storage, weights_only: Any = None
    ) -> Any:
        """Read a checkpoint after checking all of it.

        Raises:
            ConfigError: if it is a folder or damaged.
        """
        target = Path(path)
        require(
            not target.is_dir(),
            f"checkpoint {target} is a folder, as DeepSpeed writes it; use the strategy that "
            "wrote it, or the exported policy/ with model.policy.path",
        )
        try:
            # torch writes zip archives with a checksum per tensor, and does not compare it itself.
            with ZipFile(target) as archive:
                if damaged := archive.testzip():
                    raise ValueError(f"{damaged} does not match its checksum")
            # Mapped: the processes of a node share what they read, instead of a copy for each.
            return torch.load(target, map_location=map_location, weights_only=True, mmap=True)
        except Exception as error:
            raise ConfigError(
                f"checkpoint {target} is damaged ({format_exception(error)}); "
                "resume from another one, or begin again in another folder; svr warmstart trains "
                "again without it"
            ) from error


def flush(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


TAG = "checkpoint"
"""Folder of the shards within a checkpoint, as Lightning and its conversion tools name it."""


def make_durable(engine: Any) -> None:
    """Make DeepSpeed's checkpoint engine flush and check its files, and load them without code."""
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.utils.tensor_fragment import fragment_address

    files = DurableCheckpointIO()
    harmless = [LossScaler, fragment_address]  # in its files; they hold plain values

    def save(state_dict: dict[str, Any], path: str) -> None:
        with torch.serialization.safe_globals(harmless):
            files.save_checkpoint(_without_enums(state_dict), path)

    def load(path: str, map_location: Any = None) -> Any:
        with torch.serialization.safe_globals(harmless):
            return files.load_checkpoint(path, map_location=map_location)

    engine.save, engine.load = save, load


@contextmanager
def replacing(strategy: Any, path: Any) -> Iterator[Path]:
    """A folder for all processes to fill, which then becomes ``path``.

    The first process may leave only after all files are on the disk.
    """
    target = Path(strategy.broadcast(path))
    aside = target.with_name(f".{target.name}.writing")
    if strategy.is_global_zero:
        shutil.rmtree(aside, ignore_errors=True)  # an interrupted save left it
        aside.parent.mkdir(parents=True, exist_ok=True)
    strategy.barrier()
    yield aside
    if strategy.is_global_zero:
        for within in (*(path for path in aside.iterdir() if path.is_dir()), aside):
            flush(within)
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            os.replace(target, old)
        os.replace(aside, target)
        flush(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    strategy.barrier()


def remove(target: Path) -> None:
    """Remove a checkpoint and what interrupted saves left of it."""
    for folder in (target, *(target.with_name(f".{target.name}.{x}") for x in ("old", "writing"))):
        shutil.rmtree(folder, ignore_errors=True)


def require_complete(folder: Path, ranks: int | None) -> None:
    """Require a folder that DeepSpeed wrote; its optimizer by ``ranks`` processes, if given.

    Raises:
        ConfigError: if it is not one, or was written by another number of processes.
    """
    require(
        (folder / TAG).exists(),
        f"checkpoint {folder} was not written under DeepSpeed; resume with the strategy that "
        "wrote it, or start from the exported policy/ with model.policy.path",
    )
    shards = len(list((folder / TAG).glob("*_optim_states.pt")))
    require(
        ranks is None or shards == ranks,
        f"checkpoint {folder} holds the optimizer of {shards} processes, and this run has "
        f"{ranks}; resume with as many, or start from the exported policy/ with "
        "model.policy.path",
    )


def check_adapters(saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Refuse adapters with other settings (no weight shows alpha) or of another base model.

    Args:
        saved: the checkpoint.
        present: :meth:`~svr_lightning.policy.policy.Policy.adapter_facts` of the run.

    Raises:
        ConfigError: naming the setting.
    """
    settings = present.get("lora")
    require(
        saved.get("lora") == settings,
        f"model.policy.lora={settings}, but the checkpoint's adapters have {saved.get('lora')}; "
        "give it as it was",
    )
    require(
        present.get("base") in (None, saved.get("base")),
        "the checkpoint's adapters belong to a base model with other weights; give "
        "model.policy.path as it was",
    )


def without_reference(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights for a module that evaluates, without the reference.

    ``reference`` is the prefix of a name, or an adapter's name in it.
    """
    return {k: v for k, v in weights.items() if "reference" not in k.split(".")}


def check_weights(present: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Refuse weights of another model, and a reference that is missing or unexpected.

    Args:
        present: the state dict of the run.
        saved: that of the checkpoint.

    Raises:
        ConfigError: naming a weight that only one of them has, that differs in shape, or that is
            not finite.
    """
    shapes = [
        {name: value.shape for name, value in weights.items()} for weights in (present, saved)
    ]
    odd = sorted({name for name, _ in shapes[0].items() ^ shapes[1].items()})
    require(
        not odd,
        f"the checkpoint is of another model or method: {len(odd)} of its weights have other "
        f"names or shapes, such as {one_line(odd[0]) if odd else ''}; give model.policy and "
        "model.recipe as they were",
    )
    require_finite(saved, "the checkpoint")


def _without_enums(value: Any) -> Any:
    """Enum members replaced by their values: some Pythons pickle a member as a call."""
    if isinstance(value, Enum):
        return value.value
    if type(value) is dict:
        return {key: _without_enums(inner) for key, inner in value.items()}
    return value
