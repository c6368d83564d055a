r"""The process of :mod:`.symbolic`: reads ``[answer, reference]``, a line of JSON; writes 1 or 0.

Both answers are read as LaTeX. Math-Verify's ``ExprExtractionConfig`` hands text to sympy's
``parse_expr``, which runs it as Python, and is not used. The LaTeX reader makes its numbers with
``sympify``, which calls ``parse_expr`` too: :func:`parse_number` replaces it in this process.
"""

import json
import logging
import re
import resource
import signal
import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import sympy.physics.units  # noqa: F401 - its import needs the parser that is replaced here
from latex2sympy2_extended import is_expr_of_only_symbols
from math_verify import LatexExtractionConfig, parse, verify
from sympy import (
    And,
    Basic,
    Eq,
    Expr,
    FiniteSet,
    Float,
    I,
    Integer,
    Interval,
    MatrixBase,
    N,
    Rational,
    Tuple,
    UnevaluatedExpr,
    Union,
    simplify,
    solve,
)
from sympy.core.relational import Relational
from sympy.parsing import sympy_parser

from svr_lightning.tasks.latex import normalise, without_delimiters

CPU_SECONDS = 1.0
"""Processor time of one comparison; the kernel then ends the process, as it does for memory."""
MEMORY = 2**30
"""Bytes of address space."""
MAX_CHARACTERS, MAX_DEPTH = 400, 12
"""Longest answer that is compared, and brackets and braces open in it at once."""
RELATIVE = 1e-3
"""Relative tolerance of decimals; without it 0 would equal every small number."""

_LATEX = (LatexExtractionConfig(boxed_match_priority=0),)
_NUMBER = re.compile(r"[0-9]+|[0-9]*\.[0-9]+|[0-9]+\.")
_WORDS = re.compile(r"[A-Za-z]+(?:,[A-Za-z]+)*")
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_SCIENTIFIC = re.compile(r"(?<=[0-9])[eE]([+-]?[0-9]{1,3})(?![0-9])")
_IMAGINARY = re.compile(r"(?<=[0-9])i(?![A-Za-z])")
_MARKS = re.compile(r"(?<=[0-9)])_\{?([0-9]+)|('|\\prime(?![a-zA-Z]))")
_BRACKET = re.compile(r"[(\[]|\\\{")
_WARM_UP = (r"\binom{n}{2} + \sin^2 x", r"x \in (1, 2]"), (r"50\%", "0.5"), ("y = 2x", "x = 1")


def equal_answers(answer: str, reference: str) -> bool:
    """Whether an answer is mathematically equal to a reference; False where one is not read."""
    for text in (answer, reference):
        steps = ((character in "([{") - (character in ")]}") for character in text)
        if len(text) > MAX_CHARACTERS or max(accumulate(steps), default=0) > MAX_DEPTH:
            return False
    words = _words(answer), _words(reference)
    if all(words):
        return words[0] == words[1]
    if not _same_marks(answer, reference):
        return False
    gold, found = read(reference), read(answer)
    if not gold or not found:
        return False
    equal = verify(gold, found, allow_set_relation_comp=True, timeout_seconds=None)
    return bool(equal) and _all_sides(gold[0], found[0]) and _same_values(gold[0], found[0])


def read(text: str) -> list[Any]:
    """The answer as sympy's object, or an empty list: the whole text is taken as LaTeX."""
    latex = " ".join(without_delimiters(text).split())
    if not _BRACKET.search(latex):  # in brackets, a comma separates items
        latex = _THOUSANDS.sub("", latex)
    latex = _IMAGINARY.sub(" i", _SCIENTIFIC.sub(r" \\cdot 10^{\1}", latex))
    found = parse(f"${latex}$", _LATEX, fallback_mode="no_fallback", parsing_timeout=None)
    return [_with_imaginary_unit(value) for value in found]


def parse_number(text: str, *_: Any, **__: Any) -> Basic:
    """Replaces sympy's ``parse_expr``: a plain number, or a SyntaxError."""
    if not _NUMBER.fullmatch(text):
        raise SyntaxError("not a plain number")
    return Float(text) if "." in text else Integer(int(text))


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
        except Exception:  # sympy raises every kind on terms that have no value
            equal = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write("1\n" if equal else "0\n")
        sys.stdout.flush()


def _same_marks(answer: str, reference: str) -> bool:
    r"""Whether what the reader leaves out agrees: bases as in ``1101_2``, primes as in ``f'``.

    A base that only one of the two states is understood.
    """
    marks = [_MARKS.findall(text) for text in (answer, reference)]
    bases = [[base for base, _ in found if base] for found in marks]
    primes = [sum(not base for base, _ in found) for found in marks]
    return primes[0] == primes[1] and (bases[0] == bases[1] or not all(bases))


def _words(text: str) -> list[str]:
    """The words of a textual answer, in order; as products of letters, anagrams would be equal."""
    letters = normalise(text)
    words = sorted(letters.casefold().split(","))
    long = max(map(len, words)) > 3 or words[0] in ("yes", "no", "odd")
    return words if _WORDS.fullmatch(letters) and long else []


def _with_imaginary_unit(value: Any) -> Any:
    """The value with the number i where Math-Verify reads a variable of that name."""
    if not isinstance(value, Basic):
        return value
    return value.xreplace({symbol: I for symbol in value.free_symbols if str(symbol) == "i"})


def _all_sides(gold: Any, found: Any) -> bool:
    """Whether every side of ``x = 4/2 = 2`` but a leading name is the gold value.

    Math-Verify looks at the last side alone, so that any equation ``... = 0`` was equal to 0.
    """
    relations = getattr(found, "_unsorted_args", found.args) if isinstance(found, And) else (found,)
    if not all(isinstance(relation, Eq) for relation in relations):
        return True
    if isinstance(gold, Eq | And):
        return _same_equations(gold, found)
    sides = [relations[0].lhs, *(relation.rhs for relation in relations)]
    if is_expr_of_only_symbols(sides[0]):
        del sides[0]
    return all(verify(gold, side, timeout_seconds=None) for side in sides[:-1])


def _same_equations(gold: Any, found: Any) -> bool:
    """Whether two equations have the same variables, and the same solutions or a constant ratio.

    Math-Verify compares solutions, so that all equations without any were equal.
    """
    if not gold.free_symbols or gold.free_symbols != found.free_symbols:
        return False
    if not isinstance(gold, Eq) or not isinstance(found, Eq):
        return True
    if _ratio(gold, found).is_number:
        return True
    variable = min(gold.free_symbols, key=str)
    ours, theirs = solve(gold, variable), solve(found, variable)
    return bool(ours) and len(ours) == len(theirs) and _all_in(ours, theirs)


def _ratio(one: Any, other: Any) -> Any:
    ours, theirs = _differences(one, other)
    return simplify(ours / theirs)


def _differences(*relations: Any) -> list[Expr]:
    """Between the two sides of each."""
    return [relation.lhs - relation.rhs for relation in relations]


def _same_values(gold: Any, found: Any) -> bool:
    """Whether what Math-Verify takes for equal is so in every number, however small.

    It drops factors below 1e-15 and rounds to six decimals.
    """
    if isinstance(gold, Eq | And) != isinstance(found, Eq | And):
        gold, found = _value(gold), _value(found)
    if isinstance(gold, Eq) and isinstance(found, Eq):
        return _same_equations(gold, found)
    if isinstance(gold, Relational) and isinstance(found, Relational):
        found = found if gold.rel_op == found.rel_op else found.reversed
        if _ratio(gold, found).is_positive:
            return True
        return _same_expression(*_differences(gold, found))
    if isinstance(gold, Expr) and isinstance(found, Expr):
        return _same_expression(gold, found)
    items, others = _items(gold), _items(found)
    if len(items) != len(others):
        return True  # another notation, which Math-Verify has compared
    if isinstance(gold, FiniteSet | Union):
        return _all_in(items, others)
    return all(map(_same_values, items, others))


def _value(term: Any) -> Any:
    """A set for inequalities, the last side of equations; else the term itself."""
    if isinstance(term, And | Relational) and not term.atoms(Eq):
        return term.as_set()
    while isinstance(term, And):
        term = term._unsorted_args[-1]
    return term.rhs if isinstance(term, Eq) else term


def _items(term: Any) -> list[Any]:
    if isinstance(term, Interval):
        return [term.start, term.end]
    kept = isinstance(term, And | FiniteSet | Union | Tuple)
    return list(term) if isinstance(term, MatrixBase) else list(term.args) if kept else []


def _all_in(items: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(any(_same_values(one, other) for other in others) for one in items)


def _same_expression(gold: Expr, found: Expr) -> bool:
    """Whether two terms are equal: exactly, or relative to their size if a decimal is in one.

    Terms with variables are compared at some place of them. Math-Verify takes a percent sign for a
    hundredth, or for nothing.
    """
    symbols = sorted(gold.free_symbols | found.free_symbols, key=str)
    places = {symbol: Rational(7 + 2 * k, 5) for k, symbol in enumerate(symbols)}
    one, other = (term.doit().subs(places) for term in (gold, found))
    if one == other or not (one.is_number and other.is_number):
        return True
    percent = gold.has(UnevaluatedExpr) or found.has(UnevaluatedExpr)
    scales = (1, 100, Rational(1, 100)) if percent else (1,)
    if gold.has(Float) or found.has(Float):
        one, other = N(one, 15), N(other, 15)
        return any(abs(one - scale * other) <= RELATIVE * abs(one) for scale in scales)
    return any((one - scale * other).equals(0) is not False for scale in scales)


if __name__ == "__main__":
    main()
