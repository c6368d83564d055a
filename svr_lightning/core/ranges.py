"""Ranges of settings: declared at the field with msgspec, checked when the object is made.

A dataclass is :class:`Checked` when it is made, and its subclasses inherit that::

    @dataclass(frozen=True, kw_only=True)
    class Loss(Checked):
        beta: NotNegative = 0.08
        level: Literal["token", "sequence"] = "token"
        margin: Annotated[float, Meta(gt=0, le=1)] = 0.5

    Loss(beta=-1.0)  # ConfigError: beta=-1.0 must be at least 0

One that also relates fields to each other calls :func:`check_fields` first, then
:func:`require_field`. The ``__init__`` of other classes takes :func:`check_arguments` as a
decorator. On the command line the message begins with the field's section of the configuration.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from inspect import signature
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Meta, ValidationError, convert

P = ParamSpec("P")
_BOUND = re.compile(r"Expected `\w+` (?P<sign>[<>]=?) (?P<limit>[-0-9.]+)")
_WORDS = {">=": "at least", ">": "above", "<=": "at most", "<": "below"}

Coefficient = Annotated[float, Meta(ge=-1e6, le=1e6)]
MAX_COUNT = 2**31 - 1
"""No count is larger, so that sums of them fit 64 bits."""
Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Endless = Annotated[float, Meta(gt=0)]
"""A limit that may be infinite: it then limits nothing."""
NotNegative = Annotated[float, Meta(ge=0, le=1e9)]
Positive = Annotated[float, Meta(gt=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
WholeNumber = Annotated[int, Meta(ge=0)]


class ConfigError(ValueError):
    """A fault that the user can fix: in a configuration, a data set, a checkpoint or a folder."""


class FieldError(ConfigError):
    """A field has a value that it cannot have.

    Attributes:
        name: the field.
        settings: all fields of its object and their values, by which a configuration finds it.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], requirement: str) -> None:
        super().__init__(f"{name}={settings[name]!r} {requirement}")
        self.name = name
        self.settings = settings


def require(condition: bool, message: str) -> None:
    """Raise :class:`ConfigError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message)


def require_field(settings: object, name: str, condition: bool, requirement: str) -> None:
    """Raise :class:`FieldError` about the field ``name`` unless ``condition`` holds."""
    if not condition:
        raise FieldError(name, vars(settings), requirement)


def check_fields(settings: Any) -> None:
    """Hold the fields of an object to the ranges and literals in their annotations.

    Raises:
        FieldError: naming one that is outside.
    """
    _check(type(settings), vars(settings))


@dataclass(frozen=True)
class Checked:
    """Base of a dataclass whose fields are held to their ranges when it is made.

    A dataclass itself: else the configuration would name classes derived from it.
    """

    def __post_init__(self) -> None:
        check_fields(self)


def check_arguments(init: Callable[P, None]) -> Callable[P, None]:
    """Hold the arguments of a function to the ranges and literals in their annotations.

    Raises:
        FieldError: from a call with one that is outside.
    """
    parameters = signature(init)

    @wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        given = parameters.bind(*args, **kwargs)
        given.apply_defaults()
        _check(init, given.arguments)
        init(*args, **kwargs)

    return checked


def _check(annotated: Any, values: Mapping[str, Any]) -> None:
    for name, hint in _constrained(annotated).items():
        value = values[name]
        try:
            if not _is_own(hint):
                convert(float(value) if isinstance(value, float) else value, hint)  # numpy's is one
            elif not isinstance(value, hint):
                raise FieldError(name, values, f"must be {getattr(hint, '__name__', hint)}")
        except ValidationError as error:
            raise FieldError(name, values, f"must be {_required(hint, str(error))}") from error


def _required(hint: Any, refusal: str) -> str:
    """What a value must be, from msgspec's refusal of another one."""
    for part in _parts(hint):
        if get_origin(part) is Literal:
            return "one of " + ", ".join(get_args(part))
    bound = _BOUND.match(refusal)
    if bound:
        return f"{_WORDS[bound['sign']]} {float(bound['limit']):g}"
    return refusal.removeprefix("Expected ").replace("`", "")


@cache
def _constrained(annotated: Any) -> dict[str, Any]:
    """The checked hints of a class's fields or a function's arguments.

    These are plain values, classes of this package, and what says more than a type.
    """
    hints = get_type_hints(annotated, include_extras=True)
    return {
        name: hint
        for name, hint in hints.items()
        if hint in (bool, float, int, str)
        or _is_own(hint)
        or any(get_origin(part) in (Annotated, Literal) for part in _parts(hint))
    }


def _is_own(hint: Any) -> bool:
    """Whether a hint is a class of this package, or a union with one: values must be instances."""
    return isinstance(hint, type | UnionType) and any(
        isinstance(part, type) and part.__module__.startswith("svr_lightning.")
        for part in _parts(hint)
    )


def _parts(hint: Any) -> tuple[Any, ...]:
    """A hint, and its parts: those of a union or of a tuple."""
    return (hint, *get_args(hint))
