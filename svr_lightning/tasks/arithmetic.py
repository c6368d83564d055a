"""Exact evaluation of Countdown expressions: a small parser, rational numbers, no ``eval``."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Generic, Protocol, Self, TypeVar

MAX_LENGTH = 200
"""Characters of an expression; a longer one is not read."""
MAX_DEPTH = 32
"""Parentheses open at once."""

_ALLOWED = re.compile(r"[0-9+\-*/() ]+")
_TOKEN = re.compile(r"[0-9]+|[-+*/()]")


class ExpressionError(ValueError):
    """The text is not a permitted expression, or it has no value."""


class Operand(Protocol):
    """An operand while an expression is read: a number, or a class that behaves like one."""

    def __add__(self, other: Self, /) -> Any: ...
    def __sub__(self, other: Self, /) -> Any: ...
    def __mul__(self, other: Self, /) -> Any: ...
    def __truediv__(self, other: Self, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def __bool__(self) -> bool: ...


T = TypeVar("T", bound=Operand)


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """Evaluate an arithmetic expression over non-negative integers.

    Permitted are ASCII digits, ``+ - * / ( )`` and spaces, unary signs included. Digits with a
    space between them are two numbers, not one; ``07`` is the integer 7.

    Args:
        text: the expression, of at most :data:`MAX_LENGTH` characters.

    Returns:
        The exact value, and the integers as they occur from left to right.

    Raises:
        ExpressionError: for anything else, a division by zero included.

    Examples:
        >>> evaluate("3 * (7 + 1)")
        (Fraction(24, 1), [3, 7, 1])
    """
    return read(text, Fraction)


def read(text: str, number: Callable[[int], T]) -> tuple[T, list[int]]:
    """Compute an expression with operands of any kind; see :func:`evaluate`.

    Args:
        text: the expression.
        number: makes an operand of an integer. An operand is falsy where its value is zero.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters")
    if not _ALLOWED.fullmatch(text):
        raise ExpressionError("characters that are not permitted, or none at all")
    parser = _Parser(_TOKEN.findall(text), number)
    value = parser.sum(depth=0)
    if parser.peek():
        raise ExpressionError(f"unexpected {parser.peek()!r}")
    return value, parser.numbers


class _Parser(Generic[T]):
    """Recursive descent over tokens; the recursion is as deep as the parentheses."""

    def __init__(self, tokens: list[str], number: Callable[[int], T]) -> None:
        self._tokens = tokens
        self._number = number
        self._position = 0
        self.numbers: list[int] = []

    def peek(self) -> str:
        """The next token, or the empty string at the end."""
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def sum(self, depth: int) -> T:
        """Product, then any number of ``+ product`` and ``- product``."""
        value = self._product(depth)
        while self.peek() in ("+", "-"):
            if self._take() == "+":
                value += self._product(depth)
            else:
                value -= self._product(depth)
        return value

    def _product(self, depth: int) -> T:
        value = self._factor(depth)
        while self.peek() in ("*", "/"):
            if self._take() == "*":
                value *= self._factor(depth)
            else:
                divisor = self._factor(depth)
                if not divisor:
                    raise ExpressionError("division by zero")
                value /= divisor
        return value

    def _factor(self, depth: int) -> T:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self._take() == "-"
        value = self._atom(depth)
        return -value if negative else value

    def _atom(self, depth: int) -> T:
        symbol = self._take()
        if symbol == "(":
            if depth >= MAX_DEPTH:
                raise ExpressionError(f"more than {MAX_DEPTH} parentheses within each other")
            value = self.sum(depth + 1)
            if self._take() != ")":
                raise ExpressionError("a parenthesis that is not closed")
            return value
        if not symbol.isdigit():
            raise ExpressionError(f"{symbol!r} where a number should stand")
        self.numbers.append(int(symbol))
        return self._number(self.numbers[-1])

    def _take(self) -> str:
        token = self.peek()
        self._position += 1
        return token
