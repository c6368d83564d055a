"""Answers made to break a grader: deep, long, huge, malformed, or code."""

import random
from collections.abc import Callable, Iterator


def hostile_answers(count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """``count`` pairs of a kind and an answer of that kind, drawn from ``seed``."""
    rng = random.Random(seed)
    kinds = sorted(_KINDS)
    for index in range(count):
        kind = kinds[index % len(kinds)]
        yield kind, _KINDS[kind](rng)


def _digits(rng: random.Random, longest: int = 1900) -> str:
    return "".join(rng.choices("0123456789", k=rng.randint(1, longest)))


def _tower(rng: random.Random) -> str:
    base = rng.choice(["9", "x", "e", "(1+x)", r"\pi", "2.5", "(-1)", r"\frac{9}{8}", "i", "0"])
    height = rng.randint(2, 12)
    return "^{".join([base] * height) + "}" * (height - 1)


def _huge(rng: random.Random) -> str:
    n = 10 ** rng.randint(2, 12)
    forms = [
        f"{n}!", f"({n}!)!", f"9^{{{n}}}", f"x^{{{n}}}", rf"\binom{{{n}}}{{{n // 2}}}",
        rf"\sqrt[{n}]{{2}}", rf"\sin({n}^{{400}})", rf"e^{{{n}}}", rf"\log_{{{n}}} {n}!",
        rf"(1+x)^{{{n}}}", rf"\left(\sqrt{{2}}+\sqrt{{3}}\right)^{{{n % 1001}}}", f"1e{n}",
        rf"\tan^{{999}} {n}", f"(1+i)^{{{n}}}", "5" + "!" * rng.randint(1, 200), rf"{n}^{{-{n}}}",
    ]  # fmt: skip
    return rng.choice(forms)


def _nested(rng: random.Random) -> str:
    left, right = rng.choice(
        [("(", ")"), ("{", "}"), (r"\frac{1}{1+", "}"), (r"\sqrt{", "}"), ("|", "|"), ("[", "]"),
         (r"\sin(", ")"), (r"\{", r"\}"), (r"\lfloor ", r"\rfloor "), ("x^{", "}"), ("(1,", ")")]
    )  # fmt: skip
    depth = rng.choice([5, 15, 24, 25, 100, 500])
    return left * depth + "x" + right * rng.choice([depth, depth, 0])


def _sum(rng: random.Random) -> str:
    term = rng.choice([r"\sqrt{%d}", r"\frac{1}{%d}", "x_{%d}", r"\sin %d", "(x+%d)", "2^{%d}"])
    sign = rng.choice(["+", "-", r" \cdot ", "/", ",", r"\pm ", "=", "<", r"\cup ", "^"])
    return sign.join(term % rng.randint(0, 10**6) for _ in range(rng.randint(2, 60)))


def _matrix(rng: random.Random) -> str:
    rows, columns = rng.randint(1, 50), rng.randint(1, 50)
    row = "&".join(rng.choice(["1", "x", r"\frac{1}{2}", ""]) for _ in range(columns))
    kind = rng.choice(["pmatrix", "bmatrix", "vmatrix", "array", "cases"])
    return rf"\begin{{{kind}}}" + r"\\".join([row] * rows) + rf"\end{{{kind}}}"


def _code(rng: random.Random) -> str:
    return rng.choice(
        ["__import__('os').system('id')", "eval('9**9**9')", "exec(open('/etc/passwd').read())",
         "().__class__.__bases__[0].__subclasses__()", "lambda: 0", "open('x','w')", "%s%n%x",
         "{0.__class__}", "while True: pass", r"\input{/etc/passwd}", r"\write18{id}",
         "import sys; sys.exit()", "print(1)", "[0]*10**9", "x=1;y=2", "Symbol('x')", "S(1)/0"]
    )  # fmt: skip


def _noise(rng: random.Random) -> str:
    alphabet = "\0\t\n\\{}[]()^_!|&,;:=<>+-*/%$#~.0123456789xyzei" + "\u0661\u202e\U0001d7d9\ufeff"
    return "".join(rng.choices(alphabet, k=rng.randint(1, 1500)))


def _commands(rng: random.Random) -> str:
    words = [r"\frac", r"\sqrt", r"\sin", "^", "_", "{", "}", "(", ")", "1", "x", r"\log", "|",
             r"\binom", "-", "+", ",", r"\pm", r"\infty", "0", "e", "i",
             r"\pi", "/", "="]  # fmt: skip
    return " ".join(rng.choices(words, k=rng.randint(1, 300)))


_KINDS: dict[str, Callable[[random.Random], str]] = {
    "code": _code,
    "commands": _commands,
    "digits": lambda rng: rng.choice(["", "-", "0.", r"\sqrt{"]) + _digits(rng),
    "fraction of digits": lambda rng: rf"\frac{{{_digits(rng, 900)}}}{{{_digits(rng, 900)}}}",
    "huge": _huge,
    "matrix": _matrix,
    "nested": _nested,
    "noise": _noise,
    "sum": _sum,
    "tower": _tower,
}
