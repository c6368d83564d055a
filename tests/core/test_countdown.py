"""Countdown: rows, equations evaluated exactly, output convention."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svr_lightning.core.types import Problem
from svr_lightning.tasks.arithmetic import MAX_DEPTH, MAX_LENGTH, ExpressionError, evaluate
from svr_lightning.tasks.countdown import Countdown
from tests.commands import jsonl

TASK = Countdown()
PROBLEM = TASK.from_row({"nums": [3, 7, 1], "target": 24})


def answered(equation: str) -> str:
    return f"<think>x</think>\n<answer>{equation}</answer>"


def correct(equation: str, problem: Problem = PROBLEM) -> bool:
    return TASK.grade(answered(equation), problem)


# --- rows ----------------------------------------------------------------------------------


def test_a_hub_row_becomes_a_worded_problem():
    assert TASK.from_row({"nums": [44, 19, 35], "target": 98}) == Problem(
        id="",
        task="countdown",
        question="Using the numbers [44, 19, 35], create an equation that equals 98. You can use "
        "basic arithmetic operations (+, -, *, /) and each number can only be used once.",
        reference="98",
        payload={"nums": [44, 19, 35]},
    )


def test_a_row_may_bring_its_own_question_and_id():
    problem = TASK.from_row({"nums": (1, 2.0), "target": 3.0, "question": "1, 2 to 3?", "id": 7})
    assert (problem.id, problem.question, problem.payload["nums"]) == ("7", "1, 2 to 3?", [1, 2])
    assert problem.reference == "3"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"nums": None}, "'nums'"),
        ({"target": None}, "'target'"),
        ({"nums": []}, "'nums'"),
        ({"nums": [1, True]}, "'nums'"),
        ({"nums": [1, 2.5]}, "'nums'"),
        ({"nums": [1, float("nan")]}, "'nums'"),
        ({"nums": [1, -2]}, "'nums'"),
        ({"target": "three"}, "'target'"),
        ({"target": False}, "'target'"),
        ({"question": ""}, "'question'"),
        ({"question": "a\nb", "id": [1]}, "'id'"),
    ],
)
def test_a_malformed_row_is_refused_in_one_line_that_names_the_field(change, field):
    with pytest.raises(ValueError, match=field) as caught:
        TASK.from_row({"nums": [1, 2], "target": 3} | change)
    assert "\n" not in str(caught.value)


# --- correctness ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "equation",
    [
        "3*(7+1)=24",  # the paper's example
        " \n 3 * ( 1 + 7 ) \n ",
        "3*(7+1)=99",  # only what stands before the first = counts
        "3*(7+1) = 24, which is right",
        "3*(7+1)=21+3=24",
        "+3*(+7 - -1)",
        "-3*-(7+1)",
        "03*(007+1)",  # compared as integers
    ],
)
def test_an_equation_that_uses_every_number_once_and_hits_the_target_is_correct(equation):
    assert correct(equation)


@pytest.mark.parametrize(
    "equation",
    [
        "",
        "24",
        "24 = 3*(7+1)",
        "3*7+1",
        "3*7+3",
        "3*(7+1)+1-1",
        "37-1-12",  # 22; 3 twice and 1 never; 1 thrice; 37
        "3 * 7 1",
        "3*(7+1",
        "3(7+1)",
        "3*(7+1);",
        "3\n*(7+1)",
        "3*(7+1)\x00",
        "3**1*7",
        "3*(7.0+1)",
        "3\u00d7(7+1)",
        "3\u00a0*(7+1)",
        "\u0663*(7+1)",  # an Arabic-Indic 3
        "\\boxed{3*(7+1)}",
        "__import__('os')",
    ],
)
def test_anything_else_is_incorrect(equation):
    assert not correct(equation)


def test_numbers_are_used_as_a_multiset():
    twins = TASK.from_row({"nums": [5, 5, 2], "target": 50})
    assert correct("5*5*2", twins)
    assert not correct("5*2*5*1", twins)
    assert not correct("25*2", twins)
    assert not correct("5*(5*2)/1", twins)
    # All of them: 3*8 hits the target without the 5.
    assert not correct("3*8", TASK.from_row({"nums": [3, 8, 5], "target": 24}))


def test_division_is_exact():
    # 8 / (3 - 8/3) = 8 / (1/3) = 24; in floating point it is 23.999999999999989
    assert correct("8/(3-8/3)", TASK.from_row({"nums": [8, 3, 8, 3], "target": 24}))
    # 100000001 / 100000000 = 1.00000001, close to 1 and not 1
    near = TASK.from_row({"nums": [100000001, 100000000], "target": 1})
    assert not correct("100000001/100000000", near)


def test_a_division_by_zero_is_incorrect():
    zero = TASK.from_row({"nums": [1, 2, 2], "target": 0})
    assert not correct("1/(2-2)", zero)
    assert correct("(2-2)/1", zero)


def test_the_first_complete_block_counts():
    right, wrong = "<answer>3*(7+1)</answer>", "<answer>1</answer>"
    assert TASK.grade(right + wrong, PROBLEM)
    assert not TASK.grade(wrong + right, PROBLEM)
    assert TASK.grade("</answer>" + right, PROBLEM)


@pytest.mark.parametrize("text", ["", "3*(7+1)", "<answer>3*(7+1)", "<ANSWER>3*(7+1)</ANSWER>"])
def test_without_a_block_nothing_is_correct(text):
    assert not TASK.grade(text, PROBLEM)
    assert TASK.extract_answer(text) is None


def test_length_and_nesting_are_bounded():
    one = TASK.from_row({"nums": [1], "target": 1})
    deepest = "(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH
    assert correct(deepest, one)
    assert not correct(f"({deepest})", one)
    assert correct("+" * (MAX_LENGTH - 1) + "1", one)
    assert not correct("+" * MAX_LENGTH + "1", one)


EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_evaluation_agrees_with_python_on_fractions(text):
    words = text.replace("(", " ( ").replace(")", " ) ").split()
    spelled = " ".join(f"Fraction({word})" if word.isdigit() else word for word in words)
    try:
        expected = eval(spelled, {"Fraction": Fraction})  # the test's own text, digits and + - * /
    except ZeroDivisionError:
        with pytest.raises(ExpressionError):
            evaluate(text)
        return
    value, numbers = evaluate(text)
    assert value == expected
    assert numbers == [int(word) for word in words if word.isdigit()]


@given(st.text(alphabet="0123456789+-*/() =.x\n\u0663", max_size=40))
def test_any_text_is_graded_without_an_error(text):
    assert correct(text) in (True, False)
    assert TASK.format_score(answered(text)) == 1.0


# --- output convention ---------------------------------------------------------------------

CHECK = "<self_check>VERDICT: CORRECT; CONFIDENCE: 1</self_check>"


@pytest.mark.parametrize(
    "text",
    [
        "<think>a</think><answer>b</answer>",
        "<think>a\n\nb</think> \n\t <answer>c\nd</answer>",
        f"  <think>a</think>\n<answer>b</answer>\n{CHECK}\n",
        f"{CHECK}<think>a</think>{CHECK}<answer>b</answer>{CHECK.upper()}",
        "<think>a</think> no </think><answer>b</answer>",
        "<think>a</think><answer>b</answer> or <answer>c</answer>",
    ],
)
def test_reasoning_then_an_answer_and_nothing_else_scores_1(text):
    assert TASK.format_score(text) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<answer>b</answer>",
        "<think>a<answer>b</answer>",
        "<think>a</think><answer>b",
        "a<think>a</think><answer>b</answer>",
        "<think>a</think> so <answer>b</answer>",
        "<think>a</think><answer>b</answer>.",
        "<THINK>a</THINK><ANSWER>b</ANSWER>",
        "<think></answer></think><answer>",
        "<answer>b</answer><think>a</think>",
        "<think>a</think><answer>b</answer><self_check>VERDICT: CORRECT",  # never closed
    ],
)
def test_any_other_shape_scores_0(text):
    assert TASK.format_score(text) == 0.0


# --- real problems -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["countdown", "countdown_extra1024"])
def test_every_real_problem_is_solved_by_its_solution_alone(benchmarks, name):
    for row in jsonl(benchmarks / f"{name}.jsonl"):
        problem = TASK.from_row(row)
        assert problem.id == row["id"]
        assert problem.question == TASK.from_row({k: row[k] for k in ("nums", "target")}).question
        assert correct(f"{row['solution']} = {row['target']}", problem)
        assert not correct(f"{row['solution']} + 1", problem)
        assert not correct(str(row["target"]), problem)
