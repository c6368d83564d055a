"""One spelling for every way of writing a Countdown expression."""

from itertools import permutations, product

import pytest

from svr_lightning.tasks import get_task
from svr_lightning.tasks.arithmetic import ExpressionError, canonical, evaluate


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1+2+3", "3+(2+1)"),
        ("9-(4-1)", "9+1-4"),
        ("8/(4/2)", "8*2/4"),
        ("(7-3)*(9-5)", "(5-9)*(3-7)"),
        ("-(3-8)", "8-3"),
        ("+4", "--4"),
        ("5*(3-3)", "-5*(3-3)"),
        ("(0*2)+1", "1-0*2"),
    ],
)
def test_ways_of_writing_one_derivation_are_spelt_alike(left, right):
    assert canonical(left) == canonical(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("2*(3+5)", "2*3+2*5"),
        ("3+5-5", "3*5/5"),
        ("4+4", "8"),
        ("8-3", "3-8"),
        ("1*5", "5"),
        ("2-3*4", "(2-3)*4"),
    ],
)
def test_different_derivations_are_spelt_differently(left, right):
    assert canonical(left) != canonical(right)


@pytest.mark.parametrize("text", ["", "3+", "1/(3-2-1)", "3=3"])
def test_what_the_evaluator_does_not_read_has_no_spelling(text):
    with pytest.raises(ExpressionError):
        canonical(text)
    with pytest.raises(ExpressionError):
        evaluate(text)


def test_expressions_of_different_values_never_share_a_spelling():
    values = {}
    forms = ("{0}{3}{1}{4}{2}", "({0}{3}{1}){4}{2}", "{0}{3}({1}{4}{2})", "-({0}{3}{1}){4}{2}")
    for numbers in permutations((1, 3, 4)):
        for form, first, second in product(forms, "+-*/", "+-*/"):
            text = form.format(*numbers, first, second)
            try:
                exact = evaluate(text)[0]
            except ExpressionError:
                continue
            assert values.setdefault(canonical(text), exact) == exact
    # 3! orders, 4 forms and 16 pairs of operators are 384 texts of far fewer derivations.
    assert 60 < len(values) < 192


def test_a_countdown_answer_is_its_left_side():
    form = get_task("countdown").answer_form
    assert form("(3+5)*2 = 16") == form("2 * (5 + 3)=16=16")
    assert form("3+5*2=13") != form("(3+5)*2=16")
    assert form("the sum of 3 and 5") is None
    assert form("= 16") is None
