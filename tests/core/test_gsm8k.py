"""GSM8K: rows, extraction, numeric comparison, output convention."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svr_lightning.core.types import Problem
from svr_lightning.tasks.gsm8k import GSM8K
from tests.commands import jsonl

TASK = GSM8K()


def problem(reference: str) -> Problem:
    return TASK.from_row({"question": "How many?", "answer": f"so\n#### {reference}"})


def boxed(answer: str) -> str:
    return f"<think>x</think>\n<answer>\\boxed{{{answer}}}</answer>"


# --- rows ----------------------------------------------------------------------------------


def test_the_reference_is_what_follows_the_last_mark():
    row = {"question": "How many?", "answer": "#### 3 was wrong\n#### 1,234", "id": "train-0"}
    assert TASK.from_row(row) == Problem(
        id="train-0", task="gsm8k", question="How many?", reference="1,234"
    )


@pytest.mark.parametrize(("answer", "reference"), [("72", "72"), (72, "72"), ("**72**", "72")])
def test_a_bare_number_is_a_reference(answer, reference):
    assert TASK.from_row({"question": "?", "answer": answer}).reference == reference


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"answer": "#### 1"}, "'question'"),
        ({"question": "?"}, "'answer'"),
        ({"question": "?", "answer": "five\nor so"}, "'answer'"),
        ({"question": "?", "answer": "1\n#### none"}, "'answer'"),
        ({"question": "?", "answer": "#### 10?"}, "'answer'.*not '10\\?'"),  # nobody is sure of it
        ({"question": "?", "answer": True}, "'answer'"),
        ({"question": "?", "answer": ["1", "234"]}, "'answer'"),
        ({"question": "?", "answer": ["#### 1", "#### 2"]}, "'answer'"),
        ({"question": "?", "answer": "#### 1", "id": 0.5}, "'id'"),
    ],
)
def test_a_malformed_row_is_refused_in_one_line_that_names_the_field(row, field):
    with pytest.raises(ValueError, match=field) as caught:
        TASK.from_row(row)
    assert "\n" not in str(caught.value)


# --- extraction ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<answer>\boxed{42}</answer>", "42"),
        (r"<answer>\boxed{1} then \boxed{42}</answer>", "42"),
        (r"<answer>\boxed{42} #### 7</answer>", "42"),  # the box is preferred
        (r"<answer>#### 7 and #### 42</answer>", "42"),
        (r"<answer>\boxed{1}</answer> <answer>\boxed{42}</answer>", "42"),
        (r"<answer>\boxed{42}</answer> but \boxed{1} #### 2", "42"),
        (r"<answer>\boxed{42}</answer><answer>", "42"),
        (r"\boxed{42}", "42"),  # no block
        (r"#### $1,042.50 in all", "1,042.50"),
        (r"<answer>\boxed{42", None),  # never closed
        (r"<answer>42</answer>", None),
        (r"\boxed{42} <answer>42</answer>", "42"),  # a block with nothing to extract
        (r"#### 42 <answer></answer>", "42"),
        ("", None),
    ],
)
def test_the_last_block_comes_first_then_the_end_of_the_text(text, answer):
    assert TASK.extract_answer(text) == answer
    assert TASK.grade(text, problem("42")) is (answer == "42")


def test_the_fallback_sees_the_final_500_characters_and_no_more():
    box = r"\boxed{42}"  # 10 characters
    assert TASK.grade(box + "." * 490, problem("42"))
    assert not TASK.grade(box + "." * 491, problem("42"))
    assert TASK.grade(f"<answer>{box}</answer>" + "." * 1000, problem("42"))


# --- comparison ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        "1234",
        "1,234",
        "1,234.00",
        "1 234",
        "1{,}234",
        r"1\,234",
        "1234.",
        "{{1,234}}",
        "$1234",
        "€1234",
        "1234%",
        "1,234 eggs per day.",
        "1234 miles/hour",
        r"1234\text{ dollars}",
        r"\text{1234 eggs}",
        r"{1234}\text{ dollars}",
        r"1234 \, \mathrm{km}",
        r"1234\text{ cm}^2",
        "**1234**",
        "x = 1234",
        *(r"\left(1,234\right)", "[1234 eggs]", r"\text{USD }1234", "US$1,234"),
        "1234.000009",  # 9e-6 away
        "1.234e3",
        r"\frac{2468}{2}",
    ],
)
def test_superficial_formatting_does_not_matter(answer):
    assert TASK.grade(boxed(answer), problem("1,234"))


@pytest.mark.parametrize(
    "answer",
    [
        "1234.00001",  # 1e-5 away: not below the tolerance
        "-1234",
        "12 34",
        *("12*34", "12**34", "12$34", "12%34", "1 * 234"),
        "12,34",
        "1234, 5",
        "1,234,",
        "1234e1",
        "1234" + "0" * 5000,
        "1234 or 1235",
        "1234 and a half",
        *("1234 n", "1234xy", "1234 pi"),  # terms
        "dollars",
        "",
        "\u0661\u0662\u0663\u0664",
        "inf",
        "1e999999999",
    ],
)
def test_another_number_or_none_is_incorrect(answer):
    assert not TASK.grade(boxed(answer), problem("1,234"))


@pytest.mark.parametrize(
    "text",
    [
        f"####{n}"
        for n in (" -5", " $-5", "-5.0", " **-5**", " -5 degrees", "\n-5", r" \(-5\)", " `-5`")
    ]
    + [f"#### -5{end}" for end in (", in total", ",", ".", "; so", ",in all")]
    + ["#### = -5", "#### \u22125", "#### - 5", "#### -4 2/2"],
)
def test_a_marked_number_is_read(text):
    assert TASK.grade(f"<answer>{text}</answer>", problem("-5"))


def test_a_mark_with_a_comma_between_digits_is_one_number_or_none():
    assert TASK.extract_answer("#### 1,234,567.5, in total") == "1,234,567.5"
    assert TASK.grade("#### 1{,}234 in all", problem("1234"))
    assert not TASK.grade("#### 72,5", problem("72"))


@pytest.mark.parametrize(
    "line",
    [
        "10 or 12",
        "10 (or 12)",
        "10 or twelve",
        "10 or 120",  # not 10,120
        "10, 12",
        "10, 120",
        "10 to 12",
        "10-12",
        "10\u201312",
        "10~12",
        "10..12",
        "10:30",
        "10 hours 30 minutes",
        "$10 and 50 cents",
        "10 and a half",
        "10 \u00d7 3",
        "10 + 2",
        "x = 12 or x = 10",
        "10 = 10 \u00d7 1",
        "10 - twelve",
        "10 - half of it",
        "10 - x",
        "x >= 10",
        "$10 mil",
        "10 =()",
        "10!",
        "10*3",  # neither 103 nor 30
        "10 * 300",
        "10\u20ac50",
        "10. Check: 2 * 5 = 10",
    ],
)
def test_a_line_that_states_no_single_number_is_not_paid_for_its_first_one(line):
    text = f"<answer>#### {line}</answer>"
    assert TASK.extract_answer(text) is None
    assert TASK.format_score(text) == 0.0
    assert not TASK.grade(text, problem("10"))
    # Nor is an earlier mark: the last one states the answer.
    assert TASK.extract_answer(f"#### 10\n#### {line}") is None


@pytest.mark.parametrize(
    "line",
    [
        "10 \u00d7 3 = 30",
        "60 / 2 = 30 eggs",
        "x = 30",
        "5 \u00d7 6 = 15 \u00d7 2 = $30.",
        "30%",
        "USD 30",
        "30 (thirty)",
        "30?",
        "30 - the total",
        "30 \u2013 that is all",
        "$30\u2014in all",
        r"30\text{ dollars}",
        r"$\frac{60}{2}$",
        "30 VERDICT: CORRECT; CONFIDENCE: 0.9",
        "30 <self_check>VERDICT: CORRECT; CONFIDENCE: 0.9</self_check>",
        "30\n\n#### Step 2: check",
    ],
)
def test_behind_a_mark_the_last_side_of_an_equation_counts_and_formatting_does_not(line):
    assert TASK.grade(f"#### {line}", problem("30"))
    assert not TASK.grade(f"#### {line}", problem("10"))


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        *(
            (a, "18000")
            for a in ("18 thousand", "18k", "$18K", "18 Thousand dollars", "18 k", "18 grand")
        ),
        *((a, "18000") for a in (r"18\text{ thousand}", r"18\,\text{thousand eggs}", "18000")),
        ("18 million people", "18000000"),
        ("18M", "18,000,000"),
        ("1.8 bn", "1800000000"),
        (r"18\text{k}", "18000"),
        ("18 ten dollar bills", "18"),
        ("18 thousand six-hundred", None),
        *((a, None) for a in ("18 thousand five hundred", "18-thousand", "18 thousandths")),
        *((a, None) for a in ("18 fourths", "18 squared", "18 and a half", "18 hundred and 5")),
        *(
            (a, "18")
            for a in ("18 percent", "18 dozen", "18m", "18 hundred-dollar bills", "18 grand prizes")
        ),
        *((rf"18\text{{{a}}}", None) for a in ("x", " y", "xy", "n", "pi")),
        *((rf"18\text{{{a}}}", "18") for a in (" dollars", "g", " m", "cm")),
        *((a, None) for a in ("18, 000", "$18, 000", "1, 8", "18 lakh", "18 crores")),
        *((a, None) for a in (".18", "$.18", "-.18", "= .18", "18 quadrillion")),
        *((a, "18000") for a in (r"18,\!000", "18{,} 000", "18,000", r"18\,000")),
    ],
)
def test_what_a_number_says_in_words_is_read_with_it_or_nothing_is(answer, value):
    for text in (boxed(answer), f"#### {answer}", f"<answer>#### {answer}, in all.</answer>"):
        for reference in ("18", value or "18000"):
            assert TASK.grade(text, problem(reference)) is (reference == value), text


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("2\u00bd", "2.5"),
        ("-1 \u00be cups", "-1.75"),
        ("\u215b", "0.125"),
        ("3\u20444", "0.75"),
    ],
)
def test_fractions_of_one_sign_are_read_in_answers_and_references(answer, value):
    for text in (boxed(answer), f"#### {answer}", f"<answer>#### {answer}.</answer>"):
        assert TASK.grade(text, problem(value)), text
        assert TASK.grade(text, problem(answer)), text
        assert not TASK.grade(text, problem("2")), text


def test_a_reference_that_is_no_number_matches_nothing():
    own = Problem(id="", task="gsm8k", question="?", reference="")
    assert not TASK.grade(boxed("0"), own)
    assert not TASK.grade("", own)


# --- output convention ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"<answer>\boxed{42}</answer>", 1.0),
        (r"<answer>\boxed{\frac{1}{2}} eggs</answer>", 1.0),
        ("<answer>#### 42</answer>", 1.0),
        ("<answer>42</answer>", 0.0),
        (r"<answer>\boxed{}</answer>", 0.0),
        (r"<answer>\boxed{42}</answer><answer>42</answer>", 0.0),  # the last block
        (r"\boxed{42} #### 42", 0.0),
        (r"<ANSWER>\boxed{42}</ANSWER>", 0.0),
        ("", 0.0),
    ],
)
def test_a_box_or_a_marked_number_in_the_block_scores_1(text, score):
    assert TASK.format_score(text) == score


# --- any text ------------------------------------------------------------------------------


@given(
    st.lists(
        st.one_of(
            st.sampled_from(["<answer>", "</answer>", "\\boxed{", "}", "{", "#### ", "\\text{"]),
            st.sampled_from(["1", ",", ".", "e", "/", "$", "%", "\\frac", "\\", "-", " "]),
            st.text(max_size=4),
        ),
        max_size=30,
    ).map("".join)
)
def test_any_text_is_graded_without_an_error(text):
    for completion in (text, boxed(text), f"<answer>#### {text}</answer>"):
        assert TASK.grade(completion, problem("1")) in (True, False)
        assert TASK.format_score(completion) in (0.0, 1.0)


# --- real problems -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gsm8k_train", "gsm8k_test"])
def test_every_real_problem_accepts_its_gold_alone(benchmarks, name):
    for row in jsonl(benchmarks / f"{name}.jsonl"):
        hub = TASK.from_row({"question": row["question"], "answer": row["solution"]})
        assert hub == replace(TASK.from_row(row), id="")
        assert TASK.grade(f"<answer>{row['solution']}</answer>", hub)
        assert TASK.grade(boxed(row["answer"]), hub)
        assert not TASK.grade(boxed(row["answer"] + "7"), hub)
