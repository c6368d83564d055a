r"""The process of :mod:`.symbolic`: reads ``[answer, reference]``, a line of JSON; writes 1 or 0.

latex2sympy2_extended, the LaTeX reader of Math-Verify, makes sympy's objects of both answers, and
sympy compares them. The rest of Math-Verify is not used: it takes a trailing letter as a unit, so
that ``3t`` is 3, drops factors below 1e-15 and rounds to six decimals. The reader makes its numbers
with ``sympify``, which runs text as Python: :func:`parse_number` replaces it in this process.
"""

import json
import logging
import re
import resource
import signal
import sys
from typing import Any

import sympy.physics.units
from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy, is_expr_of_only_symbols
from sympy.core.relational import Relational
from sympy.parsing import sympy_parser

from svr_lightning.tasks.latex import normalise, spell, with_braces

CPU_SECONDS = 1.0
"""Processor time of one comparison; the kernel then ends the process, as it does for memory."""
MEMORY = 2**30
"""Bytes of address space."""
MAX_CHARACTERS = 400
"""The most characters of an answer; longer ones are not compared."""
RELATIVE = 1e-5
"""Relative tolerance where one of two numbers has a decimal point; all others are exact."""

_IMAGINARY_UNIT = {sympy.Symbol("i", real=True): sympy.I}
_NUMBER = re.compile(r"[0-9]+|[0-9]*\.[0-9]+|[0-9]+\.")
_WORDS = re.compile(r"[a-z]+(?:,[a-z]+)*")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:[, ][0-9]{3})+(?![0-9,])")
_SCIENTIFIC = re.compile(r"(?<=[0-9])[eE]([+-]?[0-9]{1,3})(?![0-9])")
_SQRT = re.compile(r"(?<![\\A-Za-z])sqrt(?=[({ ])")
_ARGUMENT = re.compile(r"(\^|\\sqrt) ?\(([^()]*)\)")
_MIXED = re.compile(r"(?<![0-9.^_}])([0-9]+) ?(\\frac ?\{[0-9]+\} ?\{[0-9]+\})")
_BASE = re.compile(r"(?<=[0-9)])_\{?([0-9]+)")
_UNREADABLE = re.compile(r"'|\\prime(?![a-zA-Z])|(?<!_)[0-9] [0-9]")
_BRACKET = re.compile(r"[(\[]|\\\{")
_WARM_UP = (r"\binom{n}{2} + \sin^2 x", r"x \in (1, 2]"), (r"50\%", "0.5"), ("y = 2x", "x = 1")


def equal_answers(answer: str, reference: str) -> bool:
    """Whether an answer is mathematically equal to a reference; False where one is not read.

    A base, as in ``1101_2``, may be left out of one of them.
    """
    if max(len(answer), len(reference)) > MAX_CHARACTERS:
        return False
    words = _words(answer), _words(reference)
    if all(words):
        return words[0] == words[1]
    if len(set(_BASE.findall(f"{answer} {reference}"))) > 1:
        return False
    try:
        return _same(read(answer), read(reference))
    except MemoryError:
        raise
    except Exception:  # reader and sympy raise every kind on text that has no value
        return False


def read(text: str) -> Any:
    """The answer as sympy's object; raises any error if the whole text is no LaTeX.

    Derivatives, as ``f'``, and numbers with a space between them are not read.
    """
    latex = spell(text)
    if not _BRACKET.search(latex):  # in brackets, a comma separates items
        latex = _THOUSANDS.sub(lambda number: re.sub("[, ]", "", number[0]), latex)
    latex = _ARGUMENT.sub(r"\1{\2}", _SQRT.sub(r"\\sqrt", latex))
    latex = with_braces(latex)
    if _UNREADABLE.search(latex):
        raise ValueError("a derivative, or numbers without a sign between them")
    latex = _MIXED.sub(r"(\1+\2)", latex)
    latex = _SCIENTIFIC.sub(r" \\cdot 10^{\1}", latex).replace(r"\%", r" \cdot \frac{1}{100}")
    return _Reader(is_real=True).parse(latex).xreplace(_IMAGINARY_UNIT)


class _Reader(_Latex2Sympy):  # type: ignore[misc]
    """Reads factors side by side as a product; its base adds a fraction to any whole number."""

    def convert_postfix_list(self, arr: list[Any], i: int = 0) -> Any:
        value = super().convert_postfix_list([arr[i]])
        if i + 1 == len(arr):
            return value
        rest = self.convert_postfix_list(arr, i + 1)
        if not all(isinstance(side, sympy.Expr | sympy.MatrixBase) for side in (value, rest)):
            raise ValueError("no product")
        matrix = any(isinstance(side, sympy.MatrixBase) for side in (value, rest))
        return (self.mat_mul_flat if matrix else self.mul_flat)(value, rest)


def parse_number(text: str, *_: Any, **__: Any) -> sympy.Basic:
    """Replaces sympy's ``parse_expr``: a plain number, or a SyntaxError."""
    if not _NUMBER.fullmatch(text):
        raise SyntaxError("not a plain number")
    return sympy.Float(text) if "." in text else sympy.Integer(int(text))


def main() -> None:
    """Answer requests until there are none."""
    logging.disable(logging.CRITICAL)
    sympy_parser.parse_expr = parse_number
    for pair in _WARM_UP:  # sympy imports some of its parts when they are first needed
        equal_answers(*pair)
    sys.setrecursionlimit(3000)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            equal = equal_answers(*json.loads(line))
        except MemoryError:
            return
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write("1\n" if equal else "0\n")
        sys.stdout.flush()


def _words(text: str) -> list[str]:
    """The words of a textual answer, in order; as products of letters, anagrams would be equal."""
    letters = normalise(text).casefold()
    words = sorted(letters.split(","))
    long = max(map(len, words)) > 3 or words[0] in ("yes", "no", "odd")
    return words if _WORDS.fullmatch(letters) and long else []


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal: terms exactly, everything else item by item."""
    if _both(Relational, one, other):
        return _same_relation(one, other)
    if _both(sympy.And, one, other) and one.free_symbols != other.free_symbols:
        return False
    ones, others = _sides(one), _sides(other)
    if len(ones) > 1 or len(others) > 1:  # a chain of equations
        return all(_same(left, right) for left in ones for right in others)
    one, other = ones[0], others[0]
    if _both(sympy.Expr, one, other):
        return _same_term(one.doit(), other.doit())
    if _both(sympy.FiniteSet | sympy.Union, one, other):
        table = [[_same(left, right) for right in other.args] for left in one.args]
        return all(map(any, table)) and all(map(any, zip(*table, strict=True)))
    (kind, items), (other_kind, other_items) = _sequence(one), _sequence(other)
    same = kind == other_kind and len(items) == len(other_items)
    return same and all(map(_same, items, other_items))


def _both(kind: Any, one: Any, other: Any) -> bool:
    return isinstance(one, kind) and isinstance(other, kind)


def _sides(term: Any) -> list[Any]:
    """The sides of ``x = 4/2 = 2`` without a leading name; a set for inequalities; else the term.

    A chain of equations has a value only if all of its sides are equal to it.
    """
    relations = list(term._unsorted_args) if isinstance(term, sympy.And) else [term]
    if all(isinstance(relation, sympy.Eq) for relation in relations):
        sides = [relations[0].lhs, *(relation.rhs for relation in relations)]
        return sides[1:] if is_expr_of_only_symbols(sides[0]) else sides
    return [term.as_set() if isinstance(term, sympy.And | Relational) else term]


def _sequence(term: Any) -> tuple[Any, list[Any]]:
    """The kind and the items of a tuple, interval or matrix; (1, 2) may be either of the first two.

    ``x = 1, y = 2`` is (1, 2), in the order of the names.
    """
    pair = (False, False)  # closed at neither end
    if isinstance(term, sympy.Interval):
        return (not term.left_open, not term.right_open), [term.start, term.end]
    if isinstance(term, sympy.MatrixBase):
        return term.shape, list(term)
    if isinstance(term, sympy.FiniteSet) and all(isinstance(item, sympy.Eq) for item in term.args):
        values = {str(item.lhs): item.rhs for item in term.args}
        kind = pair if len(values) == len(term.args) else None
        return kind, [values[name] for name in sorted(values)]
    return (pair, list(term)) if isinstance(term, sympy.Tuple) else (term, [])


def _same_relation(one: Relational, other: Relational) -> bool:
    """Whether the difference of the sides has a constant ratio, above 0 for inequalities."""
    if one.rel_op != other.rel_op:
        other = other.reversed
    names = one.free_symbols
    if one.rel_op != other.rel_op or names != other.free_symbols or not names:
        return False
    ours, theirs = (sympy.nsimplify(side.lhs - side.rhs, rational=True) for side in (one, other))
    ratio = sympy.simplify(ours / theirs)
    if isinstance(one, sympy.Eq):
        return bool(ratio.is_number and ratio.is_finite and not ratio.is_zero)
    return bool(ratio.is_positive)


def _same_term(one: sympy.Expr, other: sympy.Expr) -> bool:
    """Whether two terms are equal: exactly, or by size where a number has a decimal point.

    Terms of variables that differ at one place differ; simplifying them would take longer.
    """
    if one == other:
        return not one.has(sympy.nan, sympy.zoo)
    decimal = one.has(sympy.Float) or other.has(sympy.Float)
    if decimal and one.is_number and other.is_number:
        left, right = sympy.N(one, 15), sympy.N(other, 15)
        return bool(abs(left - right) <= RELATIVE * min(abs(left), abs(right)))
    difference = one - other
    names = sorted(difference.free_symbols, key=str)
    place = {name: sympy.Rational(7 + 2 * k, 5) for k, name in enumerate(names)}
    there = difference.subs(place).evalf(2)
    if names and not decimal and there.is_comparable and there._prec > 1:
        return False
    return difference.equals(0) is True


if __name__ == "__main__":
    main()
