"""Atomic file writes, and JSON that every reader accepts."""

import contextlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from svr_lightning.errors import did_you_mean, require


def config_file(given: str) -> Path:
    """The configuration that a path, or a name such as ``hardware/1gpu``, stands for.

    Named ones ship with the package; in a checkout they lie beside it. The suffix may be missing.

    Raises:
        ConfigError: if there is neither such a file nor such a name.
    """
    if os.path.isfile(given):
        return Path(given)
    package = Path(__file__).resolve().parent
    folder = package / "configs"
    folder = folder if folder.is_dir() else package.parent / "configs"
    name = given.removeprefix("configs/").removesuffix(".yaml")
    beside = {str(path.with_suffix("")): path for path in Path(given).parent.glob("*.yaml")}
    configs = beside | {
        path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")
    }
    hint = "; this is a folder" if os.path.isdir(given) else did_you_mean(name, configs)
    require(name in configs, f"--config {given}: no such file or named configuration{hint}")
    return configs[name]


def check_folder(folder: str | os.PathLike[str], named: str) -> None:
    """Require that a folder can be written to or made, before the work that fills it begins.

    Raises:
        ConfigError: that begins with ``named``, the setting and its value.
    """
    path = Path(folder).absolute()
    there = next(one for one in (path, *path.parents) if one.exists())
    require(
        there.is_dir() and os.access(there, os.W_OK),
        f"{named}: {there} {'cannot be written to' if there.is_dir() else 'is a file'}; give "
        "another folder",
    )


LFS_POINTER = "{file} is a pointer of git-lfs, not the data; run `git lfs pull` in its repository"


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file only names data that git-lfs has not fetched."""
    with contextlib.suppress(OSError), path.open("rb") as stream:
        return stream.read(40).startswith(b"version https://git-lfs.github.com/")
    return False


def write_file(path: str | os.PathLike[str], parts: Iterable[str]) -> None:
    """Write text to ``path`` in UTF-8 atomically, and create its folder.

    Raises:
        OSError: if it cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.replace(write_aside(path, parts), path)


def write_aside(path: Path, parts: Iterable[str]) -> Path:
    """Write and flush a file beside ``path``, to be renamed to it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        with aside.open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(parts)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return aside


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` as indented JSON; see :func:`to_json`."""
    write_file(path, [to_json(value, indent=2), "\n"])


def to_json(value: Any, indent: int | None = None) -> str:
    """ASCII JSON, in which a lone surrogate or a NUL of a model's text is an escape.

    Numbers that are not finite become null; values that JSON lacks become strings.
    """
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def finite(value: float) -> float | None:
    """``value``, or None where it is nan or infinite."""
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, str | bool | None):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return finite(float(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)
