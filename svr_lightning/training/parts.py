"""Checkpoints in parts: each process writes what it holds, in torch's own distributed format.

Such a folder has files of every process, their index ``.metadata``, and in ``meta.pt`` all that is
neither weight nor optimizer. Lightning loads it on any number of processes. Torch would run code
that the index or a value contains, so all of it is checked first.
"""

import pickle
import zlib
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from svr_lightning.errors import ConfigError
from svr_lightning.training.checkpoint import (
    DurableCheckpointIO,
    check_content,
    check_resumable,
    flush,
    not_written,
    system_fault,
    unreadable,
)
from svr_lightning.training.gathering import gather_lists

REST = "meta.pt"
"""The file of what is not in parts, as Lightning and its conversion tools name it."""
INDEX = ".metadata"
WEIGHTS = "state_dict."
"""Prefix of their names in the index."""
SUM = "checksum of the index"
FILE_BYTES = 2**30
"""Parts are written in files of about this size, which is the additional memory needed."""


class Writer(FileSystemWriter):
    """Torch's writer with files of bounded size, each of them flushed.

    Torch keeps a copy of every tensor until their file is closed, and flushes it before that.
    """

    def write_data(self, plan: Any, planner: Any) -> Future[list[WriteResult]]:
        """Write this process's parts."""
        written: list[WriteResult] = []
        for number, items in enumerate(_files(plan.items)):
            place = replace(plan.storage_data, prefix=f"{plan.storage_data.prefix}{number}_")
            part = replace(plan, items=items, storage_data=place)
            try:
                written += super().write_data(part, planner).wait()
            except RuntimeError as error:
                raise system_fault(error) or error from None  # its context reaches no other process
        for name in {result.storage_data.relative_path for result in written}:
            flush(Path(self.path) / name)
        done: Future[list[WriteResult]] = Future()
        done.set_result(written)
        return done


def _files(items: Any) -> Iterator[list[Any]]:
    """The contents of each file."""
    content: list[Any] = []
    size = 0
    for item in items:
        content.append(item)
        size += item.tensor_storage_size() or 0
        if size >= FILE_BYTES:
            yield content
            content, size = [], 0
    yield content


def save_parts(checkpoint: dict[str, Any], folder: Path, rank: int) -> None:
    """Write this process's parts of weights and optimizers; the first one adds the rest.

    It returns after all processes have written.

    Raises:
        RuntimeError: in all processes, if the system refuses to write.
    """
    parts = {"state_dict": checkpoint.pop("state_dict")}
    optimizers = checkpoint.pop("optimizer_states", [])
    parts |= {f"optimizer_{number}": state for number, state in enumerate(optimizers)}
    try:
        save(parts, storage_writer=Writer(folder))
    except CheckpointException as error:
        fault, _ = next(iter(error.failures.values()))
        raise (not_written(folder, fault) if isinstance(fault, OSError) else fault) from error
    if rank == 0:
        flush(folder / INDEX)
        checkpoint[SUM] = zlib.crc32((folder / INDEX).read_bytes())
        DurableCheckpointIO().save_checkpoint(checkpoint, folder / REST)


def check_parts(folder: Path, rank: int, ranks: int, *, resumes: bool = False) -> dict[str, Tensor]:
    """Require a complete folder that matches its checksums. Each process reads its share.

    With ``resumes`` it has to hold the optimizer, too.

    Returns:
        The weights that it has, without data.

    Raises:
        ConfigError: in all processes, if it is missing, damaged or would run code.
    """
    check_content(folder, REST, "SVRFSDPStrategy")
    rest = DurableCheckpointIO().load_checkpoint(folder / REST)
    if resumes:
        check_resumable(rest)
    index: Any = None
    faults: list[str] = []
    try:
        stored = (folder / INDEX).read_bytes()
        if zlib.crc32(stored) != rest[SUM]:
            raise ValueError(f"{INDEX} does not match its checksum")
        index = Index(BytesIO(stored)).load()
        places = sorted(index.storage_data.values(), key=lambda p: (p.relative_path, p.offset))
        for place in places[rank::ranks]:
            _check_part(folder / place.relative_path, place)
    except Exception as error:
        faults.append(unreadable(folder, error))
    for fault in gather_lists(faults):
        raise ConfigError(fault)
    return {
        name.removeprefix(WEIGHTS): torch.empty(entry.size, device="meta")
        for name, entry in index.state_dict_metadata.items()
        if name.startswith(WEIGHTS)
    }


def _check_part(path: Path, place: Any) -> None:
    """Require one tensor or value that matches its checksums and runs no code."""
    with path.open("rb") as stream:
        stream.seek(place.offset)
        data = BytesIO(stream.read(place.length))
    with ZipFile(data) as archive:
        if name := archive.testzip():
            raise ValueError(f"{name} in {path.name} does not match its checksum")
    data.seek(0)
    torch.load(data, map_location="meta", weights_only=True)


class Index(pickle.Unpickler):
    """Reads torch's index, with the classes that it consists of and no others."""

    def find_class(self, module: str, name: str) -> Any:
        """The class or value of a name.

        Raises:
            pickle.UnpicklingError: for any other name.
        """
        known = name in _NAMES.get(module.partition("._local")[0], ())
        if known or (module == "torch" and isinstance(getattr(torch, name, 0), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} in {INDEX} may run code")


_NAMES = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        *("Metadata", "MetadataIndex", "StorageMeta", "BytesStorageMetadata"),
        *("TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties"),
        "_MEM_FORMAT_ENCODING",
    },
    "pathlib": {"PosixPath"},
}
