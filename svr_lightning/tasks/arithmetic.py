"""Countdown expressions: their exact value, and one name for all ways of writing one.

Python's parser builds the syntax tree; nothing is compiled or run. Only the nodes of the four
operations, signs and whole numbers are read.
"""

import ast
import hashlib
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate

MAX_LENGTH = 200
"""Characters of an expression; a longer one is not read."""
MAX_DEPTH = 32
"""Parentheses open at once."""

_ALLOWED = re.compile(r"[0-9+\-*/() ]+")
_LEADING_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")
_OPERATIONS: dict[type[ast.AST], Callable[..., Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


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
    return _value(_parsed(text), Fraction), [*map(int, re.findall("[0-9]+", text))]


def canonical(text: str) -> str:
    """A name that ``text`` shares with every other way of writing the same derivation.

    Two expressions are the same derivation if they have the same numbers, as many products and
    quotients, and would be equal whatever the numbers were. The value with pseudorandom integers in
    place of the numbers shows it: two different rational functions are hardly ever equal there. So
    ``a-(b-c)`` is ``a+c-b`` and ``a/(b/c)`` is ``a*c/b``, but ``4+4`` is not ``8``, ``2*(3+5)`` is
    not ``2*3+2*5``, and ``3+5-5`` is not ``3*5/5``.

    Raises:
        ExpressionError: for what :func:`evaluate` does not accept.

    Examples:
        >>> canonical("(3 + 5)*2") == canonical("2*(5+3)")
        True
    """
    _, numbers = evaluate(text)
    products = len(re.findall("[*/]", text))
    return f"{sorted(numbers)} {products} {_value(_parsed(text), _stand_in)}"


def _stand_in(number: int) -> Fraction:
    """An integer of 64 bits for a number; 0 for 0, of which every product is the same."""
    digest = hashlib.sha256(str(number).encode()).digest()
    return Fraction(int.from_bytes(digest[:8], "big") if number else 0)


def _parsed(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters")
    if not _ALLOWED.fullmatch(text):
        raise ExpressionError("characters that are not permitted, or none at all")
    if max(accumulate((c == "(") - (c == ")") for c in text)) > MAX_DEPTH:
        raise ExpressionError(f"more than {MAX_DEPTH} parentheses within each other")
    try:
        return ast.parse(_LEADING_ZEROS.sub("", text.strip()), mode="eval").body
    except SyntaxError as error:
        raise ExpressionError(str(error)) from None


def _value(node: ast.expr, number: Callable[[int], Fraction]) -> Fraction:
    if isinstance(node, ast.Constant):
        return number(node.value)  # type: ignore[arg-type]  # digits alone
    if isinstance(node, ast.UnaryOp):
        return _OPERATIONS[type(node.op)](_value(node.operand, number))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _value(node.left, number), _value(node.right, number)
        try:
            return _OPERATIONS[type(node.op)](left, right)
        except ZeroDivisionError:
            raise ExpressionError("division by zero") from None
    raise ExpressionError("something else than + - * / of numbers")
