r"""The process that compares answers with Math-Verify: ``python -m svr_lightning.tasks.worker``.

A request is a line of JSON, ``[answer, reference]``, on standard input; the reply on standard
output is ``1`` or ``0``, ``m`` if memory ran out, ``t`` if CPU time did.

The process imports what it needs and forks. The child gives up dangerous rights (:func:`lock_down`)
and answers requests. If the kernel kills it because a request exceeded its CPU time, the parent,
which never sees a request, forks the next child within milliseconds.

Both answers are read as LaTeX. Math-Verify's other extraction, ``ExprExtractionConfig``, hands the
text to sympy's ``parse_expr``, which runs it as Python, and is not used. The LaTeX reader makes its
numbers with ``sympify``, which calls ``parse_expr`` too: :func:`prepare` puts :func:`parse_number`
in its place. Besides, the child can neither compile nor run code.
"""

import builtins
import json
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

from latex2sympy2_extended import is_expr_of_only_symbols
from math_verify import LatexExtractionConfig, parse, verify
from sympy import And, Basic, Eq, Float, I, Integer, N, simplify, solve
from sympy.parsing import sympy_parser
from sympy.polys.monomials import MonomialOps

from svr_lightning.tasks.latex import normalise, without_delimiters
from svr_lightning.tasks.symbolic import CPU_SECONDS, MEMORY, READY

MAX_CHARACTERS = 400
"""Longest answer or reference that is compared."""
MAX_DEPTH = 12
"""Brackets and braces open at once; a deeper answer is not compared."""
RELATIVE = 1e-3
"""Relative tolerance of decimals; without it 0 would equal every small number."""

_LATEX = (LatexExtractionConfig(boxed_match_priority=0),)
_NUMBER = re.compile(r"[0-9]+|[0-9]*\.[0-9]+|[0-9]+\.")
_WORDS = re.compile(r"[A-Za-z]+(?:,[A-Za-z]+)*")
_SHORT_WORDS = ("yes", "no", "odd")
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_SCIENTIFIC = re.compile(r"(?<=[0-9])[eE]([+-]?[0-9]{1,3})(?![0-9])")
_IMAGINARY = re.compile(r"(?<=[0-9])i(?![A-Za-z])")
_MARKS = re.compile(r"(?<=[0-9)])_\{?([0-9]+)|('|\\prime(?![a-zA-Z]))")
_BRACKET = re.compile(r"[(\[]|\\\{")
_GO_ON = 3
"""Exit status of a child that asks to be replaced."""
_FORBIDDEN = ("exec", "compile", "import", "open", "socket.", "subprocess.", "os.", "ctypes.")
_SETS = ("add", "comparison", "functions", "intersection", "issubset", "mul", "power", "union")
_IMPORTED_LATE = (
    "sympy.physics.units",
    *(f"sympy.sets.handlers.{name}" for name in _SETS),
)
_VARIABLES = 8
"""For polynomials in up to so many variables, sympy's generated helpers are made beforehand."""
# One pair per kind of answer: what sympy imports only when needed is imported before the child
# gives up files, and the parser's tables are filled.
_WARM_UP = (
    (r"\sin^2 x + \log_2 8 + \left|x-1\right| + \lfloor 2.5 \rfloor + \sqrt[3]{2+i}", "x"),
    (r"\binom{n}{2} + n! + \arctan x + e^{2 i x} + (-1)^n", r"(x-1)^{\frac{1}{2}} \cot 2"),
    (r"\begin{pmatrix} 1 & \frac{2}{x} \end{pmatrix}", r"\begin{bmatrix} 1 & 2/x \end{bmatrix}"),
    (r"x \in (-\infty, \pi] \cup \{4\}", r"\{4\} \cup (-\infty, \pi]"),
    (r"1 < x \le 2", r"x \in (1, 2]"),
    ("y = 2x + 3", "2x - y + 3 = 0"),
    ("x^2 + y^2 < 4", "4 > y^2 + x^2"),
    (r"1 \pm \sqrt 2, x = 1", r"(1-\sqrt{2}, 1+\sqrt{2})"),
    (r"0.333333", r"\frac13"),
    (r"\sum_{k=1}^{n} k", r"\int_0^n x dx"),
    (r"50\%", "0.5"),
)

# It warns at every answer that its own time limits are off: this process has one.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def equal_answers(answer: str, reference: str) -> bool:
    r"""Whether an answer is mathematically equal to a reference; False where one is not read.

    Examples:
        >>> equal_answers(r"\sqrt{12}", r"2\sqrt{3}")
        True
    """
    if any(len(text) > MAX_CHARACTERS or _depth(text) > MAX_DEPTH for text in (answer, reference)):
        return False
    words = _words(answer), _words(reference)
    if all(words):
        return words[0] == words[1]
    if _marks(answer) != _marks(reference):
        return False
    gold, found = read(reference), read(answer)
    if not gold or not found:
        return False
    equal = verify(gold, found, allow_set_relation_comp=True, timeout_seconds=None)
    return bool(equal) and _same_size(gold[0], found[0]) and _all_sides(gold[0], found[0])


def _marks(text: str) -> list[str]:
    r"""What the reader leaves out: bases as in ``1101_2``, and primes as in ``f'``."""
    return [base or "'" for base, _ in _MARKS.findall(text)]


def read(text: str) -> list[Any]:
    """The answer as sympy's object, or an empty list: the whole text is taken as LaTeX."""
    latex = " ".join(without_delimiters(text).split())
    if not _BRACKET.search(latex):  # in brackets, a comma separates items
        latex = _THOUSANDS.sub("", latex)
    latex = _IMAGINARY.sub(" i", _SCIENTIFIC.sub(r" \\cdot 10^{\1}", latex))
    found = parse(f"${latex}$", _LATEX, fallback_mode="no_fallback", parsing_timeout=None)
    return [_with_imaginary_unit(value) for value in found]


def parse_number(text: str, *_: Any, **__: Any) -> Basic:
    """Replaces sympy's ``parse_expr`` in this process: reads plain numbers only.

    Raises:
        SyntaxError: for any other text.
    """
    if not _NUMBER.fullmatch(text):
        raise SyntaxError("not a plain number")
    return Float(text) if "." in text else Integer(int(text))


def prepare() -> None:
    """Do everything that needs files or generated code, and replace ``parse_expr`` in sympy."""
    for module in _IMPORTED_LATE:
        import_module(module)
    for variables in range(1, _VARIABLES + 1):
        helpers = MonomialOps(variables)
        for make in ("mul", "pow", "mulpow", "ldiv", "div", "lcm", "gcd"):
            getattr(helpers, make)()
    sympy_parser.parse_expr = parse_number
    for answer, reference in _WARM_UP:
        equal_answers(answer, reference)


def lock_down() -> None:
    """Permanently give up files, network, other programs and the execution of text as code.

    An audit hook refuses to compile or run code, by any caller and name, and to open anything; the
    kernel's limits do the same for files and processes, and limit memory.
    """
    files = max(map(int, os.listdir("/proc/self/fd"))) + 1 if Path("/proc/self/fd").is_dir() else 16
    limits = {
        resource.RLIMIT_NOFILE: files,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: _address_space() + MEMORY,
    }
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, limit))
    for name in ("eval", "exec", "compile", "open", "input"):
        setattr(builtins, name, _refuse)
    sys.addaudithook(_audit)


def serve(requests: Any, reply: Callable[[bytes], Any]) -> int:
    """Answer requests until there are none; a time limit ends the process instead.

    Returns:
        The exit status: 0 at the end of the requests.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in requests:
        answer, reference = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            verdict = b"1\n" if equal_answers(answer, reference) else b"0\n"
        except MemoryError:
            verdict = b"m\n"
        except Exception:  # sympy raises every kind on terms that have no value
            verdict = b"0\n"
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply(verdict)
        if verdict == b"m\n":
            return _GO_ON
    return 0


def main() -> None:
    """Warm up, then keep one child that serves until the requests end."""
    logging.disable(logging.CRITICAL)
    requests, replies = os.dup(0), os.fdopen(os.dup(1), "wb", buffering=0)
    prepare()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)
    sys.setrecursionlimit(3000)
    replies.write(READY)
    while True:
        child = os.fork()
        if not child:
            lines = os.fdopen(requests, "rb")
            lock_down()
            os._exit(serve(lines, replies.write))
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            replies.write(b"t\n")
        elif os.waitstatus_to_exitcode(status) != _GO_ON:
            return


def _depth(text: str) -> int:
    """How many brackets and braces are open at once, at most."""
    steps = ((character in "([{") - (character in ")]}") for character in text)
    return max(accumulate(steps), default=0)


def _words(text: str) -> list[str]:
    """The words of a textual answer, in order; as products of letters, anagrams would be equal."""
    letters = normalise(text)
    words = sorted(letters.casefold().split(","))
    readable = _WORDS.fullmatch(letters) and (max(map(len, words)) > 3 or words[0] in _SHORT_WORDS)
    return words if readable else []


def _with_imaginary_unit(value: Any) -> Any:
    """The value with the number i where Math-Verify reads a variable of that name."""
    if not isinstance(value, Basic):
        return value
    names = [symbol for symbol in value.free_symbols if str(symbol) == "i"]
    return value.xreplace(dict.fromkeys(names, I)) if names else value


def _all_sides(gold: Any, found: Any) -> bool:
    """Whether every side of ``x = 4/2 = 2`` but a leading name is the gold value.

    Math-Verify looks at the last side alone, so that any equation ``... = 0`` was equal to 0.
    """
    relations: Sequence[Any] = (found,)
    if isinstance(found, And):
        relations = getattr(found, "_unsorted_args", found.args)
    if not all(isinstance(relation, Eq) for relation in relations):
        return True
    if isinstance(gold, Eq | And):
        return _same_equations(gold, found)
    sides = [relations[0].lhs, *(relation.rhs for relation in relations)]
    if is_expr_of_only_symbols(sides[0]):
        del sides[0]
    return all(verify(gold, side, timeout_seconds=None) for side in sides[:-1])


def _same_equations(gold: Any, found: Any) -> bool:
    """Whether two equations have the same variables, and a constant ratio if without solutions.

    Math-Verify compares solutions, so that all equations without any were equal.
    """
    if not gold.free_symbols or gold.free_symbols != found.free_symbols:
        return False
    if not isinstance(gold, Eq) or not isinstance(found, Eq) or solve(gold, gold.free_symbols):
        return True
    return bool(simplify((gold.lhs - gold.rhs) / (found.lhs - found.rhs)).is_number)


def _same_size(gold: Any, found: Any) -> bool:
    """Whether two numbers, one of them a decimal, also agree within the relative tolerance."""
    if not (isinstance(gold, Basic) and isinstance(found, Basic)):
        return True
    if not (gold.is_number and found.is_number and (gold.has(Float) or found.has(Float))):
        return True
    one, other = complex(N(gold.doit(), 15)), complex(N(found.doit(), 15))
    percent = {abs(one), abs(other), 100 * abs(one), 100 * abs(other)}
    if len(percent) < 4 and abs(one) != abs(other):  # a share and the same number of percent
        return True
    return abs(one - other) <= RELATIVE * max(abs(one), abs(other))


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise PermissionError("not allowed where answers of a model are compared")


def _audit(event: str, _: Any) -> None:
    if event.startswith(_FORBIDDEN):
        _refuse()


def _address_space() -> int:
    """Bytes of address space in use; 0.75 GiB where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return 3 * 2**28
    return int(pages) * resource.getpagesize()


if __name__ == "__main__":
    main()
