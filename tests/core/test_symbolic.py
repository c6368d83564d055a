"""Mathematical equality of answers: what is equal, what is not, and what is refused unread."""

import time

import pytest

from svr_lightning.tasks.symbolic.equality import equal_answers
from svr_lightning.tasks.symbolic.tokens import UnreadableError, tokenise

EQUAL = [
    # numbers and terms
    (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"\frac{\sqrt{2}}{2}", r"\frac1{\sqrt 2}"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"\frac{1}{x-1}", r"-\frac1{1-x}"),
    (r"\cos x \sin x", r"\frac{\sin 2x}{2}"),
    (r"\sin^2\theta + \cos^2\theta", "1"),
    (r"\tan^{-1} 1", r"\frac{\pi}{4}"),
    ("|x-1|", r"\left|1-x\right|"),
    ("6!", "720"),
    (r"\binom{5}{2}", "10"),
    (r"\log_2 8", "3"),
    (r"e^{i\pi}", "-1"),
    (r"2^{-3}", "0.125"),
    (r"2\frac{1}{3}", r"\frac{7}{3}"),
    (r"2\frac{x}{3}", r"\frac{2x}{3}"),
    (r"0.1\overline{6}", r"\frac16"),
    (r"10,000\pi", r"\pi \cdot 10^4"),
    ("3.4641016", r"2\sqrt{3}"),
    (r"\lfloor \pi \rfloor", r"\lceil e \rceil"),
    (r"a_1 + a_{2}", "a_2 + a_1"),
    # signs of percent, units, words
    (r"50\%", "0.5"),
    (r"3\sqrt{3}\text{ cm}^2", r"\sqrt{27}"),
    ("Even", r"\text{even}"),
    ("yes", r"\text{Yes}"),
    ("Bob, Alice", r"\text{Alice, Bob}"),
    # several values
    ("1,2", "2, 1"),
    ("2 and 3", "3,2"),
    (r"\{1,2\}", "2,1"),
    ("x=1 or x=2", "2,1"),
    (r"1\pm\sqrt2", r"1-\sqrt{2},1+\sqrt 2"),
    (r"x = \pm 3", "3,-3"),
    (r"\{5\}", "5"),
    ("(1, 0.5)", r"(1,\frac{1}{2})"),
    ("x=1,y=2", "(1,2)"),
    ("1,2", "x=1,y=2"),
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
]

DIFFERENT = [
    ("x", "y"),
    ("x^2", "x"),
    (r"\sqrt{x^2}", "x"),
    ("3.46", r"\sqrt{12}"),
    ("0", r"\frac{\pi}{10^{9}}"),
    ("0.0000001", r"\frac{\pi}{10^{9}}"),
    (r"10^{20}+\sqrt{2}", r"10^{20}+\sqrt{3}"),
    ("10^{20}+1", "10^{20}"),
    ("0.5", "50"),
    (r"50\%", "5"),
    ("neve", "even"),
    (r"\text{odd}", "odo"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    ("1,2", "(1,2)"),
    ("1,2", "1,2,2"),
    ("2,1", "x=1,y=2"),
    ("x=1,y=2", "x=2,y=1"),
    ("x>2", "x<2"),
    ("x>2", r"x \ge 2"),
    ("x>2", "y>2"),
    ("x+y<3", "x+y>3"),
    ("y=x", "y=2x"),
    ("x=1", "2"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ("1011_2", "11"),
    ("1", r"\infty"),
    (r"\infty", r"-\infty"),
    (r"\frac10", r"\frac20"),
    ("0^{-1}", "0^{-1}"),
    ("1 2", "12"),
    ("", ""),
    ("_", "_"),
    (r"\frac", r"\frac"),
    (r"\foo", r"\foo"),
    ("(1,2)+t(3,4)", "(1,2)+t(3,4)"),
]


@pytest.mark.parametrize(("answer", "reference"), EQUAL)
def test_what_is_mathematically_equal_is_equal_both_ways(answer: str, reference: str) -> None:
    assert equal_answers(answer, reference)
    assert equal_answers(reference, answer)


@pytest.mark.parametrize(("answer", "reference"), DIFFERENT)
def test_what_differs_or_is_not_understood_is_not_equal(answer: str, reference: str) -> None:
    assert not equal_answers(answer, reference)
    assert not equal_answers(reference, answer)


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9}}",
        "9^{9^{9^{9^{9}}}}",
        "x^{x^{x^{x}}}",
        "(10^{9})!",
        "5" + "!" * 50,
        r"\binom{10^9}{10^8}",
        "(1+i)^{10^9}",
        "1e999",
        r"\sqrt[10^9]{2}",
        "7" * 2000,
        r"\frac{" * 200 + "1" + "}{2}" * 200,
        "(" * 24 + "x" + ")" * 24,
        "-" * 290 + "1",
        r"\sqrt" * 290 + "1",
        "|" * 300,
        r"\begin{pmatrix}" + "1&" * 250 + r"1\end{pmatrix}",
        "1+" * 149 + "x",
        "x=" * 100 + "x",
        "1\0",
        "\u0661",
        "__import__('os').system('id')",
        r"\sin " * 100 + "x",
    ],
    ids=lambda text: text[:20].replace("\0", "NUL"),
)
def test_a_hostile_answer_costs_little_and_equals_nothing(answer: str) -> None:
    started = time.process_time()
    assert not equal_answers(answer, r"\frac{x+1}{2}")
    assert not equal_answers(answer, "2")
    assert time.process_time() - started < 2


def test_too_much_is_not_read() -> None:
    for text in ("x" * 601, "1+" * 200, "1" * 61, "(" * 25 + ")" * 25, "(", ")", "(}", "é"):
        with pytest.raises(UnreadableError):
            tokenise(text)
