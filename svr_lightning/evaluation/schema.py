"""Reading files with one JSON record per line; a faulty one is named by its line."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from svr_lightning.errors import ConfigError

MOST = 2**31 - 1
"""No count is greater: what adds counts up has room for them."""

Fields = Mapping[str, tuple[Callable[[Any], bool], str]]
"""By name, what accepts a field's value, and what the value must be, in words."""


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
    """A whole number from 0 to :data:`MOST`; true and false are none."""
    return type(value) is int and 0 <= value <= MOST


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
