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
from functools import reduce
from operator import mul
from typing import Any

import sympy.physics.units
from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy, is_expr_of_only_symbols
from sympy.core.relational import Relational
from sympy.parsing import sympy_parser

from svr_lightning.tasks.latex import normalise, spell, with_braces

CPU_SECONDS, MEMORY = 1.0, 2**30
"""Processor time and bytes of one comparison; the kernel ends the process if it needs more."""
MAX_CHARACTERS = 400
"""The most characters of an answer; longer ones are not compared."""
RELATIVE = 1e-5
"""Relative tolerance where one of two numbers has a decimal point; all others are exact."""

_WORDS = re.compile(r"(?=.*[a-z]{4}|\(?(?:yes|no|odd)\b)(?:[a-z]+(?:,[a-z]+)*|\([a-z]+\))")
_BASE = re.compile(r"(?<=[0-9)])_\{?([0-9]+)")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:[, ][0-9]{3})+(?![0-9,])")
_BRACKET = re.compile(r"[(\[]|\\\{")
_SPELLINGS = (
    (re.compile(r"(?<![\\A-Za-z])sqrt(?=[({ ])"), r"\\sqrt"),
    (re.compile(r"(\^|\\sqrt) ?\(([^()]*)\)"), r"\1{\2}"),
    (re.compile(r"(?<=[0-9])[eE]([+-]?[0-9]{1,3})(?![0-9])"), r" \\cdot 10^{\1}"),
    (re.compile(r"\\%"), r" \\cdot \\frac{1}{100}"),
)
_MIXED = re.compile(r"(?<![0-9.^_}])([0-9]+) ?(\\frac ?\{[0-9]+\} ?\{[0-9]+\})")
_UNREADABLE = re.compile(r"'|\\prime(?![a-zA-Z])|(?<!_)[0-9] [0-9]")
_NUMBER = re.compile(r"[0-9]+|[0-9]*\.[0-9]+|[0-9]+\.")
_IMAGINARY_UNIT = {sympy.Symbol("i", real=True): sympy.I}
_WARM_UP = (r"\binom{n}{2} + \sin^2 x", r"x \in (1, 2]"), (r"50\%", "0.5"), ("y = 2x", "x = 1")


def equal_answers(answer: str, reference: str) -> bool:
    """Whether an answer is mathematically equal to a reference; False where one is not read.

    A base, as in ``1101_2``, may be left out of one of them.
    """
    if max(len(answer), len(reference)) > MAX_CHARACTERS:
        return False
    texts = [normalise(text).casefold() for text in (answer, reference)]
    if all(map(_WORDS.fullmatch, texts)):  # as products of letters, anagrams would be equal
        words, others = (sorted(re.findall("[a-z]+", text)) for text in texts)
        return words == others
    if len(set(_BASE.findall(f"{answer} {reference}"))) > 1:
        return False
    try:
        return _same(read(answer), read(reference))
    except MemoryError:
        sys.exit()
    except Exception:  # reader and sympy raise every kind on text that has no value
        return False


def read(text: str) -> Any:
    """The answer as sympy's object; raises any error if the whole text is no LaTeX.

    Derivatives, as ``f'``, and numbers with a space between them are not read.
    """
    latex = spell(text)
    if not _BRACKET.search(latex):  # in brackets, a comma separates items
        latex = _THOUSANDS.sub(lambda number: re.sub("[, ]", "", number[0]), latex)
    for pattern, replacement in _SPELLINGS:
        latex = pattern.sub(replacement, latex)
    latex = with_braces(latex)
    if _UNREADABLE.search(latex):
        raise ValueError("a derivative, or numbers without a sign between them")
    latex = _MIXED.sub(r"(\1+\2)", latex)
    return _Reader(is_real=True).parse(latex).xreplace(_IMAGINARY_UNIT)


class _Reader(_Latex2Sympy):  # type: ignore[misc]
    """Reads factors side by side as a product; its base adds a fraction to any whole number."""

    def convert_postfix_list(self, arr: list[Any], i: int = 0) -> Any:
        factors = [*map(super().convert_postfix_list, zip(arr[i:]))]
        if len(factors) > 1 and any(isinstance(factor, sympy.Tuple) for factor in factors):
            raise ValueError("no product")
        return reduce(mul, factors)


def parse_number(text: str, *_: Any, **__: Any) -> sympy.Basic:
    """Replaces sympy's ``parse_expr``: a plain number, or a SyntaxError."""
    if not _NUMBER.fullmatch(text):
        raise SyntaxError("not a plain number")
    return sympy.Float(text) if "." in text else sympy.Integer(int(text))


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal: terms exactly, everything else item by item."""
    if _both(sympy.And | Relational, one, other) and one.free_symbols != other.free_symbols:
        return False
    if _both(Relational, one, other):
        return _same_relation(one, other)
    one, other = _value(one), _value(other)
    if _both(sympy.Expr, one, other):
        return _same_term(one.doit(), other.doit())
    if _both(sympy.FiniteSet | sympy.Union, one, other):
        table = [[_same(left, right) for right in other.args] for left in one.args]
        return all(map(any, table)) and all(map(any, zip(*table, strict=True)))
    one, other = _by_name(one), _by_name(other)
    same = one.func == other.func and len(one.args) == len(other.args)
    return same and all(map(_same, one.args, other.args))


def _both(kind: Any, one: Any, other: Any) -> bool:
    return isinstance(one, kind) and isinstance(other, kind)


def _value(term: Any) -> Any:
    """The value of ``x = 4/2 = 2``, the set of an inequality, the tuple (1, 2) of an open interval.

    A chain of equations has a value only if all of its sides are equal to it. A matrix is a tuple
    of its rows, and marked.
    """
    relations = list(term._unsorted_args) if isinstance(term, sympy.And) else [term]
    if all(isinstance(relation, sympy.Eq) for relation in relations):
        sides = [relations[0].lhs, *(relation.rhs for relation in relations)]
        term, *others = sides[1:] if is_expr_of_only_symbols(sides[0]) else sides
        if not all(_same(term, other) for other in others):
            raise ValueError("a chain of equations whose sides differ")
    elif isinstance(term, sympy.And | Relational):
        term = term.as_set()
    if isinstance(term, sympy.Interval) and term.left_open and term.right_open:
        return sympy.Tuple(term.start, term.end)
    if isinstance(term, sympy.MatrixBase):
        rows = (sympy.Tuple(*row) for row in term.tolist())
        return sympy.Tuple(sympy.Symbol("matrix"), *rows)
    return term


def _by_name(term: Any) -> Any:
    """``x = 1, y = 2`` as (1, 2), in the order of the names; any other term as it is."""
    value_of = {str(item.lhs): item.rhs for item in term.args if isinstance(item, sympy.Eq)}
    complete = 0 < len(value_of) == len(term.args)
    return sympy.Tuple(*(value_of[name] for name in sorted(value_of))) if complete else term


def _same_relation(one: Relational, other: Relational) -> bool:
    """Whether the difference of the sides has a constant ratio, above 0 for inequalities."""
    if one.rel_op != other.rel_op:
        other = other.reversed
    if one.rel_op != other.rel_op or not one.free_symbols:
        return False
    ours, theirs = (sympy.nsimplify(side.lhs - side.rhs, rational=True) for side in (one, other))
    ratio = sympy.simplify(ours / theirs)
    if isinstance(one, sympy.Eq):
        return bool(ratio.is_number and ratio.is_finite and not ratio.is_zero)
    return bool(ratio.is_positive)


def _same_term(one: sympy.Expr, other: sympy.Expr) -> bool:
    """Whether two terms are equal: exactly, or by size where a number has a decimal point."""
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
        return False  # simplifying terms that differ at one place would take longer
    return difference.equals(0) is True


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
        equal = equal_answers(*json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write("1\n" if equal else "0\n")
        sys.stdout.flush()
