r"""Mathematical equality of two answers as read.

Two terms are equal if their values agree to 30 digits at four fixed points, signs mixed, where
each variable has a value of its own that its name alone decides. A polynomial identity that fails
would need to vanish at a point drawn without regard to it; nothing is simplified, so that no
simplification can run away or give up.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import mpmath
from sympy import Expr, Float, Symbol

from svr_lightning.tasks.latex import TOLERANCE
from svr_lightning.tasks.symbolic.answers import (
    Answer,
    Items,
    Matrix,
    Relation,
    Scalar,
    Words,
    as_interval,
    read_answer,
)
from svr_lightning.tasks.symbolic.tokens import UnreadableError

DIGITS = 30
_MP = mpmath.MPContext()
_MP.dps = DIGITS + 5
RELATIVE = 1e-3
"""A decimal must also be this close in proportion, or 0 would stand for every small number."""
EXACT_NUMBER, EXACT_TERM = _MP.mpf(10) ** -24, _MP.mpf(10) ** -12
"""Relative, between values that are equal but for rounding; with variables digits may cancel."""
_SIGNS = ((1, 1), (1, 1), (-1, -1), (1, -1))
_FLIPPED = {">": "<", "\\geq": "\\leq"}

Values = tuple[Any | None, ...]
"""The value of a term at each point; None where it has none."""


def equal_answers(answer: str, reference: str) -> bool:
    r"""Whether an answer is mathematically equal to a reference; False where one is not read.

    Example:
        >>> equal_answers(r"\sqrt{12}", r"2\sqrt{3}")
        True
    """
    try:
        left, right = read_answer(answer), read_answer(reference)
        return same(left.value, right.value) or _same_share(left, right)
    except (
        UnreadableError,
        RecursionError,
        ArithmeticError,
        ValueError,
        TypeError,
        AttributeError,
    ):
        # sympy raises the last three, and more kinds of ArithmeticError than one, on terms
        # that have no value: such an answer equals nothing.
        return False


def same(left: Any, right: Any) -> bool:
    """Whether two values, of whatever kind, are the same."""
    if isinstance(left, Relation) and isinstance(right, Relation):
        return _same_relations(left, right)
    if isinstance(left, Relation) or isinstance(right, Relation):
        return (
            _relation_is(left, right) if isinstance(left, Relation) else _relation_is(right, left)
        )
    if isinstance(left, Words) or isinstance(right, Words):
        return bool(left == right)
    if isinstance(left, Items) or isinstance(right, Items):
        return _same_items(left, right)
    if isinstance(left, Matrix) or isinstance(right, Matrix):
        return _same_matrices(left, right)
    return _same_scalars(left, right)


def _same_share(left: Answer, right: Answer) -> bool:
    """``50%`` and ``0.5``: of two numbers one with a percent sign, that one is in hundredths."""
    if left.percent == right.percent:
        return False
    share, other = (left, right) if left.percent else (right, left)
    if not isinstance(share.value, Scalar) or not isinstance(other.value, Scalar):
        return False
    return _same_scalars(Scalar(share.value.expression / 100, share.value.decimal), other.value)


def _same_items(left: Any, right: Any) -> bool:
    if not isinstance(left, Items) or not isinstance(right, Items):
        items, other = (left, right) if isinstance(left, Items) else (right, left)
        return items.kind == "set" and len(items.items) == 1 and same(items.items[0], other)
    kinds = {left.kind, right.kind}
    if kinds <= {"list", "set"}:
        names = [_names(side.items) for side in (left, right)]
        if (names[0] is None) != (names[1] is None):
            return _each_same(left.items, right.items)
        return _matching(left.items, right.items)
    if kinds <= {"list", "union"}:
        return _matching(left.items, right.items)
    if kinds == {"list", "()"}:
        listed = left if left.kind == "list" else right
        return _names(listed.items) is not None and _each_same(left.items, right.items)
    return left.kind == right.kind and _each_same(left.items, right.items)


def _names(items: Sequence[Any]) -> list[str] | None:
    """The names in ``x = 1, y = 2`` if all are named, and differently: their order then counts."""
    names = [item.name for item in items if isinstance(item, Relation) and item.name]
    return names if len(set(names)) == len(items) > 1 else None


def _each_same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) == len(right) and all(map(same, left, right))


def _matching(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether each item of one is an item of the other, in whatever order."""
    rest = list(right)
    if len(left) != len(rest):
        return False
    for item in left:
        for index, candidate in enumerate(rest):
            if same(item, candidate):
                del rest[index]
                break
        else:
            return False
    return True


def _same_matrices(left: Any, right: Any) -> bool:
    if not isinstance(left, Matrix) or not isinstance(right, Matrix):
        return False
    return len(left.rows) == len(right.rows) and all(map(_each_same, left.rows, right.rows))


def _relation_is(relation: Relation, other: Any) -> bool:
    """``x = 2`` is 2, ``x = 4/2 = 2`` too; ``x > 2`` is an interval."""
    if set(relation.operators) <= {"=", "\\in"}:
        return all(same(side, other) for side in relation.sides[bool(relation.name) :])
    interval = as_interval(relation)
    return interval is not None and isinstance(other, Items) and _same_items(interval[1], other)


def _same_relations(left: Relation, right: Relation) -> bool:
    if left.name and left.name == right.name and len(left.sides) == len(right.sides) == 2:
        return same(left.sides[1], right.sides[1])
    for one, other in ((left, right), (right, left)):
        if one.operators == ("\\in",) and as_interval(other) is not None:
            return _names_variable(one, other) and _relation_is(other, one.sides[1])
    intervals = as_interval(left), as_interval(right)
    if intervals[0] and intervals[1]:
        return bool(intervals[0][0] == intervals[1][0]) and same(intervals[0][1], intervals[1][1])
    if len(left.operators) == len(right.operators) == 1:
        return _same_differences(_ordered(left), _ordered(right))
    return left.operators == right.operators and _each_same(left.sides, right.sides)


def _names_variable(membership: Relation, inequality: Relation) -> bool:
    interval = as_interval(inequality)
    return interval is not None and str(interval[0]) == membership.name


def _ordered(relation: Relation) -> Relation:
    """The relation with ``<`` in place of ``>``."""
    operator = relation.operators[0]
    if operator not in _FLIPPED:
        return relation
    return Relation(relation.sides[::-1], (_FLIPPED[operator],), None)


def _same_differences(left: Relation, right: Relation) -> bool:
    """Whether ``a = b`` and ``c = d`` say the same: a - b is a constant times c - d."""
    sides = (*left.sides, *right.sides)
    if left.operators != right.operators or not all(isinstance(s, Scalar) for s in sides):
        return False
    first, second = (values(r.sides[0].expression - r.sides[1].expression) for r in (left, right))
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if len(pairs) < 2 or any(a == 0 or b == 0 for a, b in pairs):
        return False
    ratios = [a / b for a, b in pairs]
    if left.operators[0] in ("<", "\\leq") and (ratios[0].imag or ratios[0].real < 0):
        return False
    return all(_near(ratio, ratios[0], EXACT_TERM) for ratio in ratios)


def _same_scalars(left: Any, right: Any) -> bool:
    if not isinstance(left, Scalar) or not isinstance(right, Scalar):
        return False
    a, b = left.expression, right.expression
    if a == b:
        return True
    if a.is_Rational and b.is_Rational:
        difference = abs(a - b)
        return bool(difference.p * TOLERANCE.denominator < difference.q * TOLERANCE.numerator)
    if a.is_infinite or b.is_infinite:
        return False
    numbers = not (a.free_symbols or b.free_symbols)
    rounded = numbers and (left.decimal or right.decimal)
    tolerance = EXACT_NUMBER if numbers else EXACT_TERM
    pairs = list(zip(values(a), values(b), strict=True))
    usable = [(x, y) for x, y in pairs if x is not None and y is not None]
    real = [(x, y) for x, y in usable if not x.imag and not y.imag]
    checked = real if len(real) > 1 else usable
    return len(checked) > 1 and all(
        _near(x, y, tolerance) or (rounded and _rounds_to(x, y)) for x, y in checked
    )


def _near(left: Any, right: Any, tolerance: Any) -> bool:
    largest = max(abs(left), abs(right))
    return bool(abs(left - right) <= tolerance * largest + _MP.mpf(10) ** -40)


def _rounds_to(left: Any, right: Any) -> bool:
    difference = abs(left - right)
    return bool(
        difference < float(TOLERANCE) and difference <= RELATIVE * max(abs(left), abs(right))
    )


@lru_cache(maxsize=4096)
def values(expression: Expr) -> Values:
    """The term's value at each point."""
    symbols = sorted(expression.free_symbols, key=str)
    if not symbols:
        return (_value(expression),) * len(_SIGNS)
    return tuple(
        _value(expression.xreplace({symbol: _coordinate(symbol, point) for symbol in symbols}))
        for point in range(len(_SIGNS))
    )


def _coordinate(symbol: Symbol, point: int) -> Float:
    """What a variable is at a point: between 0.3 and 2.3 but for the sign."""
    digest = hashlib.sha256(f"{symbol.name}/{point}".encode()).digest()
    size = 0.3 + 2 * int.from_bytes(digest[:6], "big") / 2**48
    return Float(_SIGNS[point][digest[6] % 2] * size, DIGITS)


def _value(expression: Expr) -> Any | None:
    number = expression.evalf(DIGITS)
    real, imaginary = number.as_real_imag()
    if not (real.is_Float or real.is_Rational) or not (imaginary.is_Float or imaginary.is_Rational):
        return None
    value = _MP.mpc(_MP.convert(real), _MP.convert(imaginary))
    # A rest that is rounding, like the imaginary part of a real number's power.
    if abs(value.imag) <= EXACT_NUMBER * abs(value.real):
        value = _MP.mpc(value.real, 0)
    return value if _MP.isfinite(value) else None
