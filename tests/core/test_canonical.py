"""One spelling for every way of writing a Countdown expression."""

import random
from fractions import Fraction
from itertools import permutations, product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from svr_lightning.tasks import get_task
from svr_lightning.tasks.arithmetic import ExpressionError, canonical, evaluate


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("(3+5)*2", "2*(5+3)"),
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
def test_ways_of_writing_one_derivation_are_spelt_alike(left: str, right: str) -> None:
    assert canonical(left) == canonical(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("2*(3+5)", "2*3+2*5"),
        ("4+4", "8"),
        ("8-3", "3-8"),
        ("1*5", "5"),
        ("2-3*4", "(2-3)*4"),
    ],
)
def test_different_derivations_are_spelt_differently(left: str, right: str) -> None:
    assert canonical(left) != canonical(right)


@pytest.mark.parametrize(
    "text", ["", "3+", "1/(2-2)", "2**3", "3^2", "1" * 201, "(" * 40, "x", "3=3"]
)
def test_what_the_evaluator_does_not_read_has_no_spelling(text: str) -> None:
    with pytest.raises(ExpressionError):
        canonical(text)
    with pytest.raises(ExpressionError):
        evaluate(text)


# Trees are an integer, ("-", tree), or (operator, tree, tree).
TREES = st.recursive(
    st.integers(0, 9),
    lambda tree: st.one_of(
        st.tuples(st.just("-"), tree), st.tuples(st.sampled_from("+-*/"), tree, tree)
    ),
    max_leaves=7,
)


def written(tree: object) -> str:
    if isinstance(tree, int):
        return str(tree)
    assert isinstance(tree, tuple)
    operator, *parts = tree
    inner = [part if isinstance(part, int) else f"({written(part)})" for part in parts]
    return f"-{inner[0]}" if len(inner) == 1 else f"{inner[0]}{operator}{inner[1]}"


def rewritten(tree: object, rng: random.Random) -> object:
    """The same derivation after random exchanges, regroupings and moves of signs."""
    if isinstance(tree, int):
        return ("-", ("-", tree)) if rng.random() < 0.1 else tree
    assert isinstance(tree, tuple)
    operator, *parts = tree
    first, *others = (rewritten(part, rng) for part in parts)
    if not others:  # -(a+b) = (-a)-b, -(a*b) = (-a)*b
        if isinstance(first, tuple) and len(first) == 3 and rng.random() < 0.5:
            pushed = {"+": "-", "-": "+"}.get(first[0], first[0])
            return (pushed, ("-", first[1]), first[2])
        return ("-", first)
    second = others[0]
    add, undo = ("+", "-") if operator in "+-" else ("*", "/")
    grouped = isinstance(first, tuple) and len(first) == 3 and first[0] in (add, undo)
    if grouped and rng.random() < 0.5:  # (a+b)-c = a+(b-c), (a-b)+c = a-(b-c)
        turn = {add: undo, undo: add} if first[0] == undo else {add: add, undo: undo}
        return (first[0], first[1], (turn[operator], first[2], second))
    if operator == add and rng.random() < 0.5:
        return (add, second, first)
    if operator == "-" and rng.random() < 0.5:
        return ("+", ("-", second), first)
    return (operator, first, second)


def value(tree: object) -> Fraction | None:
    text = written(tree)
    try:
        return evaluate(text)[0] if len(text) <= 200 else None
    except ExpressionError:
        return None


@settings(max_examples=150, deadline=None)
@given(TREES, st.randoms(use_true_random=False))
def test_random_exchanges_and_regroupings_keep_the_spelling(
    tree: object, rng: random.Random
) -> None:
    other = rewritten(rewritten(tree, rng), rng)
    before, after = value(tree), value(other)
    assume(before is not None and after is not None)
    assert before == after
    assert canonical(written(tree)) == canonical(written(other))


def test_expressions_of_different_values_never_share_a_spelling() -> None:
    values: dict[str, Fraction] = {}
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


def test_a_countdown_answer_is_its_left_side() -> None:
    form = get_task("countdown").answer_form
    assert form("(3+5)*2 = 16") == form("2 * (5 + 3)=16=16")
    assert form("3+5*2=13") != form("(3+5)*2=16")
    assert form("the sum of 3 and 5") is None
    assert form("= 16") is None
