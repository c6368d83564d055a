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

Terms = list[tuple[str, int]]
"""The summands of a sum, each by the spelling and the sign of its product.

A sign is 1 or -1. It is 0 for what is spelt like its negative, as ``0`` and ``3-3``, which is zero.
"""


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
    tree = _parsed(text)
    try:
        value = _value(tree)
    except ZeroDivisionError:
        raise ExpressionError("division by zero") from None
    return value, [int(digits) for digits in re.findall("[0-9]+", text)]


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
    terms = _terms(_parsed(text))
    if len(terms) > 1:
        return _spelt(terms)
    spelling, sign = terms[0]
    return "-" * (sign < 0) + spelling


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


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant):
        return Fraction(node.value)  # type: ignore[arg-type]  # digits alone
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ExpressionError("something else than + - * / of numbers")


def _terms(node: ast.expr) -> Terms:
    """An expression as a sum, in order; a number or a product is one summand."""
    if isinstance(node, ast.UnaryOp):
        terms = _terms(node.operand)
        return _negated(terms) if isinstance(node.op, ast.USub) else terms
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        right = _terms(node.right)
        right = _negated(right) if isinstance(node.op, ast.Sub) else right
        return sorted(_terms(node.left) + right)
    sign, above, below = _factors(node)
    return [("*".join(sorted(above)) + "".join(f"/{one}" for one in sorted(below)), sign)]


def _factors(node: ast.expr) -> tuple[int, list[str], list[str]]:
    """An expression as a product: its sign, and the factors above and below the line.

    Factors are spelt without a sign; a sum is one factor.
    """
    if isinstance(node, ast.Constant):
        return int(node.value != 0), [str(node.value)], []
    if isinstance(node, ast.UnaryOp):
        sign, above, below = _factors(node.operand)
        return (-sign if isinstance(node.op, ast.USub) else sign), above, below
    assert isinstance(node, ast.BinOp)
    if isinstance(node.op, ast.Mult | ast.Div):
        sign, above, below = _factors(node.left)
        other, *parts = _factors(node.right)
        more, less = parts if isinstance(node.op, ast.Mult) else reversed(parts)
        return sign * other, above + more, below + less
    terms = _terms(node)
    here, there = _spelt(terms), _spelt(_negated(terms))
    return (here < there) - (here > there), [min(here, there)], []


def _negated(terms: Terms) -> Terms:
    return sorted((spelling, -sign) for spelling, sign in terms)


def _spelt(terms: Terms) -> str:
    return "(" + "".join(f"{'-' if sign < 0 else '+'}{one}" for one, sign in terms) + ")"
