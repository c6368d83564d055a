"""A policy's own plain answers as turns of SVR's form: what they say, and what they never show."""

import random
from dataclasses import replace

import pytest

from svr_lightning.analysis.records import TurnRecord
from svr_lightning.core.parsing import parse_self_check
from svr_lightning.core.prompts import first_turn_messages, refinement_messages
from svr_lightning.core.types import Problem, Verdict
from svr_lightning.recipes.dialogues import SelfVerifying
from svr_lightning.tasks import get_task
from svr_lightning.training.documents import (
    checked_turns,
    written_check,
    written_solution,
)

GSM8K = get_task("gsm8k")
PROBLEM = Problem(id="q", task="gsm8k", question="What is 2 + 2?", reference="4")


def answer(text: str, correct: bool, *, truncated: bool = False) -> TurnRecord:
    return TurnRecord(
        turn=1,
        text=text,
        answer=GSM8K.read(text).answer,
        correct=correct,
        truncated=truncated,
        prompt_tokens=5,
        completion_tokens=5,
        finish_reason="length" if truncated else "stop",
        verdict=None,
        confidence=None,
        answer_group=0,
    )


RIGHT = answer("2 and 2 is 4.\n#### 4", correct=True)
WRONG = answer("2 and 2 is 5.\n#### 5", correct=False)
CUT = answer("2 and 2 and then", correct=False, truncated=True)


def turns(answers, seed=0, max_turns=5, dialogue=None, problem=PROBLEM):
    rng = random.Random(seed)
    return checked_turns(dialogue or SelfVerifying(), problem, answers, rng, max_turns=max_turns)


@pytest.mark.parametrize(
    ("task", "plain", "written"),
    [
        (
            "gsm8k",
            "2 and 2 is 4.\n#### 4",
            "<think>\n2 and 2 is 4.\n</think>\n<answer>\\boxed{4}</answer>",
        ),
        (
            "math",
            "Half of 7 is \\boxed{\\frac{7}{2}}.",
            "<think>\nHalf of 7 is \\boxed{\\frac{7}{2}}.\n</think>\n"
            "<answer>\\boxed{\\frac{7}{2}}</answer>",
        ),
        (
            "countdown",
            "Try 3 + 5 first.\n<answer>(3 + 5) * 2</answer>",
            "<think>\nTry 3 + 5 first.\n</think>\n<answer>(3 + 5) * 2</answer>",
        ),
        (  # what has the form already stays as it is, without a self-check of its own
            "countdown",
            "<think>3+5</think>\n<answer>3+5</answer>\n<self_check>VERDICT: CORRECT</self_check>",
            "<think>3+5</think>\n<answer>3+5</answer>",
        ),
        ("gsm8k", "I cannot tell.", None),
    ],
)
def test_an_answer_keeps_its_words_and_gets_the_form_that_the_task_asks_for(task, plain, written):
    assert written_solution(get_task(task), plain) == written


def test_what_a_self_check_says_is_drawn_whatever_the_label():
    relabelled = [replace(WRONG, correct=True), replace(RIGHT, correct=False)]
    five = replace(PROBLEM, reference="5")
    for seed in range(20):
        as_labelled = turns([WRONG, RIGHT], seed)
        otherwise = turns(relabelled, seed, problem=five)
        written = [(turn.messages, turn.completion) for turn in as_labelled]
        assert written == [(turn.messages, turn.completion) for turn in otherwise]
    drawn = [parse_self_check(turns([RIGHT], seed)[0].completion) for seed in range(200)]
    assert {check.verdict for check in drawn} == {*Verdict}
    assert {check.confidence for check in drawn} == {level / 20 for level in range(1, 20)}


def test_each_alternative_states_a_probability_of_being_right():
    for given in (RIGHT, WRONG):
        (turn,) = turns([given])
        assert turn.messages == first_turn_messages(GSM8K, PROBLEM)
        assert GSM8K.grade(turn.completion, PROBLEM) is turn.correct is given.correct
        check = parse_self_check(turn.completion)
        verdict, confidence = turn.choices
        assert turn.completion[slice(*verdict.span)] == check.verdict.value
        assert turn.completion[slice(*confidence.span)] == f"{check.confidence:.2f}"[2:]
        stated = dict(zip(verdict.alternatives, verdict.scores, strict=True))
        assert stated == {"CORRECT": 1.0, "INCORRECT": 0.0, "UNSURE": 0.5}
        assert confidence.alternatives[:2] == ("00", "01")
        assert confidence.scores == tuple(number / 100 for number in range(100))


def test_a_refinement_shows_one_answer_with_its_check_and_replies_with_another():
    replies = set()
    for seed in range(8):
        *firsts, refined = turns([RIGHT, WRONG], seed)
        assert len(firsts) == 2
        (shown,) = [turn for turn in firsts if turn.completion != refined.completion]
        check = parse_self_check(shown.completion)
        prompts = [
            refinement_messages(
                GSM8K,
                PROBLEM,
                previous=shown.completion,
                verdict=check.verdict,
                confidence=check.confidence,
                truncated=False,
                turn=turn,
            )
            for turn in range(2, 6)
        ]
        assert refined.messages in prompts
        replies.add(refined.correct)
    assert replies == {True, False}


def test_a_policy_of_one_turn_learns_no_refinement():
    learned = [turn.messages for turn in turns([RIGHT, WRONG], max_turns=1)]
    assert learned == [first_turn_messages(GSM8K, PROBLEM)] * 2


def test_an_answer_that_was_cut_off_is_a_draft_and_no_reply():
    *firsts, refined = turns([RIGHT, CUT], seed=3)
    assert [turn.correct for turn in firsts] == [True]
    assert refined.completion == firsts[0].completion
    assert "TRUNCATED" in refined.messages[-1]["content"]
    assert "2 and 2 and then" in refined.messages[-1]["content"]


def test_a_single_answer_has_no_refinement_and_an_unreadable_one_is_left_out():
    assert len(turns([RIGHT])) == 1
    assert turns([answer("Who knows?", correct=False)]) == []
    assert len(turns([RIGHT, answer("Who knows?", correct=False)])) == 1


@pytest.mark.parametrize(
    ("interface", "check"),
    [
        ("joint", "\n<self_check>VERDICT: CORRECT; CONFIDENCE: 0.95</self_check>"),
        ("verdict", "\n<self_check>VERDICT: CORRECT</self_check>"),
        ("confidence", "\n<self_check>CONFIDENCE: 0.95</self_check>"),
    ],
)
def test_the_self_check_has_the_fields_that_the_method_asks_for(interface, check):
    assert written_check(Verdict.CORRECT, 0.95, interface) == check
    (turn,) = turns([RIGHT], dialogue=SelfVerifying(interface))
    stated = SelfVerifying(interface).read(turn.completion)
    assert turn.completion.endswith(
        f"</answer>{written_check(stated.verdict, stated.confidence, interface)}"
    )
    assert len(turn.choices) == (2 if interface == "joint" else 1)


def test_an_answer_that_the_form_would_grade_otherwise_is_left_out():
    assert turns([replace(RIGHT, correct=False)]) == []
