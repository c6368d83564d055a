"""The prompts of the other methods and of the interface ablations, as goldens."""

from collections.abc import Callable
from pathlib import Path

import pytest

from svr_lightning.core.parsing import SelfCheckFields
from svr_lightning.core.prompts import AnswerStyle, first_turn, refine
from svr_lightning.core.types import DraftState, Message, OracleState, PolicyState, Verdict
from svr_lightning.recipes.dialogues import first_turn as plain_first_turn
from svr_lightning.recipes.dialogues import neutral
from svr_lightning.recipes.labels import scored
from svr_lightning.recipes.mlmt_rl import feedback, guided
from svr_lightning.recipes.scrpo import doubtful_draft, wrong_draft
from svr_lightning.tasks import get_task
from tests.prompts import DRAFTS, QUESTIONS, rendered

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "baseline_prompts"
Prompt = Callable[[AnswerStyle, str, str], list[Message]]
"""From a task's style, question and draft to a prompt."""


def oracle(correct: bool, truncated: bool = False) -> Prompt:
    return lambda style, question, draft: scored(
        style, question, OracleState(draft=draft, truncated=truncated, correct=correct), 2
    )


def on_draft(
    build: Callable[[AnswerStyle, str, DraftState, int], list[Message]], truncated: bool = False
) -> Prompt:
    return lambda style, question, draft: build(
        style, question, DraftState(draft=draft, truncated=truncated), 3
    )


def alone(
    interface: SelfCheckFields, verdict: Verdict, confidence: float, cut: bool = False
) -> Prompt:
    return lambda style, question, draft: refine(
        style,
        question,
        PolicyState(draft=draft, verdict=verdict, confidence=confidence, truncated=cut),
        2,
        interface,
    )


CASES: dict[str, Prompt] = {
    "first": lambda style, question, _: plain_first_turn(style, question),
    "neutral": on_draft(neutral),
    "neutral-truncated": on_draft(neutral, truncated=True),
    "oracle-right": oracle(True),
    "oracle-wrong": oracle(False),
    "oracle-truncated": oracle(True, truncated=True),
    "scrpo-doubtful": on_draft(doubtful_draft),
    "scrpo-truncated": on_draft(doubtful_draft, truncated=True),
    "scrpo-wrong": lambda style, question, draft: wrong_draft(
        style, question, OracleState(draft=draft, truncated=False, correct=False), 2
    ),
    "mlmt-feedback": feedback,
    "mlmt-guided": lambda style, question, draft: guided(
        style, question, draft, "Check the second sum.", 3
    ),
    "verdict-first": lambda style, question, _: first_turn(style, question, "verdict"),
    "verdict-correct": alone("verdict", Verdict.CORRECT, 0.8),
    "verdict-incorrect": alone("verdict", Verdict.INCORRECT, 0.2),
    "verdict-truncated": alone("verdict", Verdict.CORRECT, 0.8, cut=True),
    "confidence-first": lambda style, question, _: first_turn(style, question, "confidence"),
    "confidence-high": alone("confidence", Verdict.UNSURE, 0.5),
    "confidence-low": alone("confidence", Verdict.UNSURE, 0.4949),
}
TASK_NAMES = ["countdown", "math"]


@pytest.mark.parametrize("task", TASK_NAMES)
@pytest.mark.parametrize("case", CASES)
def test_every_prompt_is_its_golden(case: str, task: str) -> None:
    messages = CASES[case](get_task(task).style, QUESTIONS[task], DRAFTS[task])
    assert rendered(messages) == (GOLDENS / f"{task}-{case}.txt").read_text()


def test_every_golden_belongs_to_a_test() -> None:
    expected = {f"{task}-{case}" for task in TASK_NAMES for case in CASES}
    assert {path.stem for path in GOLDENS.iterdir()} == expected


@pytest.mark.parametrize("case", [c for c in CASES if not c.startswith(("verdict", "confidence"))])
def test_no_prompt_of_a_baseline_speaks_of_a_self_check(case: str) -> None:
    text = rendered(CASES[case](get_task("math").style, "q", "d"))
    assert not any(word in text.lower() for word in ("self_check", "verdict", "confiden"))


@pytest.mark.parametrize(
    ("interface", "other"), [("verdict", "confidence"), ("confidence", "verdict")]
)
def test_an_interface_of_one_field_never_names_the_other(interface: str, other: str) -> None:
    for case, prompt in CASES.items():
        if case.startswith(interface):
            assert other not in rendered(prompt(get_task("math").style, "q", "d")).lower()


def test_a_right_draft_is_never_called_wrong() -> None:
    state = OracleState(draft="d", truncated=False, correct=True)
    with pytest.raises(ValueError, match="a draft that is right"):
        wrong_draft(get_task("math").style, "q", state, 2)


def test_drafts_are_shortened_as_svrs_are_and_hints_are_not() -> None:
    style = get_task("countdown").style
    long = "x" * 512 + "y"
    kept = "x" * 512 + "[...truncated]"
    for messages in (
        neutral(style, "q", DraftState(draft=long, truncated=False), 2),
        feedback(style, "q", long),
        guided(style, "q", long, "hints", 3),
    ):
        assert f"\n{kept}\n\n" in messages[1]["content"]
    assert f"\n{long}\n\n" in guided(style, "q", "d", long, 3)[1]["content"]
