"""Files of JSON: written whole or not at all, read line by line with faults named."""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from svr_lightning.errors import ConfigError

Fields = Mapping[str, tuple[Callable[[Any], bool], str]]
"""By name, what accepts a field's value, and what the value must be, in words."""


def to_json(value: Any, indent: int | None = None) -> str:
    """ASCII JSON, in which a lone surrogate or a NUL of a model's text is an escape.

    What is not finite becomes null; what JSON does not know becomes a string.
    """
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def write_json(path: Path, value: Any) -> dict[str, Any]:
    """Write one object, indented, replacing the file as a whole; returns it as it reads back.

    Raises:
        OSError: if the file cannot be written; what was there stays.
    """
    text = to_json(value, indent=2)
    os.replace(write_aside(path, [text, "\n"]), path)
    restored: dict[str, Any] = json.loads(text)
    return restored


def write_aside(path: Path, parts: Iterable[str]) -> Path:
    """Write a file beside ``path``, on disk when this returns, to be renamed into its place."""
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


def read_lines(path: Path, check: Callable[[Any], None], wanted: str) -> list[dict[str, Any]]:
    """Read a file with one record per problem in each line that is not blank.

    Args:
        path: the file.
        check: raises ValueError for what is no record. A record has a ``dataset`` and an ``id``.
        wanted: the name of such a file, for the message where there is none.

    Raises:
        ConfigError: naming the file and the line that is no record or repeats one.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a {wanted}") from error
    records: list[dict[str, Any]] = []
    first_line: dict[tuple[str, str], int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = _parse(line)
            check(record)
            key = (record["dataset"], record["id"])
            if first_line.setdefault(key, number) != number:
                raise ValueError(f"repeats {key[0]}/{key[1]} of line {first_line[key]}")
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number}: {error}; mend or remove the line") from error
        records.append(record)
    return records


def check_fields(value: Any, fields: Fields, what: str) -> None:
    """Raise ValueError unless ``value`` is an object with these fields, naming the faulty one."""
    if not isinstance(value, dict):
        raise ValueError(f"the {what} is no JSON object")
    for name, (accepts, wanted) in fields.items():
        if name not in value:
            raise ValueError(f"the {what} has no {name!r}")
        if not accepts(value[name]):
            raise ValueError(f"{name!r} of the {what} must be {wanted}")


def is_count(value: Any) -> bool:
    """A whole number from 0; true and false are none."""
    return type(value) is int and value >= 0


def is_share(value: Any) -> bool:
    """A number in [0, 1]."""
    return type(value) in (int, float) and 0 <= value <= 1


def is_text(value: Any) -> bool:
    """A string."""
    return isinstance(value, str)


def is_flag(value: Any) -> bool:
    """True or false."""
    return isinstance(value, bool)


def is_list(value: Any) -> bool:
    """A list."""
    return isinstance(value, list)


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON ({error.msg} at column {error.colno})") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)
