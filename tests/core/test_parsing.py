"""Self-check parsing: the paper's table "Parsing and fallback rules", clause by clause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svr_lightning.core.parsing import (
    CLOSE_TAG,
    CONFIDENCE_PRIOR,
    OPEN_TAG,
    parse_self_check,
    self_check_format_score,
    without_spans,
)
from svr_lightning.core.types import SelfCheck, Verdict

C, I, U = Verdict.CORRECT, Verdict.INCORRECT, Verdict.UNSURE  # noqa: E741


def check(verdict: Verdict, confidence: float) -> SelfCheck:
    return SelfCheck(verdict=verdict, confidence=confidence)


def block(content: str) -> str:
    return f"<self_check>{content}</self_check>"


# --- scope ---------------------------------------------------------------------------------


def test_a_complete_block_hides_fields_outside_it():
    text = "VERDICT: INCORRECT; CONFIDENCE: 0.1 " + block("VERDICT: CORRECT; CONFIDENCE: 0.9")
    assert parse_self_check(text + " VERDICT: UNSURE") == check(C, 0.9)


def test_a_field_missing_from_the_block_is_not_taken_from_outside():
    text = block("VERDICT: CORRECT") + " CONFIDENCE: 0.99"
    assert parse_self_check(text) == check(C, 0.8)


def test_the_first_complete_block_counts():
    first, second = block("VERDICT: WRONG; CONFIDENCE: 0.3"), block("VERDICT: RIGHT")
    assert parse_self_check(first + second) == check(I, 0.3)


def test_a_block_spans_lines_and_tags_match_in_any_capitalization():
    text = "<SELF_Check>\nverdict:\n  Correct\nconfidence:\n0.7\n</Self_CHECK>"
    assert parse_self_check(text) == check(C, 0.7)


@pytest.mark.parametrize(
    "text", ["{}", "<self_check>{}", "{}</self_check>", "</self_check>{}<self_check>"]
)
def test_without_a_complete_block_the_whole_text_is_scanned(text):
    fields = "so VERDICT: CORRECT; CONFIDENCE: 0.95"
    assert parse_self_check(text.format(fields)) == check(C, 0.95)


@pytest.mark.parametrize("text", ["", " \n", "42", "\x00", "<self_check></self_check>"])
def test_nothing_to_read_is_unsure_at_one_half(text):
    assert parse_self_check(text) == check(U, 0.5)


# --- verdict -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "verdict"),
    [("CORRECT", C), ("INCORRECT", I), ("UNSURE", U), ("RIGHT", C), ("WRONG", I), ("wRoNg", I)],
)
@pytest.mark.parametrize("separator", [": ", ":", "=", " = ", " ", "\n", "\t", ":=: ", "\xa0"])
def test_five_words_are_verdicts_after_any_run_of_separators(word, verdict, separator):
    assert parse_self_check(f"VERDICT{separator}{word}; CONFIDENCE: 0.6") == check(verdict, 0.6)


@pytest.mark.parametrize(
    "value",
    [
        "CORRECT, INCORRECT, or UNSURE",  # the template echoed
        "CORRECT/INCORRECT",
        "correct or incorrect",
        "CORRECT or not CORRECT",
        "CORRECT INCORRECT",
        "CORRECT" + " " * 99 + ", INCORRECT",
        "CORRECT,\n or UNSURE",
        "NOT CORRECT",
        "CORRECTLY",
        "MAYBE",
        "**CORRECT**",
        "",
        "\u0130NCORRECT",
        "UN\u017fURE",  # a dotted capital I is no I, a long s is no s
    ],
)
def test_any_other_value_is_unsure_and_keeps_the_confidence(value):
    text = block(f"VERDICT: {value}; CONFIDENCE: 0.9")
    assert parse_self_check(text) == check(U, 0.9)
    assert self_check_format_score(text) == 0.0


@pytest.mark.parametrize(
    "value", ["CORRECT.", "CORRECT;", "CORRECT (checked)", "CORRECT, checked", "CORRECT!"]
)
def test_punctuation_and_prose_after_a_verdict_do_not_matter(value):
    assert parse_self_check(f"VERDICT: {value} CONFIDENCE: 0.9") == check(C, 0.9)


def test_prose_on_the_line_after_a_verdict_is_no_alternative():
    assert parse_self_check("VERDICT: CORRECT\nRight, CONFIDENCE: 0.9") == check(C, 0.9)


def test_the_first_verdict_field_decides_even_when_it_is_invalid():
    assert parse_self_check("VERDICT: maybe. VERDICT: CORRECT").verdict == U
    assert parse_self_check("VERDICT: WRONG. VERDICT: CORRECT").verdict == I


def test_a_longer_name_is_not_the_verdict_field():
    assert parse_self_check("MYVERDICT: CORRECT VERDICT_2: CORRECT VERDICT: WRONG").verdict == I


# --- confidence ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "confidence"),
    [
        ("0.92", 0.92),
        (".9", 0.9),
        ("1.", 1.0),
        ("1.0", 1.0),
        ("000.250", 0.25),
        ("92", 0.92),
        ("1.5", 0.015),  # more than 1, so percentage style
        ("92%", 0.92),
        ("100%", 1.0),
        ("1%", 0.01),  # the sign always divides
        ("+0.5", 0.5),
        ("-0.5", 0.0),
        ("9" * 10_000, 1.0),
        ("0.92.", 0.92),
        ("0.92, I think", 0.92),
        ("0.92</b>", 0.92),
        ("0.92; 3 checks", 0.92),
    ],
)
@pytest.mark.parametrize("separator", [": ", "=", " ", ":\n"])
def test_decimal_and_percentage_forms_are_read_then_clipped(separator, value, confidence):
    text = block(f"VERDICT: CORRECT; CONFIDENCE{separator}{value}")
    assert parse_self_check(text).confidence == pytest.approx(confidence, abs=1e-12)
    assert self_check_format_score(text) == 1.0


@pytest.mark.parametrize(
    "value",
    [
        "",
        "high",
        "nan",
        "[0.9]",
        "- 0.5",
        "a number in [0,1]",  # the template echoed
        "1e-1",
        "9e\u22121",
        "0x1",
        "0,92",
        "0.9.2",
        "9/10",
        "0.92/1.0",
        "0.9*0.9",
        "0.8-0.9",
        "0.8\u20130.9",
        "\u0660.\u0669",
        "0.9\u0669",  # Arabic-Indic digits
    ],
)
def test_a_malformed_confidence_takes_the_prior(value):
    text = block(f"VERDICT: CORRECT; CONFIDENCE: {value}")
    assert parse_self_check(text) == check(C, 0.8)
    assert self_check_format_score(text) == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("VERDICT: CORRECT", check(C, 0.8)),
        ("VERDICT: INCORRECT", check(I, 0.2)),
        ("VERDICT: perhaps", check(U, 0.5)),
        ("CONFIDENCE: 0.99", check(U, 0.99)),
    ],
)
def test_missing_fields_are_resolved_independently(text, expected):
    assert parse_self_check(text) == expected


def test_no_prior_reaches_the_default_threshold():
    assert CONFIDENCE_PRIOR == {C: 0.8, I: 0.2, U: 0.5}
    assert max(CONFIDENCE_PRIOR.values()) < 0.85


def test_the_first_confidence_field_decides_even_when_it_is_malformed():
    assert parse_self_check("CONFIDENCE: high, CONFIDENCE: 0.9") == check(U, 0.5)
    assert parse_self_check("CONFIDENCE: 0.1, CONFIDENCE: 0.9") == check(U, 0.1)


def test_a_negative_zero_is_zero():
    assert str(parse_self_check("CONFIDENCE: -0.0").confidence) == "0.0"


# --- format score --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (block("VERDICT: CORRECT; CONFIDENCE: 0.92"), 1.0),
        (block("confidence = 92% verdict = wrong"), 1.0),
        ("<SELF_CHECK>VERDICT RIGHT CONFIDENCE 1</SELF_CHECK>", 1.0),
        (block("VERDICT: CORRECT"), 0.0),
        (block("CONFIDENCE: 0.9"), 0.0),
        (block("VERDICT: CORRECT") + block("VERDICT: CORRECT; CONFIDENCE: 1"), 0.0),
        ("<self_check>VERDICT: CORRECT; CONFIDENCE: 0.9", 0.0),  # never closed
        ("VERDICT: CORRECT; CONFIDENCE: 0.92", -1.0),
        ("", -1.0),
        ("<self_chec\u212a>VERDICT: CORRECT; CONFIDENCE: 1</self_chec\u212a>", -1.0),
    ],
)
def test_the_format_score_pays_for_the_exact_serialization_only(text, score):
    assert self_check_format_score(text) == score


# --- spans ---------------------------------------------------------------------------------


def test_spans_are_found_and_removed_in_order():
    text = "a" + block("1") + "b" + block("2\n") + "c<self_check>d"
    assert without_spans(text, OPEN_TAG, CLOSE_TAG) == "abc<self_check>d"


# --- any text ------------------------------------------------------------------------------

FRAGMENTS = st.lists(
    st.one_of(
        st.sampled_from(
            [OPEN_TAG, CLOSE_TAG, "VERDICT", "CONFIDENCE", ":", "=", " ", "\n", "CORRECT", "WRONG"]
        ),
        st.sampled_from([", ", "or ", "not ", "0.9", "92%", "1e5", "-", ".", "/", "\u0130"]),
        st.text(max_size=8),
    ),
    max_size=24,
).map("".join)


@given(FRAGMENTS)
def test_any_text_yields_a_verdict_and_a_confidence_between_0_and_1(text):
    parsed = parse_self_check(text)
    assert parsed.verdict in Verdict
    assert 0.0 <= parsed.confidence <= 1.0
    assert self_check_format_score(text) in (1.0, 0.0, -1.0)
