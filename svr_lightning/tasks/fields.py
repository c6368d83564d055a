"""Reading and checking the fields of data set rows.

Every fault is a ValueError of one line that names the field and what it holds.
"""

import math
import numbers
import re
from typing import Any

from svr_lightning.tasks.base import Column, Row

ID_COLUMN = Column(
    ("id", "unique_id", "problem_idx"), "names the problem; numbered if absent", required=False
)


def text_field(row: Row, *names: str) -> str:
    """The non-blank string in the first of ``names`` that the row holds."""
    name = present(row, *names)
    value = row[name]
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError(f"field {name!r} must be text that is not blank, not {shown(value)}")


def integer(value: Any, name: str) -> int:
    """``value`` as an int; text of digits and an integral float are taken, a bool never is."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch("[+-]?[0-9]{1,18}", value.strip()):
        return int(value)
    raise ValueError(f"field {name!r}: {shown(value)} is not an integer")


def answer_texts(row: Row, name: str) -> list[str]:
    """The gold answer, or each of a list of them, as text without outer space.

    Numbers are written out, ``27.0`` as ``27``; what is missing or blank is ``""``.
    """
    value = row.get(name)
    several = value if isinstance(value, list | tuple) else [value]
    return [_written(one, name) for one in several]


def row_id(row: Row) -> str:
    """The row's own id as text, or ``""``: the data module then numbers it."""
    for name in ID_COLUMN.names:
        value = row.get(name)
        if value is None:
            continue
        if isinstance(value, str):
            return value.strip()
        return str(integer(value, name))
    return ""


def present(row: Row, *names: str) -> str:
    """The first of ``names`` whose value is there and not None."""
    for name in names:
        if row.get(name) is not None:
            return name
    wanted = " or ".join(repr(name) for name in names)
    raise ValueError(f"missing field {wanted}; the row has {sorted(map(str, row))}")


def _written(value: Any, name: str) -> str:
    if value is None or isinstance(value, str):
        return (value or "").strip()
    if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
        return repr(value)
    if isinstance(value, int | float | numbers.Integral):
        return str(integer(value, name))
    raise ValueError(f"field {name!r} must be text or a number, not {shown(value)}")


def shown(value: Any) -> str:
    """``repr`` on one line, shortened: for error messages."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
