"""Prompts, compared with goldens that were written from the paper's appendices by hand."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.core.prompts import (
    feedback,
    first_turn_messages,
    guided,
    neutral,
    refinement_messages,
)
from svr_lightning.core.types import Message, Problem, Turn, Verdict
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.dialogues import chain
from svr_lightning.recipes.mlmt_rl import MLMTRL
from svr_lightning.tasks import TASKS, get_task
from tests.recipes import RECIPES, answered, completion, each_recipe, messages_of, ten
from tests.scripted import exam

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
QUESTIONS = {
    "countdown": "Using the numbers [44, 19, 35], create an equation that equals 98. You can use "
    "basic arithmetic operations (+, -, *, /) and each number can only be used once.",
    "gsm8k": "A robe takes 2 bolts of blue fiber and half that much white fiber.  How many bolts "
    "in total does it take?",
    "math": "What is $\\frac{1}{2}$ of $7$?",
}
DRAFTS = {
    "countdown": "<think>44 + 19 = 63, 63 + 35 = 98</think>\n<answer>44 + 19 + 35</answer>",
    "gsm8k": "<think>2 + 1 = 3</think>\n<answer>\\boxed{3}</answer>",
    "math": "<think>7/2</think>\n<answer>\\boxed{\\frac{7}{2}}</answer>",
}


def rendered(messages: Sequence[Message]) -> str:
    return "".join(f"[{message['role']}]\n{message['content']}\n" for message in messages)


# --- SVR's ------------------------------------------------------------------------------------

# golden: turn, verdict, confidence as parsed, whether the previous generation was truncated
BRANCHES = {
    "truncated": (2, Verdict.CORRECT, 0.99, True),
    "correct": (3, Verdict.CORRECT, 0.8, False),
    "incorrect": (10, Verdict.INCORRECT, 0.1249, False),
    "unsure": (2, Verdict.UNSURE, 0.5, False),
}
each_task = pytest.mark.parametrize("name", TASKS)


def problem(name: str, question: str | None = None) -> Problem:
    return Problem(id="1", task=name, question=question or QUESTIONS[name], reference="a gold one")


def refined(
    name: str,
    draft: str,
    turn: int = 2,
    verdict: Verdict = Verdict.UNSURE,
    confidence: float = 0.5,
    truncated: bool = False,
    question: str | None = None,
) -> list[Message]:
    return refinement_messages(
        get_task(name),
        problem(name, question),
        previous=draft,
        verdict=verdict,
        confidence=confidence,
        truncated=truncated,
        turn=turn,
    )


@each_task
def test_the_first_turn_is_the_system_message_and_the_raw_question(name):
    messages = first_turn_messages(get_task(name), problem(name))
    assert rendered(messages) == (GOLDENS / "prompts" / f"{name}-first.txt").read_text()


@each_task
@pytest.mark.parametrize("branch", BRANCHES)
def test_every_branch_reads_as_in_the_paper(name, branch):
    messages = refined(name, DRAFTS[name], *BRANCHES[branch])
    assert rendered(messages) == (GOLDENS / "prompts" / f"{name}-{branch}.txt").read_text()


@pytest.mark.parametrize(
    ("confidence", "shown"),
    [(0.0, "0.00"), (1e-9, "0.00"), (0.5, "0.50"), (0.846, "0.85"), (0.9949, "0.99"), (1, "1.00")],
)
@pytest.mark.parametrize("verdict", Verdict)
def test_a_confidence_has_two_decimals_wherever_it_stands(verdict, confidence, shown):
    text = refined("math", "d", 2, verdict, confidence)[1]["content"]
    assert f"last turn: {verdict.value} (conf {shown})\n" in text
    assert f"(self-confidence {shown})" in text


@pytest.mark.parametrize(
    ("name", "limit", "completion"),
    [("countdown", 512, 800), ("gsm8k", 640, 1200), ("math", 900, 2048)],
)
def test_a_draft_is_cut_at_the_tasks_limit_and_marked_only_if_it_was_longer(
    name, limit, completion
):
    task = get_task(name)
    assert (task.style.draft_limit, task.max_completion_tokens) == (limit, completion)
    whole, longer = "x" * limit, "x" * limit + "y"
    for draft, kept in [(whole, whole), (longer, whole + "[...truncated]")]:
        expected = f"\n\nYour previous solution:\n{kept}\n\nIn your previous attempt"
        assert expected in refined(name, draft)[1]["content"]


@pytest.mark.parametrize("turn", [1, 0, -1])
def test_the_first_turn_has_no_refinement(turn):
    with pytest.raises(ValueError, match="turn 2 or later"):
        refined("math", "d", turn)


def test_braces_and_percent_signs_of_the_policy_are_copied_as_they_are():
    text = "{draft} {0} %s \\boxed{} $x"
    assert refined("math", text, question=text)[1]["content"].count(text) == 2


def test_a_prompt_is_built_from_no_label():
    of_the_past = [*signature(refinement_messages).parameters][2:]
    said = ["previous", "verdict", "confidence", "truncated"]
    assert of_the_past == [*said, "turn", "interface"]


# --- prompts without a self-check ---------------------------------------------------------------


def test_drafts_are_shortened_as_svrs_are_and_hints_are_not():
    asked = get_task("countdown"), problem("countdown")
    long, short = (
        Turn(index=1, completion=completion(text), check=None) for text in ("x" * 512 + "y", "d")
    )
    kept = "x" * 512 + "[...truncated]"
    for ask in (neutral(*asked, long), feedback(*asked, long), guided(*asked, long, short)):
        assert f"\n{kept}\n\n" in ask[1]["content"]
    assert f"\n{long.completion.text}\n\n" in guided(*asked, short, long)[1]["content"]


# --- all that each recipe asks, turn by turn ----------------------------------------------------

BETWEEN = "=" * 40 + "\n"
"""Stands between the prompts of a golden, which follow the texts below."""

# What the policy says in turn: wrong, cut off, right.
WRITTEN = {
    "countdown": [
        "<think>8 + 4 * 2</think>\n<answer>8+4*2</answer>",
        "<think>8 + 4 is 12, then",
        "<think>12 - 2</think>\n<answer>8+4-2</answer>",
    ],
    "math": [
        "<think>6 + 7</think>\n<answer>\\boxed{13}</answer>",
        "<think>6 times 7 is",
        "<think>7 + 7 + 7 + 7 + 7 + 7</think>\n<answer>\\boxed{42}</answer>",
    ],
}
CHECKS = [
    "\n<self_check>VERDICT: INCORRECT; CONFIDENCE: 0.2</self_check>",
    "",
    "\n<self_check>VERDICT: CORRECT; CONFIDENCE: 0.9</self_check>",
]
CUT_OFF = 1
"""Place of the text that reaches its token limit."""

# recipe: golden, its prompts in training, its prompts in an evaluation of four turns
PROMPTS = {
    **dict.fromkeys(("svr", "svr_proper", "svr_turns", "svr_plus_whole"), ("svr", 3, 4)),
    **dict.fromkeys(("svr_plus", "svr_plus_matched", "svr_plus_exact"), ("svr", 3, 4)),
    "svr_verdict": ("svr_verdict", 3, 4),
    **dict.fromkeys(("svr_confidence", "rlcr_turns"), ("svr_confidence", 3, 4)),
    **dict.fromkeys(("rlcr", "rlcr_log"), ("svr_confidence", 1, 4)),
    **dict.fromkeys(("grpo", "gspo"), ("neutral", 1, 1)),
    **dict.fromkeys(("grpo_mt", "murphy", "murphy_tree"), ("neutral", 3, 4)),
    "igrpo": ("neutral", 2, 1),
    "mlmt_rl": ("mlmt_rl", 3, 3),
    "scrpo": ("scrpo", 3, 4),
    "oracle": ("oracle", 3, 4),
}


def asked_by(rollout: Any, task: str, checked: bool) -> list[str]:
    """The prompt of each turn, which is one prompt however often a rollout asks it."""
    found = []
    texts = [text + check * checked for text, check in zip(WRITTEN[task], CHECKS, strict=True)]

    def write(turn, request):
        found[turn:] = found[turn:] or [rendered(messages_of(request))]
        assert found[turn] == rendered(messages_of(request))
        return completion(texts[turn % len(texts)], truncated=turn == CUT_OFF)

    answered(rollout, write)
    return found


def golden(name: str) -> list[str]:
    return (GOLDENS / "recipe_prompts" / f"{name}.txt").read_text().split(BETWEEN)


@each_recipe
def test_training_and_evaluation_ask_what_the_golden_of_their_recipe_says(name):
    recipe = RECIPES[name][0]
    file, training, evaluation = PROMPTS[name]
    expected, checked = golden(f"countdown-{file}"), file.startswith("svr")
    for rollout in recipe.rollouts(ten()):
        assert asked_by(rollout, "countdown", checked) == expected[:training]
    alone = chain(recipe.dialogue, ten(), 0, recipe.evaluated_turns(4))
    assert asked_by(alone, "countdown", checked) == expected[:evaluation]


@pytest.mark.parametrize("name", ["mlmt_rl", "scrpo"])
def test_prompts_follow_the_style_of_their_task(name):
    rollouts = RECIPES[name][0].rollouts(exam(["10", "42", "42"])[2])
    expected = golden(f"math-{name}")
    assert [asked_by(one, "math", checked=False) for one in rollouts] == [expected] * 8


# --- later turns --------------------------------------------------------------------------------


def shown(recipe: Recipe, turns: int) -> list[tuple[int, set[int]]]:
    """Of each prompt the turn that it names, or 0, and which earlier turns' texts it shows."""
    found = []

    def write(turn, request):
        prompt = messages_of(request)[1]["content"]
        named = next((t for t in range(1, 99) if prompt.startswith(f"[T={t}]")), 0)
        found.append((named, {t for t in range(1, 99) if f"text{t}." in prompt}))
        return completion(f"<think>text{turn + 1}.</think><answer>8+4-2</answer>")

    answered(chain(recipe.dialogue, ten(), 0, turns), write)
    return found


def test_a_tutor_sees_the_latest_answer_and_the_solver_that_answer_and_its_feedback():
    expected = [(0, set())]
    for t in range(2, 10, 2):
        expected += [(0, {t - 1}), (t + 1, {t - 1, t})]
    assert shown(MLMTRL(), 9) == expected
