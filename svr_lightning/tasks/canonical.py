"""One spelling for all ways of writing a Countdown expression.

Two expressions are the same derivation if they become equal by exchanging the operands of ``+``
and ``*``, by moving parentheses within a sum or within a product, and by the rules of signs.
Subtraction adds the negated operand, and division multiplies by the inverse, so ``a-(b-c)`` is
``a+c-b`` and ``a/(b/c)`` is ``a*c/b``. Nothing is multiplied out and no number disappears:
``2*(3+5)`` and ``2*3+2*5`` are different, and so are ``4+4`` and ``8``.

The same parser as the evaluator's reads the text, with :class:`_Normal` in the place of numbers;
length, nesting and division by zero are refused as there.
"""

from dataclasses import dataclass
from fractions import Fraction

from svr_lightning.tasks.arithmetic import read

_SIGNS = {1: "+", 0: "+", -1: "-"}


def canonical(text: str) -> str:
    """The spelling that ``text`` shares with every other way of writing the same derivation.

    Raises:
        ExpressionError: for what :func:`arithmetic.evaluate` does not accept.

    Examples:
        >>> canonical("(3 + 5)*2") == canonical("2*(5+3)")
        True
        >>> canonical("7 - (1 - 4)/2")
        '(-(+1-4)/2+7)'
    """
    expression, _ = read(text, _number)
    return expression.spelling


@dataclass(frozen=True, slots=True)
class _Normal:
    """An expression in normal form, as a sum of terms and as a product of factors at once.

    A sign is 1 or -1. It is 0 for an expression that is spelt like its negative, as ``0`` and
    ``3-3``, whose value is zero.
    """

    value: Fraction
    terms: tuple[tuple[str, int], ...]
    """Spelling and sign of each summand, in order; a number or a product is one summand."""
    sign: int
    above: tuple[str, ...]
    """Factors, in order, each spelt without a sign; a sum is one factor."""
    below: tuple[str, ...]
    """Factors that are divided by, likewise."""

    def __add__(self, other: "_Normal") -> "_Normal":
        return _sum(self.value + other.value, (*self.terms, *other.terms))

    def __sub__(self, other: "_Normal") -> "_Normal":
        return self + -other

    def __mul__(self, other: "_Normal") -> "_Normal":
        return _product(
            self.value * other.value,
            self.sign * other.sign,
            (*self.above, *other.above),
            (*self.below, *other.below),
        )

    def __truediv__(self, other: "_Normal") -> "_Normal":
        return _product(
            self.value / other.value,
            self.sign * other.sign,
            (*self.above, *other.below),
            (*self.below, *other.above),
        )

    def __neg__(self) -> "_Normal":
        return _Normal(-self.value, _negated(self.terms), -self.sign, self.above, self.below)

    def __bool__(self) -> bool:
        return self.value != 0

    @property
    def spelling(self) -> str:
        """A sum in parentheses, or a number or product, with a sign only if that is a minus."""
        if len(self.terms) > 1:
            return _spelt(self.terms)
        return ("-" if self.sign < 0 else "") + self.terms[0][0]


def _number(value: int) -> _Normal:
    spelling, sign = str(value), int(value != 0)
    return _Normal(Fraction(value), ((spelling, sign),), sign, (spelling,), ())


def _sum(value: Fraction, terms: tuple[tuple[str, int], ...]) -> _Normal:
    terms = tuple(sorted(terms))
    here, there = _spelt(terms), _spelt(_negated(terms))
    sign = (here < there) - (here > there)
    return _Normal(value, terms, sign, (min(here, there),), ())


def _product(value: Fraction, sign: int, above: tuple[str, ...], below: tuple[str, ...]) -> _Normal:
    above, below = tuple(sorted(above)), tuple(sorted(below))
    spelling = "*".join(above) + "".join(f"/{factor}" for factor in below)
    return _Normal(value, ((spelling, sign),), sign, above, below)


def _negated(terms: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((spelling, -sign) for spelling, sign in terms))


def _spelt(terms: tuple[tuple[str, int], ...]) -> str:
    return "(" + "".join(f"{_SIGNS[sign]}{spelling}" for spelling, sign in terms) + ")"
