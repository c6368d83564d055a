"""Faults shown to the user: one line that says what is wrong, where, and how to fix it."""

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from svr_lightning.core.ranges import ConfigError as ConfigError
from svr_lightning.core.ranges import require as require


@contextmanager
def as_config_error(where: str = "") -> Iterator[None]:
    """Within it, a ValueError is a fault of the user's, whose message begins with ``where``."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{where}{error}") from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'NAME'?`` if something known is close to ``name``, else nothing.

    Dotted names are compared by their last part, first those of the same section.
    """
    section, _, last = name.rpartition(".")
    ordered = sorted(known, key=lambda other: other.rpartition(".")[0] == section)
    by_last = {other.rpartition(".")[2]: other for other in ordered}
    close = difflib.get_close_matches(last, by_last, n=1)
    return f"; did you mean {by_last[close[0]]!r}?" if close else ""


def program() -> str:
    """The program that the user called: ``svr``, or ``python -m svr_lightning``."""
    as_module = Path(sys.argv[0]).parts[-2:] == ("svr_lightning", "__main__.py")
    return "python -m svr_lightning" if as_module else "svr"


def error_line(message: str) -> str:
    """What a command prints on standard error about a fault that the user can fix.

    A very long word, such as a path of 50,000 characters, is cut to its two ends, and so is a very
    long message, such as one that shows a value of many words.
    """
    shown = re.sub(r"(\S{99})\S{300,}(\S{99})", r"\1...\2", printable(message))
    shown = re.sub("^(.{1000}).{700,}(.{300})$", r"\1...\2", shown)
    return f"{program()}: error: {shown}"


def printable(text: str) -> str:
    """On one line, control characters shown as '?'."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def one_line(message: object) -> str:
    """Another library's message on one line: shortened, control characters shown as '?'."""
    text = printable(str(message))
    return text if len(text) <= 300 else f"{text[:297]}..."


def field_error(error: Exception, whole: str, kind: Any = None) -> str:
    """A refusal of msgspec as ``FIELD: REASON``, with the values or fields that it does accept.

    Args:
        error: msgspec's.
        whole: what the message calls the value as a whole.
        kind: the type of that value.
    """
    reason, _, path = printable(str(error)).rpartition(" - at `$")
    if not reason:  # it is about the value as a whole
        reason, path = path, ""
    place = one_line(path.strip("`.")) or whole
    rejected = _REJECTED.fullmatch(reason)
    taken = []
    if rejected and kind is not None:
        steps = re.findall(r"\w+|\[", re.sub(r"\[.*?\]", "[", path))
        taken = _taken_at(kind, steps)
    if not rejected or not taken:
        return f"{place}: {one_line(reason)}"
    value = rejected[rejected.lastindex or 0][:100]
    return f"{place}: {value!r} is not one of {', '.join(taken)}{did_you_mean(value, taken)}"


_REJECTED = re.compile(
    r"Invalid enum value '?(?P<value>.*?)'?|Object contains unknown field `(?P<name>.*)`"
)


def _taken_at(kind: Any, steps: Sequence[str]) -> list[str]:
    """The fields or literal values that a type accepts after some steps into it.

    A step is the name of a field, or ``[`` for the items of a list.
    """
    from msgspec import inspect

    kind = kind if isinstance(kind, inspect.Type) else inspect.type_info(kind)
    if isinstance(kind, inspect.Metadata):
        kind = kind.type
    taken = []
    for choice in getattr(kind, "types", (kind,)):
        inside = {field.encode_name: field.type for field in getattr(choice, "fields", ())}
        if not steps:
            taken += [str(name) for name in getattr(choice, "values", inside)]
        inside["["] = getattr(choice, "item_type", None)
        if steps and inside.get(steps[0]) is not None:
            taken += _taken_at(inside[steps[0]], steps[1:])
    return taken


def format_exception(error: BaseException) -> str:
    """An error's type and message on one line, for errors whose message alone says too little."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
