r"""Reading a LaTeX expression into sympy: recursive descent over tokens, no ``sympify``."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy
from sympy import Expr, I, Integer, Rational, Symbol

from svr_lightning.tasks.symbolic import bounded
from svr_lightning.tasks.symbolic.tokens import FUNCTIONS, MAX_DEPTH, UnreadableError

_LOWER = "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu"
_GREEK = f"{_LOWER} xi rho sigma tau phi varphi chi psi omega ell"
_CAPITALS = "Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega"
_SYMBOLS = {"\\" + name: Symbol(name) for name in f"{_GREEK} {_CAPITALS}".split()}
_CONSTANTS = {"\\pi": sympy.pi, "\\infty": sympy.oo, "e": sympy.E, "i": I}
_CIRCULAR = ("sin", "cos", "tan", "cot", "sec", "csc")
_FUNCTIONS: dict[str, Callable[[Expr], Expr]] = {
    "ln": sympy.log,
    "log": sympy.log,
    "lg": lambda value: sympy.log(value) / sympy.log(10),
    "exp": lambda value: bounded.power(sympy.E, value),
    **{f"arc{name}": getattr(sympy, f"a{name}") for name in _CIRCULAR},
    **{name: getattr(sympy, name) for name in (*_CIRCULAR, "sinh", "cosh", "tanh")},
}
_TIMES = ("*", "\\cdot")
_BARS = {"|": "|", "\\lvert": "\\rvert", "\\vert": "\\vert"}
_GROUPS: dict[str, Callable[[Expr], Expr]] = {
    "(": lambda value: value,
    "[": lambda value: value,
    "{": lambda value: value,
    "\\lfloor": sympy.floor,
    "\\lceil": sympy.ceiling,
}
_CLOSING = {"(": ")", "[": "]", "{": "}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}


def read_expression(tokens: list[str]) -> tuple[Expr, bool]:
    r"""A sympy expression, and whether a decimal point stands in it.

    ``e`` and ``i`` are the constants, other letters are variables; ``2\frac{1}{3}`` of integers is
    a mixed number; ``0.1\overline{6}`` repeats.

    Raises:
        UnreadableError: for anything not understood, or beyond the limits of :mod:`.bounded`.
    """
    parser = _Parser(tokens)
    value = parser.sum()
    if parser.peek():
        raise UnreadableError(f"unexpected {parser.peek()!r}")
    if value.has(sympy.nan, sympy.zoo):
        raise UnreadableError("no value")
    return value, parser.decimal


class _Parser:
    """One method per level of precedence."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens[::-1]
        self._depth = 0
        self._bars = 0
        self._after_number = False
        self.decimal = False

    def peek(self) -> str:
        """The next token, or the empty string at the end."""
        return self._tokens[-1] if self._tokens else ""

    def sum(self) -> Expr:
        """Terms with signs between them."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnreadableError("too deep")
        value = self._signed_term()
        while self.peek() in ("+", "-"):
            value = bounded.total(value, self._signed_term())
        self._depth -= 1
        return value

    def _signed_term(self) -> Expr:
        sign = Integer(1)
        while self.peek() in ("+", "-"):
            sign = sign if self._take() == "+" else -sign
        return bounded.product(sign, self._term())

    def _term(self) -> Expr:
        """Factors with ``*`` or ``/`` or nothing between them, from left to right."""
        whole = self.peek().isdigit()
        value = self._factor()
        if whole and self.peek() == "\\frac" and value.is_Integer:
            fraction = self._factor()
            mixed = fraction.is_Rational and not fraction.is_Integer
            combine = bounded.total if mixed else bounded.product
            value = combine(value, fraction)
        while True:
            if self.peek() in _TIMES:
                self._take()
                value = bounded.product(value, self._signed_factor())
            elif self.peek() in ("/", "\\div"):
                self._take()
                value = bounded.quotient(value, self._signed_factor())
            elif self._starts_factor():
                value = bounded.product(value, self._factor())
            else:
                return value

    def _signed_factor(self) -> Expr:
        if self.peek() == "-":
            self._take()
            return -self._factor()
        return self._factor()

    def _starts_factor(self) -> bool:
        token = self.peek()
        if token in _BARS:
            return self._bars == 0
        if token[:1].isdigit():  # "x 2" is a product, "1 2" is a slip
            return not self._after_number
        return (
            token.isalpha()
            or token in _GROUPS
            or token in _SYMBOLS
            or token in _CONSTANTS
            or token.removeprefix("\\") in FUNCTIONS
            or token in ("\\frac", "\\sqrt", "\\binom")
        )

    def _factor(self) -> Expr:
        value = self._atom()
        while True:
            if self.peek() == "!":
                self._take()
                value = bounded.factorial(value)
            elif self.peek() == "^":
                self._take()
                value = bounded.power(value, self._script())
            else:
                return value

    def _script(self) -> Expr:
        """What is raised: a group, a sign and a number as people type it, or one atom."""
        if self.peek() == "-":
            self._take()
            return -self._script()
        return self._atom()

    def _atom(self) -> Expr:
        symbol = self._take()
        if symbol[:1].isdigit() or symbol[:1] == ".":
            return self._number(symbol)
        if symbol in _GROUPS:
            return _GROUPS[symbol](self._until(_CLOSING[symbol]))
        if symbol in _BARS:
            self._bars += 1
            value = self._until(_BARS[symbol])
            self._bars -= 1
            return sympy.Abs(value)
        if symbol.removeprefix("\\") in FUNCTIONS:
            return self._function(symbol.removeprefix("\\"))
        if symbol == "\\frac":
            return bounded.quotient(self._argument(), self._argument())
        if symbol == "\\binom":
            return bounded.binomial(self._argument(), self._argument())
        if symbol == "\\sqrt":
            return self._root()
        return self._symbol(symbol)

    def _symbol(self, token: str) -> Expr:
        if token in _SYMBOLS:
            symbol = _SYMBOLS[token]
        elif token in _CONSTANTS and self.peek() != "_":
            return _CONSTANTS[token]
        elif len(token) == 1 and token.isalpha():
            symbol = Symbol(token)
        else:
            raise UnreadableError(f"unexpected {token!r}")
        if self.peek() != "_":
            return symbol
        self._take()
        return Symbol(f"{symbol.name}_{self._argument()}")

    def _number(self, token: str) -> Expr:
        if self.peek() == "_":
            raise UnreadableError("a number in another base")
        self.decimal = self.decimal or "." in token or not token.isdigit()
        value = Fraction(token)
        if "." in token and self.peek() == "\\overline":
            self._take()
            digits = "".join(self._group_tokens())
            if not (digits.isascii() and digits.isdigit()):
                raise UnreadableError("a line over what is no digits")
            places = len(token) - token.index(".") - 1
            value += Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
        return Rational(value.numerator, value.denominator)

    def _group_tokens(self) -> list[str]:
        self._expect("{")
        tokens = []
        while self.peek() != "}":
            tokens.append(self._take())
        self._take()
        return tokens

    def _argument(self) -> Expr:
        """A group, or one atom, of a bare number its first digit alone."""
        token = self.peek()
        if len(token) > 1 and token.isdigit():
            self._tokens[-1:] = [token[1:], token[0]]
        return self._atom()

    def _root(self) -> Expr:
        if self.peek() != "[":
            return bounded.power(self._argument(), Rational(1, 2))
        self._take()
        degree = self._until("]")
        return bounded.power(self._argument(), bounded.quotient(Integer(1), degree))

    def _function(self, name: str) -> Expr:
        function = _FUNCTIONS[name]
        exponent: Expr | None = None
        base: Expr | None = None
        while self.peek() in ("^", "_"):
            if self._take() == "^":
                exponent = self._script()
            else:
                base = self._argument()
        if base is not None and name != "log":
            raise UnreadableError(f"a base of {name}")
        if exponent == -1 and hasattr(sympy, f"a{name}"):
            function, exponent = getattr(sympy, f"a{name}"), None
        value = function(self._operand())
        if base is not None:
            value = bounded.quotient(value, sympy.log(base))
        return value if exponent is None else bounded.power(value, exponent)

    def _operand(self) -> Expr:
        r"""A bracket, or factors without a sign between them: ``\sin 2x`` but ``\sin x \cos x``."""
        if self.peek() in ("(", "{", "["):
            return self._factor()
        value = self._factor()
        while self._starts_factor() and self.peek().removeprefix("\\") not in FUNCTIONS:
            value = bounded.product(value, self._factor())
        return value

    def _until(self, closing: str) -> Expr:
        bars, self._bars = self._bars, self._bars if closing in _BARS.values() else 0
        value = self.sum()
        self._expect(closing)
        self._bars = bars
        return value

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise UnreadableError(f"{token!r} is missing")

    def _take(self) -> Any:
        if not self._tokens:
            raise UnreadableError("the end where something should stand")
        token = self._tokens.pop()
        self._after_number = token[:1].isdigit()
        return token
