"""Ranges of settings: declared at the field, checked when the object is made.

A dataclass calls :func:`check_fields` when it is made, and its subclasses inherit that::

    @dataclass(frozen=True, kw_only=True)
    class Loss:
        beta: NotNegative = 0.08
        level: Literal["token", "sequence"] = "token"

        def __post_init__(self) -> None:
            check_fields(self)

    Loss(beta=-1.0)  # ConfigError: beta=-1.0 must be at least 0

One that also relates fields to each other calls it first, then :func:`require_field`. The
``__init__`` of other classes takes :func:`check_arguments` as a decorator. None lies in every
range. On the command line the message begins with the field's section of the configuration.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache, wraps
from inspect import get_annotations, signature
from numbers import Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, Union, get_args, get_origin

P = ParamSpec("P")


class ConfigError(ValueError):
    """Something from outside is wrong: a configuration, a data set, a checkpoint, a folder."""


class FieldError(ConfigError):
    """A field has a value that it cannot have.

    Attributes:
        name: the field.
        settings: all fields of its object and their values, by which a configuration finds it.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], wanted: str) -> None:
        super().__init__(f"{name}={settings[name]!r} {wanted}")
        self.name = name
        self.settings = settings


class Range:
    """An interval, such as ``[0, 1]`` or ``(0, inf]``; of a sequence it holds every element.

    Args:
        text: the interval, as in mathematics.
        unit: what is counted, for messages.
    """

    def __init__(self, text: str, unit: str = "") -> None:
        self._low, self._high = map(float, text[1:-1].split(","))
        self._includes_low = text[0] == "["
        self._includes_high = text[-1] == "]"
        words = f"in {text}"
        if self._high == math.inf:
            words = f"{'at least' if self._includes_low else 'above'} {self._low:g}"
        self._words = f"{words} {unit}".strip()

    def __repr__(self) -> str:
        return self._words

    def fault(self, value: Any) -> str | None:
        """What ``value`` must be; None if it is."""
        values = value if isinstance(value, list | tuple) else [value]
        if all(isinstance(number, Real) and self._holds(float(number)) for number in values):
            return None
        return f"must {'lie' if self._words.startswith('in ') else 'be'} {self._words}"

    def _holds(self, number: float) -> bool:
        above = number >= self._low if self._includes_low else number > self._low
        below = number <= self._high if self._includes_high else number < self._high
        return above and below


Count = Annotated[int, Range("[1, inf]")]
NotNegative = Annotated[float, Range("[0, inf]")]
Positive = Annotated[float, Range("(0, inf]")]
Share = Annotated[float, Range("[0, 1]")]
WholeNumber = Annotated[int, Range("[0, inf]")]


def require(condition: bool, message: str) -> None:
    """Raise :class:`ConfigError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message)


def require_field(settings: object, name: str, condition: bool, wanted: str) -> None:
    """Raise :class:`FieldError` about the field ``name`` unless ``condition`` holds."""
    if not condition:
        raise FieldError(name, vars(settings), wanted)


def check_fields(settings: Any) -> None:
    """Hold the fields of an object to the ranges and literals in their annotations.

    Raises:
        FieldError: naming one that is outside.
    """
    _check(_constraints(type(settings)), vars(settings))  # type: ignore[arg-type]


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
        _check(_constraints(init), given.arguments)
        init(*args, **kwargs)

    return checked


Fault = Callable[[Any], str | None]
"""What a value must be; None if it is."""


def _check(constraints: Mapping[str, Fault], values: Mapping[str, Any]) -> None:
    for name, fault in constraints.items():
        value = values.get(name)
        if value is not None and (wanted := fault(value)):
            raise FieldError(name, values, wanted)


@cache
def _constraints(annotated: Any) -> Mapping[str, Fault]:
    """By the names of a class's fields or a function's arguments; bases first.

    A field that a subclass declares again without a constraint keeps its own.
    """
    found = {}
    for part in reversed(getattr(annotated, "__mro__", (annotated,))):
        try:
            hints = get_annotations(part, eval_str=True)
        except NameError:  # a name that only a type checker imports
            hints = get_annotations(part)
        for name, hint in hints.items():
            if constraint := _constraint(hint):
                found[name] = constraint
    return found


def _constraint(hint: Any) -> Fault | None:
    """The constraint of an annotation; of ``X | None`` that of X."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated:
        return next((part.fault for part in arguments if isinstance(part, Range)), None)
    if origin is Literal:
        return lambda value: None if value in arguments else f"must be one of {_joined(arguments)}"
    if origin in (Union, UnionType):
        others = [part for part in arguments if part is not NoneType]
        return _constraint(others[0]) if len(others) == 1 else None
    return None


def _joined(choices: tuple[Any, ...]) -> str:
    return ", ".join(map(str, choices))
