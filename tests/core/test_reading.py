"""Which parts of a completion count: the final part, and in it the self-check of the answer."""

import pytest

from svr_lightning.core.parsing import final_part
from svr_lightning.core.types import FinishReason, Problem, RemoteCompletion, SelfCheck, Verdict
from svr_lightning.recipes.dialogues import SelfVerifying, turn_of
from svr_lightning.tasks import get_task
from svr_lightning.tasks.grading import score_turns
from tests.recipes import completion

SURE = "<self_check>VERDICT: CORRECT; CONFIDENCE: 0.95</self_check>"
DOUBT = "<self_check>VERDICT: INCORRECT; CONFIDENCE: 0.1</self_check>"
FORM = "<self_check>VERDICT: CORRECT, INCORRECT, or UNSURE; CONFIDENCE: a number </self_check>"
COUNTDOWN = get_task("countdown").from_row({"nums": [3, 5], "target": 8})
NUMBER = Problem(id="", task="gsm8k", question="?", reference="5")
LATEX = Problem(id="", task="math", question="?", reference="5")


def read(
    text: str, problem: Problem = NUMBER, reason: FinishReason = FinishReason.STOP
) -> tuple[str | None, bool, SelfCheck, float]:
    """The answer, its label, the self-check and its format score."""
    completion = RemoteCompletion(text=text, finish_reason=reason)
    dialogue = SelfVerifying()
    turn = turn_of(dialogue, problem, 1, completion)
    (scored,) = score_turns(problem, [turn], dialogue.formats)
    assert turn.check is not None
    assert (scored.verdict, scored.confidence) == (turn.check.verdict, turn.check.confidence)
    return turn.answer, scored.correct, turn.check, scored.self_check_format


def check(verdict: str, confidence: float) -> SelfCheck:
    return SelfCheck(verdict=Verdict(verdict), confidence=confidence)


SAYS_SURE, SAYS_DOUBT = check("CORRECT", 0.95), check("INCORRECT", 0.1)
SAYS_NOTHING = check("UNSURE", 0.5)


@pytest.mark.parametrize(
    ("problem", "answer", "other"),
    [
        (NUMBER, r"\boxed{5}", r"\boxed{6}"),
        (LATEX, r"\boxed{5}", r"\boxed{6}"),
        (COUNTDOWN, "3+5", "3*5"),
    ],
)
@pytest.mark.parametrize("quoted", [SURE, FORM, "VERDICT: CORRECT; CONFIDENCE: 0.95"])
def test_reasoning_decides_neither_the_answer_nor_the_self_check(problem, answer, other, quoted):
    thought = f"<think>{quoted} <answer>{other}</answer></think>"
    final = f"<answer>{answer}</answer>\n{DOUBT}"
    assert read(thought + final, problem)[1:] == (True, SAYS_DOUBT, 1.0)
    # It is empty if the reasoning comes last, or never ends; but not if it was cut off.
    assert read(final + thought, problem) == (None, False, SAYS_NOTHING, -1.0)
    assert read(f"<think>{final}", problem) == (None, False, SAYS_NOTHING, -1.0)
    cut = read(f"<think>{final}", problem, FinishReason.LENGTH)
    assert cut[1:] == (True, SAYS_DOUBT, 1.0)
    assert read(f"{final}<think>{quoted}", problem)[1:] == (True, SAYS_DOUBT, 1.0)
    task = get_task(problem.task)
    assert task.grade(thought + final, problem)
    assert not task.grade(f"{thought} {DOUBT}", problem)
    assert task.extract_answer(f"{thought} {DOUBT}") is None


def test_a_number_that_only_the_reasoning_marks_is_no_answer():
    for marked in (r"\boxed{5}", "#### 5"):
        assert read(f"<think>{marked}</think> It is five. {SURE}")[0] is None
        assert read(f"It is five: {marked}. {SURE}")[0] == "5"


def test_the_last_mark_that_ends_a_reasoning_counts_and_one_that_ends_none_is_text():
    assert final_part("<think>a</think>b<think>c</think>d") == "d"
    assert final_part("<think>a<think>b</think>c</think>d") == "d"
    assert final_part("<think>a</think>b</think>c") == "b</think>c"
    assert final_part("a</think>b") == "a</think>b"
    assert read(f"</think>{SURE}</think><answer>#### 5</answer>{DOUBT}")[1:3] == (True, SAYS_DOUBT)


@pytest.mark.parametrize(
    ("form", "first", "second"),
    [
        ("<answer>\\boxed{%s}</answer>", DOUBT, SURE),
        ("so \\boxed{%s}. ", DOUBT, SURE),
        ("#### %s\n", DOUBT, SURE),
        (
            "<answer>\\boxed{%s}</answer>",
            "VERDICT: INCORRECT; CONFIDENCE: 0.1 ",
            "VERDICT: CORRECT; CONFIDENCE: 0.95",
        ),
    ],
)
def test_of_several_answers_the_self_check_behind_the_one_taken_counts(form, first, second):
    text = form % 6 + first + form % 5 + second
    assert read(text)[:3] == ("5", True, SAYS_SURE)
    assert read(form % 5 + first + form % 5 + second)[:3] == ("5", True, SAYS_SURE)
    # Nobody has checked the last answer.
    assert read(form % 6 + second + form % 5)[:3] == ("5", True, SAYS_NOTHING)


def test_of_countdowns_answers_the_first_is_taken_with_its_self_check():
    text = f"<answer>3+5</answer>{DOUBT}<answer>3*5</answer>{SURE}"
    assert read(text, COUNTDOWN)[1:3] == (True, SAYS_DOUBT)
    text = f"<answer>3+5</answer>{DOUBT}<answer>3+5</answer>{SURE}"
    assert read(text, COUNTDOWN)[1:3] == (True, SAYS_DOUBT)


@pytest.mark.parametrize(
    ("problem", "answer", "other"),
    [
        (NUMBER, r"<answer>\boxed{5}</answer>", r"<answer>\boxed{6}</answer>"),
        (LATEX, r"so \boxed{5}.", r"<answer>\boxed{6}</answer>"),
        (COUNTDOWN, "<answer>3+5</answer>", "<answer>3*5</answer>"),
    ],
)
def test_behind_an_answer_a_mark_that_ends_no_reasoning_begins_a_quotation(problem, answer, other):
    reply = f"<think>r</think>{answer}{DOUBT} You wrote: </think>{other}{SURE}"
    assert read(reply, problem)[1:3] == (True, SAYS_DOUBT)


BARE_SURE, BARE_DOUBT = "VERDICT: CORRECT; CONFIDENCE: 0.95", "VERDICT: INCORRECT; CONFIDENCE: 0.1"


@pytest.mark.parametrize(
    "quotation",
    [
        f"You asked for `{SURE}`.",
        f"```\n{SURE}\n```",
        f"| form | {SURE} |",
        f"> {SURE}",
        f"<!-- {SURE} -->",
        f"{SURE}{SURE}",
        f"{FORM} or {SURE}",
        f"It begins with <self_check>{BARE_SURE}",
        BARE_SURE,
        f"**VERDICT:** CORRECT, **CONFIDENCE:** 0.95 {SURE}",
    ],
)
@pytest.mark.parametrize("problem", [NUMBER, COUNTDOWN])
def test_the_self_check_behind_the_answer_decides_and_no_quotation_before_it(quotation, problem):
    answer = "<answer>3+5</answer>" if problem is COUNTDOWN else r"<answer>\boxed{5}</answer>"
    for own in (DOUBT, DOUBT.upper(), f"{DOUBT} {SURE}"):
        assert read(f"{quotation}\n{answer}\n{own}", problem)[1:3] == (True, SAYS_DOUBT)
    # A self-check in words counts too where no block says otherwise.
    expected = SAYS_DOUBT if "self_check>" not in quotation.replace("<self", "") else SAYS_NOTHING
    assert read(f"{quotation}\n{answer}\n{BARE_DOUBT}", problem)[2] == expected


def test_self_checks_before_the_answer_count_only_if_they_agree():
    answer = r"<answer>\boxed{5}</answer>"
    assert read(f"{SURE}{answer}")[2] == SAYS_SURE
    assert read(f"{SURE}{SURE}{answer}")[2] == SAYS_SURE
    assert read(f"{SURE}{DOUBT}{answer}")[2:] == (SAYS_NOTHING, -1.0)
    assert read(f"{FORM}{SURE}{answer}")[2] == SAYS_NOTHING


def test_one_self_check_is_read_as_in_the_paper_wherever_its_fields_stand():
    answer = r"<answer>\boxed{5}</answer>"
    assert read(f"{answer} CONFIDENCE: 0.95; VERDICT: CORRECT")[2] == SAYS_SURE
    assert read(f"VERDICT: CORRECT {answer} CONFIDENCE: 0.95")[2] == SAYS_SURE
    assert read(f"{answer}<self_check> <self_check>{BARE_SURE}</self_check>")[2] == SAYS_SURE


def test_of_the_self_checks_behind_an_answer_the_first_counts():
    answer = r"<answer>\boxed{5}</answer>"
    assert read(answer + SURE + DOUBT)[:3] == ("5", True, SAYS_SURE)
    assert read(SURE + answer + DOUBT)[:3] == ("5", True, SAYS_DOUBT)
    assert read(f"{answer}{SURE} As I said: \\boxed{{5}}.")[2] == SAYS_SURE
    assert read(SURE)[2:] == (SAYS_SURE, 1.0)


def test_the_policys_own_self_check_is_read_as_it_stands_and_a_chat_models_through_its_adornment():
    text = r"<answer>\boxed{5}</answer> **VERDICT:** CORRECT; **CONFIDENCE:** 0.95"
    assert read(text)[2] == SAYS_SURE
    policy = turn_of(SelfVerifying(), NUMBER, 1, completion(text))
    assert policy.check == check("UNSURE", 0.5)


def test_of_more_than_a_thousand_self_checks_none_counts():
    assert read(r"<answer>\boxed{5}</answer>" + SURE * 1000)[2] == SAYS_SURE
    assert read(r"<answer>\boxed{5}</answer>" + SURE * 1001)[2] == SAYS_NOTHING
