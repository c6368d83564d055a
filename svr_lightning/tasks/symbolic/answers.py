"""What an answer can be: a term, words, a list, set, tuple, interval, relation or matrix."""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from sympy import Expr, Symbol, oo

from svr_lightning.tasks.latex import normalise, spell
from svr_lightning.tasks.symbolic.expressions import read_expression
from svr_lightning.tasks.symbolic.tokens import OPENING, UnreadableError, enclosed, split, tokenise

MAX_ITEMS = 40
"""Of a list, set or tuple, and entries of a row or column."""

_TEXT = re.compile(r"\\(?:text(?:rm|bf|it|normal)?|mbox|math(?:rm|bf|it))\s*\{([^{}]*)\}")
_LETTERS = re.compile(r"[A-Za-z]+(?:,[A-Za-z]+)*")
_CONNECTIVES = {"and", "or", "in"}
_SHORT_WORDS = {"yes", "no", "odd"}
_PERCENT = re.compile(r"(?:\\?%|\bpercent)\s*\.?\s*(?:\\\)|\$)?\s*$")
_NAME = re.compile(r"(?:\\?[a-zA-Z]+)(?:_(?:\{.{1,4}\}|.))?(?:\([a-zA-Z](?:,[a-zA-Z])*\))?")
_NAMED_POINT = re.compile(r"\([a-zA-Z](?:,[a-zA-Z])+\)")
_RELATIONS = frozenset(("=", "<", ">", "\\leq", "\\geq", "\\neq", "\\in", "\\approx"))
_FLIPPED = {"<": ">", ">": "<", "\\leq": "\\geq", "\\geq": "\\leq"}
_COMMAS = frozenset((",", ";"))


@dataclass(frozen=True)
class Scalar:
    """A number or a term."""

    expression: Expr
    decimal: bool
    """Whether it was written with a decimal point, so that it may be rounded."""


@dataclass(frozen=True)
class Words:
    """An answer in words, in lower case and without spaces."""

    text: str


@dataclass(frozen=True)
class Items:
    """Several values."""

    kind: str
    """``list``, ``set``, ``union``, or for a tuple or an interval its two brackets: ``(]``."""
    items: tuple[Any, ...]


@dataclass(frozen=True)
class Matrix:
    """Rows of values."""

    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Relation:
    r"""Two or more values with ``=``, an inequality or ``\in`` between them."""

    sides: tuple[Any, ...]
    operators: tuple[str, ...]
    name: str | None
    """The first side, where it only names what the second is: ``x``, ``f(x)``, ``(x,y)``."""


@dataclass(frozen=True)
class Answer:
    """An answer as read."""

    value: Any
    percent: bool
    """Whether a percent sign ends it, which its value leaves out of account."""


@lru_cache(maxsize=4096)
def read_answer(text: str) -> Answer:
    """Read an answer as a model or a data set writes it.

    Raises:
        UnreadableError: if it is nothing that is understood here.
    """
    spelled = spell(text).removesuffix(".")
    percent = bool(_PERCENT.search(text))
    words = _words(text, spelled)
    return Answer(_list(tokenise(spelled)) if words is None else words, percent)


def as_interval(relation: Relation) -> tuple[Expr, Items] | None:
    r"""``1 < x \leq 2`` as ``x`` and ``(1, 2]``; None for what bounds no single variable."""
    sides, operators = relation.sides, relation.operators
    if any(not isinstance(side, Scalar) for side in sides) or not set(operators) <= set(_FLIPPED):
        return None
    if operators[0] in (">", "\\geq"):
        sides, operators = sides[::-1], tuple(_FLIPPED[o] for o in operators[::-1])
    if not set(operators) <= {"<", "\\leq"}:
        return None
    variables = [index for index, side in enumerate(sides) if side.expression.is_Symbol]
    if len(sides) > 3 or len(variables) != 1 or (len(sides) == 3 and variables != [1]):
        return None
    at = variables[0]
    if any(s.expression.has(sides[at].expression) for i, s in enumerate(sides) if i != at):
        return None
    low = sides[at - 1] if at else Scalar(-oo, False)
    high = sides[at + 1] if at + 1 < len(sides) else Scalar(oo, False)
    left = "[" if at and operators[at - 1] == "\\leq" else "("
    right = "]" if at < len(operators) and operators[at] == "\\leq" else ")"
    return sides[at].expression, Items(left + right, (low, high))


def _words(text: str, spelled: str) -> Any:
    """Words, or a list of them; None where the answer is an expression."""
    squeezed = normalise(text).replace("\\", "")
    in_text = any(
        len(inner) > 1 and inner not in _CONNECTIVES and inner in spelled
        for inner in (found.strip() for found in _TEXT.findall(text))
    )
    letters = bool(_LETTERS.fullmatch(squeezed)) and "\\" not in spelled
    longest = max(map(len, squeezed.split(",")), default=0)
    if letters and (in_text or longest > 3 or squeezed.lower() in _SHORT_WORDS):
        parts = tuple(Words(part.lower()) for part in squeezed.split(","))
        return parts[0] if len(parts) == 1 else _items("list", parts)
    return Words(squeezed.lower()) if in_text else None


def _items(kind: str, items: tuple[Any, ...]) -> Items:
    if len(items) > MAX_ITEMS:
        raise UnreadableError("too many items")
    return Items(kind, items)


def _list(tokens: list[str]) -> Any:
    parts = [value for part in split(tokens, _COMMAS) for value in _with_signs(part)]
    return parts[0] if len(parts) == 1 else _items("list", tuple(parts))


def _with_signs(tokens: list[str]) -> list[Any]:
    r"""The part as it stands, or with ``\pm`` both parts that it stands for."""
    if "\\pm" not in tokens and "\\mp" not in tokens:
        return [_union(tokens)]
    return [
        _union([{"\\pm": plus, "\\mp": minus}.get(token, token) for token in tokens])
        for plus, minus in pairwise("+-+")
    ]


def _union(tokens: list[str]) -> Any:
    parts = tuple(_relation(part) for part in split(tokens, frozenset(("\\cup",))))
    return parts[0] if len(parts) == 1 else _items("union", parts)


def _relation(tokens: list[str]) -> Any:
    parts = split(tokens, _RELATIONS)
    if len(parts) == 1:
        return _side(tokens)
    operators, position = [], -1
    for part in parts[:-1]:
        position += len(part) + 1
        operators.append("=" if tokens[position] == "\\approx" else tokens[position])
    head = "".join(parts[0])
    names = operators[0] in ("=", "\\in") and (
        _NAME.fullmatch(head) or _NAMED_POINT.fullmatch(head)
    )
    name = head if names else None
    sides = [_side(part) if index or not name else None for index, part in enumerate(parts)]
    if name and len(parts[0]) == 1:
        sides[0] = Scalar(Symbol(name.removeprefix("\\")), False)
    return Relation(tuple(sides), tuple(operators), name)


def _side(tokens: list[str]) -> Any:
    if not tokens:
        raise UnreadableError("nothing where a value should stand")
    if tokens == ["\\emptyset"]:
        return Items("set", ())
    if tokens[0].startswith("\\begin{") and enclosed(tokens):
        return _matrix(tokens)
    if tokens[0] in ("(", "[", "\\{") and enclosed(tokens):
        parts = split(tokens[1:-1], _COMMAS)
        if tokens[0] == "\\{":
            values = [v for part in parts for v in _with_signs(part)] if parts != [[]] else []
            return _items("set", tuple(values))
        if parts[0][:1] and parts[0][0].startswith("\\begin{"):
            return _side(tokens[1:-1])
        if len(parts) > 1:
            return _items(tokens[0] + tokens[-1], tuple(_relation(part) for part in parts))
    if any(token in tokens for token in _COMMAS) and tokens[0] in OPENING:
        raise UnreadableError("a computation with tuples")
    return Scalar(*read_expression(tokens))


def _matrix(tokens: list[str]) -> Matrix:
    if tokens[0] not in ("\\begin{pmatrix}", "\\begin{bmatrix}"):
        raise UnreadableError(f"an environment {tokens[0]}")
    lines = split(tokens[1:-1], frozenset(("\\\\",)))
    if not lines[-1]:
        lines.pop()
    cells = [split(line, frozenset("&")) for line in lines]
    if max(len(cells), *map(len, cells)) > MAX_ITEMS:
        raise UnreadableError("a matrix that is too large")
    return Matrix(tuple(tuple(_side(cell) for cell in row) for row in cells))
