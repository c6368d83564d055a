"""Checkpoints that are whole or not there: written aside, flushed, then renamed into place."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from svr_lightning.errors import ConfigError

SUFFIX = ".sha256"


class DurableCheckpointIO(TorchCheckpointIO):
    """Saves atomically with a digest beside the file, and refuses a file that does not match it.

    A checkpoint holds tensors and plain values only, so loading one never runs code.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write ``path`` so that a kill at any moment leaves the old file or the new one."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.writing")
        sidecar = target.with_name(target.name + SUFFIX)
        try:
            with aside.open("wb") as stream:
                torch.save(checkpoint, stream)
                stream.flush()
                os.fsync(stream.fileno())
            digest = _digest(aside)
            # The sidecar names both contents while the file changes, so that no moment is
            # unprotected; also those that earlier kills left in doubt.
            named = sidecar.read_text().split() if sidecar.is_file() else []
            _write_durably(sidecar, "\n".join([*named, digest]) + "\n")
            os.replace(aside, target)
        except BaseException as error:
            aside.unlink(missing_ok=True)
            # torch.save reports a write that failed as a RuntimeError of its own.
            fault = error if isinstance(error, OSError) else error.__context__
            if not isinstance(fault, OSError):
                raise
            raise RuntimeError(_unwritable(target, fault)) from fault
        sync_folder(target.parent)
        with suppress(OSError):  # a sidecar that names too much still vouches for the file
            _write_durably(sidecar, f"{digest}\n")

    def load_checkpoint(
        self, path: Any, map_location: Any = lambda storage, loc: storage, weights_only: Any = None
    ) -> Any:
        """Read a checkpoint after checking it against its digest.

        Raises:
            ConfigError: if it is missing or damaged.
        """
        target = Path(path)
        if target.is_dir():
            raise ConfigError(
                f"checkpoint {target} was written under DeepSpeed; use its strategy, or the "
                "exported policy/ with model.policy.path"
            )
        if not target.is_file():
            raise ConfigError(f"checkpoint {target} does not exist; check --ckpt_path")
        sidecar = target.with_name(target.name + SUFFIX)
        if sidecar.is_file() and _digest(target) not in sidecar.read_text().split():
            raise ConfigError(_damaged(target, "its contents do not match its digest"))
        try:
            return torch.load(target, map_location=map_location, weights_only=True)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(_damaged(target, reason)) from error

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint and its digest."""
        super().remove_checkpoint(path)
        Path(f"{path}{SUFFIX}").unlink(missing_ok=True)


def _unwritable(target: Path, fault: OSError) -> str:
    free = os.statvfs(target.parent)
    return (
        f"checkpoint {target} could not be written ({fault.strerror or fault}); "
        f"{free.f_bavail * free.f_frsize // 2**20} MiB are free; the previous one is intact"
    )


def _damaged(target: Path, reason: str) -> str:
    return (
        f"checkpoint {target} is damaged ({reason}); "
        "give --ckpt_path another one, or leave it out to start afresh"
    )


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_durably(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.writing")
    try:
        with aside.open("w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have a folder's entries on the disk, not only in memory."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
