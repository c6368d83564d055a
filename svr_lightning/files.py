"""Atomic file writes, and JSON that every reader accepts."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any


def write_file(path: str | os.PathLike[str], parts: Iterable[str]) -> None:
    """Write ASCII text to ``path`` atomically, and create its folder.

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
        with aside.open("w", encoding="ascii", newline="\n") as stream:
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
    if value is None or isinstance(value, str | bool):
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
