"""MATH family: rows, boxed extraction, the paper's equivalence, output convention."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svr_lightning.core.types import Problem
from svr_lightning.tasks.grading import check_reference, unread_references
from svr_lightning.tasks.latex import MAX_ANSWER, last_boxed, read_number
from svr_lightning.tasks.math import Math
from tests.commands import jsonl
from tests.limits import bounded_processor_time
from tests.math_answers import EQUAL

TASK = Math()


def problem(reference: str, task: str = "math") -> Problem:
    return Problem(id="", task=task, question="?", reference=reference)


def boxed(answer: str) -> str:
    return f"<think>x</think>\n<answer>\\boxed{{{answer}}}</answer>"


def same(answer: str, reference: str) -> bool:
    return TASK.grade(boxed(answer), problem(reference))


# --- rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "reference"),
    [
        ({"solution": r"\boxed{1}, or $\boxed{\frac{1}{2}}$."}, r"\frac{1}{2}"),
        ({"answer": " p - q\n", "solution": r"\boxed{no}"}, "p - q"),
        ({"answer": "", "solution": r"so $\boxed 5$."}, "5"),
        ({"answer": None, "solution": r"\boxed {3.5}"}, "3.5"),
        ({"answer": 277}, "277"),
        ({"answer": r"\boxed{5}"}, "5"),
        ({"answer": "We add 2 and 3.\nSo it is $\\boxed{5}$."}, "5"),
        ({"answer": "2 + 3 = 5\n#### 5"}, "5"),
        ({"answer": r"#### \boxed{5}"}, "5"),
        ({"answer": "<think>2 + 3</think>\n<answer>5</answer>"}, "5"),
        ({"answer": "The answer is: 5 miles per hour"}, "5 miles per hour"),
        ({"answer": [r"\boxed{1}", r"\boxed{2}"]}, "1, 2"),
        (
            {"answer": "all real numbers except zero"},
            "all real numbers except zero",
        ),
        ({"solution": r"\boxed{{7}}"}, "{7}"),
        ({"final_answer": ["$1$", "$2$"], "solution": ["a", "b"]}, "$1$, $2$"),
    ],
)
def test_the_gold_is_the_answer_or_the_last_box_of_the_solution(row, reference):
    assert TASK.from_row({"question": "?"} | row) == problem(reference)


@pytest.mark.parametrize(
    ("row", "identifier"),
    [
        ({"id": "a"}, "a"),
        ({"unique_id": "test/algebra/1.json"}, "test/algebra/1.json"),
        ({"problem_idx": 3}, "3"),
        ({}, ""),
    ],
)
def test_the_id_is_the_rows_own_if_it_has_one(row, identifier):
    assert TASK.from_row({"problem": "?", "answer": "1"} | row).id == identifier


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "1"}, "'problem' or 'question'"),
        ({"question": "", "answer": "1"}, "'question'"),
        ({"problem": "?"}, "'answer' or 'final_answer' or 'solution'"),
        ({"problem": "?", "answer": "  ", "solution": r"\boxed{}"}, "'solution' states no answer"),
        ({"problem": "?", "solution": r"\boxed{1}, so \boxed{ }"}, "states no answer"),
        ({"problem": "?", "answer": "We add 2 and 3 to get 5."}, "'answer' states no answer"),
        ({"problem": "?", "answer": "2 + 3 = 5\nx = 5"}, "'answer' states no answer"),
        ({"problem": "?", "answer": "x + 2 = 7, so x = 5"}, "'answer' states no answer"),
        ({"problem": "?", "answer": []}, "'answer' states no answer"),
        ({"problem": "?", "answer": True}, "'answer'"),
        ({"problem": "?", "answer": [["1"]]}, "'answer'"),
        ({"problem": "?", "answer": float("inf")}, "'answer'"),
        ({"problem": "?", "answer": "\x7f5"}, r"character U\+007F; remove it"),
    ],
)
def test_a_malformed_row_is_refused_in_one_line_that_says_why(row, message):
    with pytest.raises(ValueError, match=message) as caught:
        TASK.from_row(row)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        (r"\\frac{3}{7}", r"\frac{3}{7}"),
        (r"so \\boxed{\\frac{3}{7}}", r"\frac{3}{7}"),
        (r"\\\\frac{3}{7}", r"\frac{3}{7}"),
        (r"\\{1, 2\\}", r"\{1, 2\}"),
        (r"\sqrt2 + \\sqrt{3}", r"\sqrt2 + \sqrt{3}"),
        (
            r"\\begin{pmatrix}1\\\\2\\end{pmatrix}",
            r"\begin{pmatrix}1\\2\end{pmatrix}",
        ),
        (
            r"\begin{pmatrix}1\\xy\end{pmatrix}",
            r"\begin{pmatrix}1\\xy\end{pmatrix}",
        ),
    ],
)
def test_doubled_backslashes_of_commands_are_single_ones_and_rows_of_matrices_stay(
    answer, reference
):
    row = {"problem": "?", "answer": answer}
    assert TASK.from_row(row).reference == reference
    assert TASK.grade(boxed(reference), TASK.from_row(row))


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("\frac{3}{7}", r"\frac"),
        ("\theta", r"\theta"),
        ("2\times 3", r"\times"),
        ("\boxed{5}", r"\boxed"),
        ("\right)", r"\right"),
        ("\alpha", r"\alpha"),
        ("x \neq 3", r"\neq"),
        ("\nu", r"\nu"),
        ("p \not= 3", r"\not"),
    ],
)
def test_a_backslash_that_json_swallowed_is_named_with_the_command(text, command):
    for row in ({"problem": "?", "answer": text}, {"problem": f"Is ${text}$?", "answer": "5"}):
        with pytest.raises(ValueError, match="control character U") as caught:
            TASK.from_row(row)
        assert f'the backslash of {command} was lost; in JSON, write "\\{command}"' in str(
            caught.value
        )
    with pytest.raises(ValueError, match=r"the control character U\+0000; remove it"):
        TASK.from_row({"problem": "?", "answer": "5\0"})


def test_tabs_and_lines_of_code_and_tables_are_no_lost_backslashes():
    for question in ("for i:\n\treturn 2*i", "a\tb\n\tan apple", "94 \tinches\r\nright", "$$\nu=5"):
        assert TASK.from_row({"problem": question, "answer": "5"}).question == question


@pytest.mark.parametrize(
    "word", ["nan", "NaN", "None", "N/A", "n/a", "null", "NULL", "<NA>", "[]", "'None'", '["nan"]']
)
def test_a_word_for_a_missing_value_is_no_reference(word):
    with pytest.raises(ValueError, match="'answer' states no answer"):
        TASK.from_row({"problem": "?", "answer": word})
    row = {"problem": "?", "answer": word, "solution": r"\boxed{5}"}
    assert TASK.from_row(row).reference == "5"
    assert TASK.from_row({"problem": "?", "answer": "none"}).reference == "none"


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ('["1","2"]', "1, 2"),
        ("['1' , '2']", "1, 2"),
        ("['$5$']", "$5$"),
        ('["a, b"]', "a, b"),
        (r"['\\frac{1}{2}']", r"\frac{1}{2}"),
        ("[1, 2]", "[1, 2]"),  # an interval
        ("`5`", "5"),
        ('"5"', "5"),
        ("'5'", "5"),
        ("\u201c5\u201d", "5"),
        ("f'(x) = g'(x)", "f'(x) = g'(x)"),
    ],
)
def test_written_lists_and_quotes_around_an_answer_are_read(answer, reference):
    assert TASK.from_row({"problem": "?", "answer": answer}).reference == reference


def test_a_list_of_numbers_is_not_the_number_that_its_digits_make():
    several = TASK.from_row({"problem": "?", "answer": ["10", "100"]})
    assert TASK.grade(boxed("10,100"), several)
    assert not TASK.grade(boxed("10100"), several)


def test_references_with_digits_that_no_grader_reads_are_found():
    read = [r"\frac{3\pi}{4}", "(1,2]", "12 cm", "1101_{two}", r"\sin 2x", "even", "2.5e3", "ab+3"]
    read += [r"\begin{pmatrix}1\\2\end{pmatrix}", r"0.\overline{3}", r"\log_{10} x"]
    read += ["5\u00bd", "\u00bc", "0^-", r"1^{+}", "2!"]
    unread = ["$5$ apples", "\uff15", '["5"', "October 30", "5 if x then 6"]
    unread += ["10?", "10 (?)", "#10", "10 -", "10/", "x = 10 =", "10,"]
    eggs = problem("5 eggs", "gsm8k")  # which reads 5
    assert unread_references([eggs, *map(problem, read + unread)]) == unread


@pytest.mark.parametrize("reference", [r"\frac{1", "}{", "$", r"\text{}", "x" * 2001])
def test_a_reference_that_no_answer_equals_does_not_equal_itself(reference):
    with pytest.raises(ValueError, match="does not equal itself") as caught:
        check_reference(problem(reference))
    assert "\n" not in str(caught.value)


# --- extraction ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{5}", "5"),
        (r"\boxed{1} \boxed{2}", "2"),
        (r"\boxed{1} \boxed{} \boxed{ }", "1"),
        (r"\boxed{1} \boxed{2", "1"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{a \boxed{5}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed {5}", "5"),
        (r"\\boxed{5}", "5"),
        ("{{{ \\boxed{5}", "5"),
        (r"\boxed 5", None),
        (r"\boxed{5\}", None),
        ("", None),
    ],
)
def test_boxes_are_found_by_matching_braces(text, content):
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} <answer>\boxed{2}</answer> \boxed{3}", "2"),
        (r"<answer>\boxed{1}</answer> <answer>\boxed{2}</answer>", "2"),
        (r"<answer>\boxed{1}</answer> <answer>2</answer>", "1"),  # whole response
        (r"\boxed{1} <answer>\boxed{}</answer>", "1"),
        (r"\boxed{1} and <answer>\boxed{2}", "2"),
        (r"\boxed{1}" + "." * 10_000, "1"),
        ("<answer>1</answer>", None),
    ],
)
def test_the_last_block_comes_first_then_the_whole_response(text, answer):
    assert TASK.extract_answer(text) == answer
    assert TASK.grade(text, problem("1")) is (answer == "1")


# --- equivalence ---------------------------------------------------------------------------


DIFFERENT = [
    ("0.50001", "0.5"),  # 1e-5 apart: not below the tolerance
    ("0.3333", r"\frac13"),
    ("5m", "5"),
    (r"18\text{ million}", "18"),
    ("1 2", "12"),
    ("1 2345", "12345"),
    *(("1, 234", given) for given in ("1234", "1 234")),  # two numbers
    (r"18\text{x}", "18"),
    (r"60^\circ, 120^\circ", "60120"),  # of MATH
    *((given, "1030") for given in ("10%30", "10$30", r"10^\circ30")),
    ("(1,2)", "(2,1)"),
    ("1,2", "12"),
    (r"\sqrt{12}", r"2\sqrt{3}"),  # needs algebra
    (r"3+2\text{i}", "3+2"),
    (r"\frac{1}{0}", "1"),
    (r"\frac{1}{0}", r"\frac{2}{0}"),
    ("11/2", "1 1/2"),
    ("x^{10}", "x^10"),  # TeX reads the second as x^1 0
    ("a=1,b=2", "2"),
    ("1e9999", "5"),
    ("\u0665", "5"),
    ("__import__('os')", "5"),
    ("", ""),
]


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_formatting_does_not_change_an_answer(left, right):
    assert same(left, right)
    assert same(right, left)


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different_answers_stay_different(left, right):
    assert not same(left, right)
    assert not same(right, left)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.5", Fraction(2469, 2)),
        (r"-2\frac{1}{4}", Fraction(-9, 4)),
        (r"\frac{0.5}{2}", Fraction(1, 4)),
        (r"-2.5\cdot10^{-2}", Fraction(-1, 40)),
        ("-1.5million", -1_500_000),
        ("12,34", None),
        (r"0.\overline{3}", Fraction(1, 3)),
        (r"-1.2\overline{45}", Fraction(-137, 110)),  # (1245 - 12) / 990
        (r".1\bar{6}", Fraction(1, 6)),
        (r"0.\dot{9}", Fraction(1)),
        (r"1,234.\overline{5}", Fraction(11111, 9)),
        (r"\overline{3}", None),
        (r"0.\overline{AB}", None),
        ("1e1000", None),
        (r"\frac{1}{0}", None),
        (r"\frac{1}{\frac{1}{2}}", None),
        ("", None),
    ],
)
def test_numbers_are_read_exactly(text, value):
    assert read_number(text) == value


def test_the_tolerance_is_absolute_so_golds_far_below_it_accept_zero_as_in_the_paper():
    assert same("0", "2.88e-19")
    assert not same("0", "1e-5")
    assert not same("4.5e33", "4.500001e33")


def test_an_answer_longer_than_the_bound_is_never_correct():
    assert same("x" * MAX_ANSWER, "x" * MAX_ANSWER)
    assert not same("x" * (MAX_ANSWER + 1), "x" * (MAX_ANSWER + 1))


# --- output convention ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"<answer>\boxed{x}</answer>", 1.0),
        (r"<answer>so \boxed{\frac{1}{2}}.</answer>", 1.0),
        ("<answer>5</answer>", 0.3),
        (r"<answer>\boxed{}</answer>", 0.3),
        (r"\boxed{5} <answer>5</answer>", 0.3),
        (r"<answer>5</answer> \boxed{5} </answer>", 0.3),  # the block ends at its first close
        (r"<answer>\boxed{5} <answer>5</answer>", 0.3),
        (r"\boxed{5}", 0.0),
        (r"<answer>\boxed{5}", 0.0),
        ("", 0.0),
    ],
)
def test_a_box_in_the_block_scores_1_and_a_bare_block_three_tenths(text, score):
    assert TASK.format_score(text) == score


# --- any text ------------------------------------------------------------------------------

LATEX = st.lists(
    st.one_of(
        st.sampled_from(["\\frac", "\\sqrt", "\\sqrt[", "\\text{", "\\left", "\\boxed{", "\\"]),
        st.sampled_from(["{", "}", "[", "]", "(", ")", "^", "_", "=", ",", ".", "/", " ", "-"]),
        st.sampled_from(["1", "12", "x", "e5", "\\in", "\\%", "<answer>", "</answer>", "and "]),
        st.text(max_size=3),
    ),
    max_size=30,
).map("".join)


@given(LATEX, LATEX)
def test_any_text_is_graded_without_an_error(text, other):
    for completion in (text, boxed(text)):
        assert TASK.grade(completion, problem(other)) in (True, False)
        assert TASK.format_score(completion) in (0.0, 0.3, 1.0)


@pytest.mark.parametrize(
    "piece", ["{", "}", "\\frac", "\\sqrt[", "\\text{", "9", " ", "(", ", and "]
)
def test_the_longest_answers_are_compared_in_bounded_time(piece):
    answer = piece * (MAX_ANSWER // len(piece))
    with bounded_processor_time():
        assert TASK.answer_form(answer) != TASK.answer_form("1")


def test_digits_that_end_as_no_fraction_are_read_in_one_way():
    answer = rf"\frac{{{'1' * 660}}}{{{'1' * 1310} x}}"
    with bounded_processor_time(1.0):  # 3.5 s if each digit may end the whole part
        assert TASK.answer_form(answer) != TASK.answer_form("1")


def test_a_hundred_thousand_nested_braces_are_matched():
    nested = "{" * 100_000 + "5" + "}" * 100_000
    assert last_boxed(f"\\boxed{{{nested}}}") == nested
    assert last_boxed("\\boxed{" * 100_000 + "5" + "}" * 100_000) == "5"


# --- real problems -------------------------------------------------------------------------

WITHOUT_GOLD = {"math/train/5341", "math/train/5343"}  # \boxed{} in the original data


@pytest.mark.parametrize(
    "name", ["math_train", "math500", "aime26", "amc23", "olympiadbench", "minerva_math"]
)
def test_every_real_problem_accepts_its_gold_alone(benchmarks, name):
    for row in jsonl(benchmarks / f"{name}.jsonl"):
        if row["id"] in WITHOUT_GOLD:
            with pytest.raises(ValueError, match="states no answer"):
                TASK.from_row(row)
            continue
        real = TASK.from_row(row)
        assert real.reference == row["answer"].strip()
        assert TASK.grade(boxed(row["answer"]), real)
        assert not TASK.grade(boxed(row["answer"] + " + \\text{wrong}"), real)
        if name in ("math_train", "math500", "minerva_math"):  # whose solutions end in a box
            hub = TASK.from_row({"problem": row["question"], "solution": row["solution"]})
            assert hub.reference == real.reference
