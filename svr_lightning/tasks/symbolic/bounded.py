"""Operations whose result could be huge, refused before they are carried out."""

import sympy
from sympy import Expr, Integer

from svr_lightning.tasks.symbolic.tokens import UnreadableError

MAX_BITS = 4096
"""Of an exact number."""
MAX_EXPONENT = 1000
MAX_ROOT = 100
MAX_FACTORIAL = 300
MAX_BINOMIAL = 1000


def power(base: Expr, exponent: Expr) -> Expr:
    """``base ** exponent``.

    Raises:
        UnreadableError: for 0 to a negative power, and beyond the limits of this module: towers
            like ``9^{9^{9}}``, which no memory would hold.
    """
    if exponent.is_Rational:
        size = MAX_EXPONENT
        if base.is_Rational:
            bits = max(int(base.p).bit_length(), int(base.q).bit_length(), 1)
            size = MAX_BITS if bits == 1 else MAX_BITS // bits
        if abs(exponent.p) > size * exponent.q or exponent.q > MAX_ROOT:
            raise UnreadableError("a power that is too large")
        if base.is_zero and exponent.is_negative:
            raise UnreadableError("division by zero")
    elif any(not inner.exp.is_Rational for inner in exponent.atoms(sympy.Pow, sympy.exp)):
        raise UnreadableError("a power within the exponent of a power")
    elif exponent.is_number:
        _require_size(exponent, MAX_EXPONENT)
    return sympy.Pow(base, exponent)


def factorial(value: Expr) -> Expr:
    """``value!``.

    Raises:
        UnreadableError: beyond :data:`MAX_FACTORIAL`.
    """
    if value.is_number:
        _require_size(value, MAX_FACTORIAL)
    return sympy.factorial(value)


def binomial(above: Expr, below: Expr) -> Expr:
    """The binomial coefficient.

    Raises:
        UnreadableError: beyond :data:`MAX_BINOMIAL`.
    """
    for value in (above, below):
        if value.is_number:
            _require_size(value, MAX_BINOMIAL)
    return sympy.binomial(above, below)


def product(left: Expr, right: Expr) -> Expr:
    """``left * right``.

    Raises:
        UnreadableError: where exact numbers grow beyond :data:`MAX_BITS`.
    """
    return _checked(left * right)


def total(left: Expr, right: Expr) -> Expr:
    """``left + right``.

    Raises:
        UnreadableError: where exact numbers grow beyond :data:`MAX_BITS`.
    """
    return _checked(left + right)


def quotient(left: Expr, right: Expr) -> Expr:
    """``left / right``.

    Raises:
        UnreadableError: for a division by zero, or where exact numbers grow too large.
    """
    if right.is_zero:
        raise UnreadableError("division by zero")
    return product(left, power(right, Integer(-1)))


def _checked(value: Expr) -> Expr:
    if value.is_Rational and max(abs(value.p), value.q).bit_length() > 4 * MAX_BITS:
        raise UnreadableError("a number that is too large")
    return value


def _require_size(value: Expr, limit: int) -> None:
    size = abs(value.evalf(5))
    if not size.is_Float and not size.is_Rational:
        raise UnreadableError("a number without a size")
    if size > limit:
        raise UnreadableError("a number that is too large")
