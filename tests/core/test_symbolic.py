"""Mathematical equality of answers: what is equal, what is not, and that no text is run as code."""

import contextlib
import sys
import time

import pytest

from svr_lightning.tasks.base import GradingError
from svr_lightning.tasks.symbolic import equal_answers_apart
from svr_lightning.tasks.worker import parse_number
from tests.commands import ran

EQUAL = [
    # numbers and terms
    (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"\frac{\sqrt{2}}{2}", r"\frac1{\sqrt 2}"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"\cos x \sin x", r"\frac{\sin 2x}{2}"),
    (r"\sin^2\theta + \cos^2\theta", "1"),
    (r"\tan^{-1} 1", r"\frac{\pi}{4}"),
    ("|x-1|", r"\left|1-x\right|"),
    (r"e^{i\pi}", "-1"),
    ("9 i + 6", "6+9i"),
    ("abcd", r"a \cdot b \cdot c \cdot d"),
    (r"33 \cdot 10^{11}", "3.3e12"),
    (r"\binom{5}{2}", "10"),
    (r"2^{-3}", "0.125"),
    (r"2\frac{1}{3}", r"\frac{7}{3}"),
    (r"2\frac{x}{3}", r"\frac{2x}{3}"),
    (r"10,000\pi", r"\pi \cdot 10^4"),
    ("3.4641016", r"2\sqrt{3}"),
    (r"\lfloor \pi \rfloor", r"\lceil e \rceil"),
    (r"a_1 + a_{2}", "a_2 + a_1"),
    # signs of percent, units, words
    (r"50\%", "0.5"),
    (r"3\sqrt{3}\text{ cm}^2", r"\sqrt{27}"),
    ("Even", r"\text{even}"),
    ("Bob, Alice", r"\text{Alice, Bob}"),
    (r"(\text{Even})", "even"),
    # several values
    ("1,2", "2, 1"),
    (r"\{1,2\}", "2,1"),
    ("x=1 or x=2", "2,1"),
    (r"1\pm\sqrt2", r"1-\sqrt{2},1+\sqrt 2"),
    (r"x = \pm 3", "3,-3"),
    ("(1, 0.5)", r"(1,\frac{1}{2})"),
    ("x=1,y=2", "(1,2)"),
    ("y=2,x=1", "x=1,y=2"),
    ("(x,y)=(1,2)", "(1,2)"),
    (
        r"\begin{pmatrix}1&\frac12\\3&4\end{pmatrix}",
        r"\begin{bmatrix} 1 & 0.5 \\ 3 & 4 \end{bmatrix}",
    ),
    # intervals and relations
    ("x>2", r"(2,\infty)"),
    (r"x \in (1, 2]", r"1 < x \le 2"),
    (r"(-\infty,1)\cup(2,3]", r"(2,3]\cup(-\infty,1)"),
    ("y=2x+3", "2x-y+3=0"),
    ("y=2x+3", "2x+3"),
    ("x+y<3", "3>x+y"),
    (r"A = \frac{4}{2} = 2", "2"),
    (r"\emptyset", r"\{\}"),
    ("2,1", "x=1,y=2"),
    # small numbers, decimals of any size, and a base that one of the two leaves out
    ("2^{-60}", r"\frac{1}{1152921504606846976}"),
    (r"\frac{52!}{47!5!}", r"\binom{52}{5}"),
    ("8.673617e-19", "2^{-60}"),
    (r"(2^{-60}, 1)", r"(\frac{1}{2^{60}}, 1)"),
    ("0.5 > x", r"x < \frac12"),
    ("2516", "2516_8"),
    # products that look like mixed numbers, thousands, a percentage in words
    ("2(3)", "6"),
    (r"(2)\left(3\right)x", "6x"),
    (r"\frac{10}{5}(11)", "22"),
    (r"\binom{5}{2}\frac{1}{2}", "5"),
    (r"\frac{1}{2}12", "6"),
    (r"1\frac12x", r"\frac{3x}{2}"),
    (r"\log_2 8", "3"),
    ("27,54,108", "108, 54, 27"),
    (r"10\,000\pi", r"10^4\pi"),
    (r"\sqrt{4} percent", "0.02"),
]

DIFFERENT = [
    ("5 = 72", "72"),
    ("x - 3 = 0", "0"),
    ("1 = 0", "x^2+1=0"),
    ("1 = 1", "2 = 2"),
    ("x^2+2=0", "x^2+1=0"),
    ("403.66485153", "4.5e33"),
    ("x", "y"),
    (r"\sqrt{x^2}", "x"),
    ("3.46", r"\sqrt{12}"),
    ("0", r"\frac{\pi}{10^{9}}"),
    ("0.0000001", r"\frac{\pi}{10^{9}}"),
    (r"10^{20}+\sqrt{2}", r"10^{20}+\sqrt{3}"),
    ("10^{20}+1", "10^{20}"),
    ("0.5", "50"),
    ("neve", "even"),
    (r"\text{odd}", "odo"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    ("(1,2)", "1,2"),
    ("yes,yes", "yes"),
    ("(1,2)", "x=1 or x=2"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "((1,2),(3,4))"),
    ("x=x", "x=1"),
    (r"\{2,\frac{4}{2}\}", r"\{2,3\}"),
    (r"\frac{1}{0}", r"\frac{x}{0}"),
    (r"\frac{\cos 2t+\sin 2t}{4}", r"\frac{1}{4-\omega^2}"),
    ("(928, 1)", "(927.5, 1)"),
    ("x=1,y=2", "x=2,y=1"),
    ("x>2", r"x \ge 2"),
    ("x>2", "y>2"),
    ("x+y<3", "x+y>3"),
    ("x=1", "2"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ("1011_2", "11"),
    ("1101_2", "1101_3"),
    ("12_{5}", "12_6"),
    (r"\frac{52!}{48!4!}", r"\frac{52!}{47!5!}"),
    ("2^{-60}", "2^{-61}"),
    ("10^{-20}", "-10^{-20}"),
    (r"\frac{\pi}{10^{30}}", r"-\frac{\pi}{10^{30}}"),
    ("1.5e-20", "-1.5e-20"),
    ("-0.5", r"50\%"),
    ("0.000000001", "0.0000001"),
    ("1-2^{-60}", "1"),
    ("e^{-50}", "e^{-51}"),
    ("2^{-60}x", "2^{-61}x"),
    ("(2^{-60}, 1)", "(2^{-61}, 1)"),
    ("[2^{-60}, 1)", "[2^{-61}, 1)"),
    (r"\{2^{-60}, 1\}", r"\{2^{-61}, 1\}"),
    (r"(-\infty,2^{-60})\cup(1,2)", r"(-\infty,2^{-61})\cup(1,2)"),
    (r"\begin{pmatrix}2^{-60}&1\end{pmatrix}", r"\begin{pmatrix}2^{-61}&1\end{pmatrix}"),
    ("x<2^{-60}", "x<2^{-61}"),
    ("x>2^{-60}", r"(2^{-61},\infty)"),
    ("x=2^{-60}", "x=2^{-61}"),
    ("x=2^{-60}", "2^{-61}"),
    ("f'(x)", "f(x)"),
    (r"y^{\prime}", "y"),
    (r"\infty", r"-\infty"),
    ("1 2", "12"),
    ("", ""),
    (r"\frac", r"\frac"),
    ("(1,2)+t(3,4)", "(1,2)+t(3,4)"),
    ("2(3)", "5"),
    ("5 6x", "11x"),
    # letters that might be units, and text between numbers
    ("3t", "3"),
    ("x+2h", "x+2"),
    (r"\frac{1}{2} s", "0.5"),
    (r"2\mathrm{i}", "2"),
    (r"5\text{ hours }30\text{ minutes}", "5"),
    ("1<2", "3<4"),
]


@pytest.mark.parametrize(("answer", "reference"), EQUAL)
def test_what_is_mathematically_equal_is_equal_both_ways(answer, reference):
    assert equal_answers_apart(answer, reference)
    assert equal_answers_apart(reference, answer)


@pytest.mark.parametrize(("answer", "reference"), DIFFERENT)
def test_what_differs_or_is_not_understood_is_not_equal(answer, reference):
    assert not equal_answers_apart(answer, reference)
    assert not equal_answers_apart(reference, answer)


HOSTILE = [
    "x^{x^{x^{x}}}",
    "(1+i)^{10^9}",
    "1e999",
    r"\sqrt[10^9]{2}",
    "7" * 2000,
    r"\frac{" * 200 + "1" + "}{2}" * 200,
    "(" * 24 + "x" + ")" * 24,
    r"\sqrt" * 79 + "1",
    "-" * 290 + "1",
    "|" * 300,
    "1+" * 149 + "x",
    "x=" * 100 + "x",
    r"\begin{pmatrix}" + "1&" * 180 + r"1\end{pmatrix}",
    "1\0",
    "\u0661",
    "\ud800",
    "__import__('os').system('id')",
    "import os; os.abort()",
    "().__class__.__bases__[0].__subclasses__()",
]


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_a_hostile_answer_equals_nothing(answer):
    for reference in (r"\frac{x+1}{2}", "2"):
        with contextlib.suppress(GradingError):  # too much time, on a slow machine
            assert not equal_answers_apart(answer, reference)
    assert equal_answers_apart("x+1", "1+x")  # the process answers, or a new one does


@pytest.mark.parametrize("answer", ["9^{9^{9}}", "(10^{9})!", r"\binom{10^9}{10^8}"])
def test_an_answer_that_cannot_be_computed_is_given_up_and_the_next_one_is_compared(answer):
    started = time.monotonic()
    with pytest.raises(GradingError, match="took too much time or memory"):
        equal_answers_apart(answer, "2")
    assert equal_answers_apart("x+1", "1+x")
    assert time.monotonic() - started < 60


NOT_RUN = """
import contextlib, os, signal, sys
from sympy.parsing import sympy_parser
from svr_lightning.tasks import worker
from tests.core.test_symbolic import DIFFERENT, EQUAL, HOSTILE

reader, writer = os.pipe()
os.write(writer, b".")
original = sympy_parser.parse_expr
for module in list(sys.modules.values()):
    if getattr(module, "parse_expr", None) is original:
        module.parse_expr = lambda *_, **__: os.write(writer, b"?")

def calls():
    found = os.read(reader, 1000)
    os.write(writer, b".")
    return len(found) - 1

def reached(answer, reference):
    if not (child := os.fork()):
        signal.setitimer(signal.ITIMER_PROF, 0.5)
        worker.equal_answers(answer, reference)
        os._exit(0)
    os.waitpid(child, 0)
    return calls()

# The watch sees what it should: a number, as the library reads it without this package.
with contextlib.suppress(ValueError):  # the watch returns no number
    worker.read("12")
number = calls()
sympy_parser.parse_expr = worker.parse_number
pairs = [*EQUAL, *DIFFERENT, *((text, "2") for text in HOSTILE)]
print(number > 0, [pair for pair in pairs if reached(*pair)])
"""


def test_no_answer_reaches_the_parser_that_runs_text():
    done = ran(sys.executable, "-c", NOT_RUN)
    assert done.stdout == "True []\n", done.stdout + done.stderr


def test_only_plain_numbers_are_read_from_strings():
    read = [str(parse_number(text)) for text in ("12", "0.5", ".5", "5.")]
    assert read == ["12", "0.500000000000000", "0.500000000000000", "5.00000000000000"]
    for text in ("x", "1+1", "-1", "1e5", "", '__import__("os")', "\u0661"):
        with pytest.raises(SyntaxError):
            parse_number(text)
