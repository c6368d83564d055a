"""Countdown expressions: their exact value, and one spelling for all ways of writing one.

Python's parser builds the syntax tree; nothing is compiled or run. Only the nodes of the four
operations, signs and whole numbers are read.

Two expressions are the same derivation if they become equal by exchanging the operands of ``+``
and ``*``, by moving parentheses within a sum or within a product, and by the rules of signs.
Subtraction adds the negated operand, and division multiplies by the inverse, so ``a-(b-c)`` is
``a+c-b`` and ``a/(b/c)`` is ``a*c/b``. Nothing is multiplied out and no number disappears:
``2*(3+5)`` and ``2*3+2*5`` are different, and so are ``4+4`` and ``8``.
"""

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

MAX_LENGTH = 200
"""Characters of an expression; a longer one is not read."""
MAX_DEPTH = 32
"""Parentheses open at once."""

_ALLOWED = re.compile(r"[0-9+\-*/() ]+")
_LEADING_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")
_OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_SIGNS = {1: "+", 0: "+", -1: "-"}


class ExpressionError(ValueError):
    """The text is not a permitted expression, or it has no value."""


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
    return _compute(text, Fraction), [int(digits) for digits in re.findall("[0-9]+", text)]


def canonical(text: str) -> str:
    """The spelling that ``text`` shares with every other way of writing the same derivation.

    Raises:
        ExpressionError: for what :func:`evaluate` does not accept.

    Examples:
        >>> canonical("(3 + 5)*2") == canonical("2*(5+3)")
        True
        >>> canonical("7 - (1 - 4)/2")
        '(-(+1-4)/2+7)'
    """
    evaluate(text)  # refuses a division by zero, of which a spelling knows nothing
    spelling: str = _compute(text, _number).spelling
    return spelling


def _compute(text: str, number: Callable[[int], Any]) -> Any:
    """Compute an expression with whatever ``number`` makes of each integer."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters")
    if not _ALLOWED.fullmatch(text):
        raise ExpressionError("characters that are not permitted, or none at all")
    if max(accumulate((c == "(") - (c == ")") for c in text)) > MAX_DEPTH:
        raise ExpressionError(f"more than {MAX_DEPTH} parentheses within each other")

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return number(node.value)  # type: ignore[arg-type]  # digits alone
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](value(node.operand))
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        raise ExpressionError("something else than + - * / of numbers")

    try:
        return value(ast.parse(_LEADING_ZEROS.sub("", text.strip()), mode="eval").body)
    except SyntaxError as error:
        raise ExpressionError(str(error)) from None
    except ZeroDivisionError:
        raise ExpressionError("division by zero") from None


@dataclass(frozen=True, slots=True)
class _Normal:
    """An expression in normal form, as a sum of terms and as a product of factors at once.

    A sign is 1 or -1. It is 0 for an expression that is spelt like its negative, as ``0`` and
    ``3-3``, whose value is zero.
    """

    terms: tuple[tuple[str, int], ...]
    """Spelling and sign of each summand, in order; a number or a product is one summand."""
    sign: int
    above: tuple[str, ...]
    """Factors, in order, each spelt without a sign; a sum is one factor."""
    below: tuple[str, ...]
    """Factors that are divided by, in order, each spelt without a sign."""

    def __add__(self, other: "_Normal") -> "_Normal":
        return _sum((*self.terms, *other.terms))

    def __sub__(self, other: "_Normal") -> "_Normal":
        return self + -other

    def __mul__(self, other: "_Normal") -> "_Normal":
        return _product(
            self.sign * other.sign,
            (*self.above, *other.above),
            (*self.below, *other.below),
        )

    def __truediv__(self, other: "_Normal") -> "_Normal":
        return _product(
            self.sign * other.sign,
            (*self.above, *other.below),
            (*self.below, *other.above),
        )

    def __neg__(self) -> "_Normal":
        return _Normal(_negated(self.terms), -self.sign, self.above, self.below)

    def __pos__(self) -> "_Normal":
        return self

    @property
    def spelling(self) -> str:
        """A sum in parentheses, or a number or product, with a sign only if that is a minus."""
        if len(self.terms) > 1:
            return _spelt(self.terms)
        return ("-" if self.sign < 0 else "") + self.terms[0][0]


def _number(value: int) -> _Normal:
    spelling, sign = str(value), int(value != 0)
    return _Normal(((spelling, sign),), sign, (spelling,), ())


def _sum(terms: tuple[tuple[str, int], ...]) -> _Normal:
    terms = tuple(sorted(terms))
    here, there = _spelt(terms), _spelt(_negated(terms))
    sign = (here < there) - (here > there)
    return _Normal(terms, sign, (min(here, there),), ())


def _product(sign: int, above: tuple[str, ...], below: tuple[str, ...]) -> _Normal:
    above, below = tuple(sorted(above)), tuple(sorted(below))
    spelling = "*".join(above) + "".join(f"/{factor}" for factor in below)
    return _Normal(((spelling, sign),), sign, above, below)


def _negated(terms: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((spelling, -sign) for spelling, sign in terms))


def _spelt(terms: tuple[tuple[str, int], ...]) -> str:
    return "(" + "".join(f"{_SIGNS[sign]}{spelling}" for spelling, sign in terms) + ")"
