"""Prompts, compared with goldens that were written from the paper's appendix by hand."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from svr_lightning.core.prompts import first_turn_messages, refinement_messages, shorten_draft
from svr_lightning.core.types import PolicyState, Problem, Verdict
from svr_lightning.tasks import TASKS, get_task
from tests.prompts import DRAFTS, QUESTIONS, rendered

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "prompts"

# golden: turn, verdict, confidence as parsed, whether the previous generation was truncated
BRANCHES = {
    "truncated": (2, Verdict.CORRECT, 0.99, True),
    "correct": (3, Verdict.CORRECT, 0.8, False),
    "incorrect": (10, Verdict.INCORRECT, 0.1249, False),
    "unsure": (2, Verdict.UNSURE, 0.5, False),
}
TASK_NAMES = sorted(TASKS)


def problem(name: str) -> Problem:
    return Problem(id="1", task=name, question=QUESTIONS[name], reference="a gold answer")


@pytest.mark.parametrize("name", TASK_NAMES)
def test_the_first_turn_is_the_system_message_and_the_raw_question(name: str) -> None:
    messages = first_turn_messages(get_task(name), problem(name))
    assert rendered(messages) == (GOLDENS / f"{name}-first.txt").read_text()
    assert messages[0]["content"] == get_task(name).system_prompt
    assert messages[1] == {"role": "user", "content": QUESTIONS[name]}


@pytest.mark.parametrize("name", TASK_NAMES)
@pytest.mark.parametrize("branch", BRANCHES)
def test_every_branch_reads_as_in_the_paper(name: str, branch: str) -> None:
    turn, verdict, confidence, truncated = BRANCHES[branch]
    messages = refinement_messages(
        get_task(name),
        problem(name),
        previous=DRAFTS[name],
        verdict=verdict,
        confidence=confidence,
        truncated=truncated,
        turn=turn,
    )
    assert rendered(messages) == (GOLDENS / f"{name}-{branch}.txt").read_text()


def test_every_golden_belongs_to_a_test() -> None:
    expected = {f"{name}-{branch}" for name in TASK_NAMES for branch in ["first", *BRANCHES]}
    assert {path.stem for path in GOLDENS.iterdir()} == expected


def user_message(name: str, verdict: Verdict, confidence: float, truncated: bool = False) -> str:
    return refinement_messages(
        get_task(name),
        problem(name),
        previous="d",
        verdict=verdict,
        confidence=confidence,
        truncated=truncated,
        turn=2,
    )[1]["content"]


def unsure(name: str, draft: str, question: str = "q", turn: int = 2) -> str:
    messages = refinement_messages(
        get_task(name),
        replace(problem(name), question=question),
        previous=draft,
        verdict=Verdict.UNSURE,
        confidence=0.5,
        truncated=False,
        turn=turn,
    )
    return messages[1]["content"]


@pytest.mark.parametrize(
    ("confidence", "shown"),
    [
        (0.0, "0.00"),
        (1.0, "1.00"),
        (0.5, "0.50"),
        (0.846, "0.85"),
        (0.9949, "0.99"),
        (1e-9, "0.00"),
    ],
)
@pytest.mark.parametrize("verdict", Verdict)
def test_a_confidence_has_two_decimals_wherever_it_stands(
    verdict: Verdict, confidence: float, shown: str
) -> None:
    text = user_message("math", verdict, confidence)
    assert f"last turn: {verdict.value} (conf {shown})\n" in text
    assert f"(self-confidence {shown})" in text


@pytest.mark.parametrize(("name", "limit"), [("countdown", 512), ("gsm8k", 640), ("math", 900)])
def test_a_draft_is_cut_at_the_tasks_limit_and_marked_only_if_it_was_longer(
    name: str, limit: int
) -> None:
    assert get_task(name).style.draft_limit == limit
    whole, longer = "x" * limit, "x" * limit + "y"
    for draft, kept in [(whole, whole), (longer, whole + "[...truncated]")]:
        expected = f"\n\nYour previous solution:\n{kept}\n\nIn your previous attempt"
        assert expected in unsure(name, draft)


def test_characters_are_counted_not_bytes() -> None:
    assert shorten_draft("é" * 4, 4) == "é" * 4
    assert shorten_draft("é" * 5, 4) == "é" * 4 + "[...truncated]"
    assert shorten_draft("", 0) == ""


@pytest.mark.parametrize("turn", [1, 0, -1])
def test_the_first_turn_has_no_refinement(turn: int) -> None:
    with pytest.raises(ValueError, match="turn 2 or later"):
        unsure("math", "d", turn=turn)


def test_braces_and_percent_signs_of_the_policy_are_copied_as_they_are() -> None:
    text = "{draft} {0} %s \\boxed{} $x"
    assert unsure("math", text, question=text).count(text) == 2


def test_the_state_a_prompt_is_built_from_holds_no_label() -> None:
    assert [field.name for field in fields(PolicyState)] == [
        "draft",
        "verdict",
        "confidence",
        "truncated",
    ]


@pytest.mark.parametrize(
    ("name", "completion"), [("countdown", 800), ("gsm8k", 1200), ("math", 2048)]
)
def test_generation_limits_are_the_papers(name: str, completion: int) -> None:
    assert get_task(name).max_completion_tokens == completion
