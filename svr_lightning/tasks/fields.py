"""Reading and checking the fields of data set rows.

Every fault is a ValueError of one line that names the field and what it holds.
"""

import math
import numbers
import re
from typing import Any

from svr_lightning.tasks.base import Row

ID_COLUMN = ("id", "unique_id", "problem_idx")
"""Names the problem; without one it is numbered."""
ABSENT = {"nan", "NaN", "-nan", "-NaN", "NA", "N/A", "n/a", "#NA", "#N/A", "<NA>"}
ABSENT |= {"None", "null", "NULL", "[]"}
"""What tables write for a missing answer, in these spellings; ``none`` may be an answer."""

_LOST_BACKSLASH = re.compile(
    r"""
    (?:
    [\x00-\x08\x0b\x0c\x0e-\x1f\x7f]  # \boxed, \frac and others, with the first letter lost as well
    |\t(?=(?:heta|imes|ext|au|frac|binom|riangle[a-z]*|herefore|ilde)(?![a-z]))
    |\t(?=(?:anh?|o)(?:\ ?[\\({^0-9-]|\ [a-z](?![a-z])))
    |\n(?=(?:abla|eqq?|ot(?:in)?|geq|leq|cong|su[bp]seteq|[ew]arrow)(?![a-z])|e\ [0-9])
    |^\t(?=ext[a-z]{2}\{)                 # within a text, MATH has one
    |(?:^|(?<=[{^])|(?<=[^\\][(\[])|(?<=(?<!\$)\$))\n(?=u(?![a-z]))  # a line may begin with u
    |\r(?=(?:ight[a-z]*|angle|floor|ceil|brace|[vV]ert|ho|m|oot)(?![a-z]))
    )
    (?=(?P<rest>[A-Za-z]*))
    """,
    re.VERBOSE,
)
"""A character that JSON or Python makes of a backslash and a letter, as in ``"\\frac"``."""
_LETTERS = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r"}
_QUOTED = re.compile(
    r"""
    (?P<quote>["'`])(?P<straight>[^"'`]+)(?P=quote)
    |\u201c(?P<curly>[^\u201c\u201d]+)\u201d
    """,
    re.VERBOSE,
)
_LIST = re.compile(r"\[(?P<items>.*)\]", re.DOTALL)
_LIST_ITEM = re.compile(
    r"""
    \s*
    (?P<quote>["'])
    (?P<text>(?:[^"'\\]|\\.|(?!(?P=quote))["'])*)
    (?P=quote)
    \s*(?:,|$)
    """,
    re.VERBOSE | re.DOTALL,
)


def text_field(row: Row, *names: str) -> str:
    """The non-blank string in the first of ``names`` that the row holds."""
    name = present(row, *names)
    value = row[name]
    if isinstance(value, str) and value.strip():
        _refuse_lost_backslash(value, name)
        return value
    raise ValueError(f"field {name!r} must be text that is not blank, not {shown(value)}")


def integer(value: Any, name: str) -> int:
    """``value`` as an int; text of digits and an integral float are taken, a bool never is."""
    number = isinstance(value, (numbers.Integral, float)) and not isinstance(value, bool)
    if number and value % 1 == 0:
        return int(value)
    if isinstance(value, str) and re.fullmatch("[+-]?[0-9]{1,18}", value.strip()):
        return int(value)
    raise ValueError(f"field {name!r}: {shown(value)} is not an integer")


def answer_texts(row: Row, name: str) -> list[str]:
    """The gold answer, or each of a list of them, as text without outer space.

    A list may be written as text, ``["1", "2"]``. Numbers are written out, ``27.0`` as ``27``; what
    is missing, blank or one of :data:`ABSENT` is ``""``.
    """
    value = row.get(name)
    if isinstance(value, str):
        value = _items(value)
    several = value if isinstance(value, list | tuple) else [value]
    return [_written(item, name) for item in several]


def _unquoted(text: str) -> str:
    """A text without quotes around all of it."""
    quoted = _QUOTED.fullmatch(text)
    return text if quoted is None else str(quoted["straight"] or quoted["curly"]).strip()


def _items(text: str) -> list[str]:
    """The texts of a written list of quoted texts; the text itself if it is none.

    A list of numbers without quotes stays as it is: ``[1, 2]`` may be an interval.
    """
    written = _LIST.fullmatch(text.strip())
    if written is None:
        return [text]
    items = []
    position = 0
    while position < len(written["items"]):
        item = _LIST_ITEM.match(written["items"], position)
        if item is None:
            return [text]
        items.append(item["text"])
        position = item.end()
    return items or [text]


def _refuse_lost_backslash(text: str, name: str) -> None:
    """Refuse what JSON makes of a single backslash: no answer could equal it.

    Raises:
        ValueError: naming the field and how to write it.
    """
    lost = _LOST_BACKSLASH.search(text)
    if lost is None:
        return
    code = f"U+{ord(lost[0]):04X}"
    letter = _LETTERS.get(lost[0])
    if letter is None:
        raise ValueError(f"field {name!r} holds the control character {code}; remove it")
    command = letter + lost["rest"]
    raise ValueError(
        f"field {name!r} holds the control character {code}: the backslash of \\{command} was "
        f'lost; in JSON, write "\\\\{command}"'
    )


def row_id(row: Row) -> str:
    """The row's own id as text, or ``""``: the data module then numbers it."""
    for name in ID_COLUMN:
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
    either = " or ".join(repr(name) for name in names)
    raise ValueError(f"missing field {either}; the row has {sorted(map(str, row))}")


def _written(value: Any, name: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        _refuse_lost_backslash(value, name)
        text = _unquoted(value.strip())
        return "" if text in ABSENT else text
    if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
        return repr(value)
    if isinstance(value, int | float | numbers.Integral):
        return str(integer(value, name))
    raise ValueError(f"field {name!r} must be text or a number, not {shown(value)}")


def shown(value: Any) -> str:
    """``repr`` on one line, shortened: for error messages."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
