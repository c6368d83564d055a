"""All that each recipe asks of the policy, turn by turn, in training and in evaluation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.core.types import Problem
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.dialogues import PromptRequest, chain
from tests.prompts import rendered
from tests.recipes import RECIPES, completion, ten
from tests.scripted import RENDERER, exam

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "recipe_prompts"
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
    "svr": ("svr", 3, 4),
    "svr_proper": ("svr", 3, 4),
    "svr_turns": ("svr", 3, 4),
    "svr_plus": ("svr", 3, 4),
    "svr_plus_matched": ("svr", 3, 4),
    "svr_plus_whole": ("svr", 3, 4),
    "svr_verdict": ("svr_verdict", 3, 4),
    "svr_confidence": ("svr_confidence", 3, 4),
    "grpo": ("neutral", 1, 1),
    "gspo": ("neutral", 1, 1),
    "grpo_mt": ("neutral", 3, 4),
    "igrpo": ("neutral", 2, 1),
    "murphy": ("neutral", 3, 4),
    "murphy_tree": ("neutral", 3, 4),
    "mlmt_rl": ("mlmt_rl", 3, 3),
    "scrpo": ("scrpo", 3, 4),
    "oracle": ("oracle", 3, 4),
    "rlcr": ("svr_confidence", 1, 4),
    "rlcr_log": ("svr_confidence", 1, 4),
    "rlcr_turns": ("svr_confidence", 3, 4),
}
each_recipe = pytest.mark.parametrize("name", RECIPES)


def problem_of(task: str) -> Problem:
    return ten() if task == "countdown" else exam(["10", "42", "42"])[2]


def written(task: str, checked: bool) -> list[str]:
    return [text + check * checked for text, check in zip(WRITTEN[task], CHECKS, strict=True)]


def prompts_of(program: Any, texts: Sequence[str]) -> list[str]:
    """The prompt of each turn, which is one prompt however often a program asks it."""
    found = []
    requested = next(program)
    while True:
        messages = [one.messages if isinstance(one, PromptRequest) else one for one in requested]
        (prompt,) = {rendered(each) for each in messages}
        turn = len(found)
        found.append(prompt)
        answer = completion(texts[turn % len(texts)], truncated=turn == CUT_OFF)
        try:
            requested = program.send([answer] * len(messages))
        except StopIteration:
            return found


def golden(name: str) -> list[str]:
    return (GOLDENS / f"{name}.txt").read_text().split(BETWEEN)


def in_training(recipe: Recipe, task: str, checked: bool) -> list[list[str]]:
    programs = recipe.programs(problem_of(task))
    return [prompts_of(program, written(task, checked)) for program in programs]


def in_evaluation(recipe: Recipe, task: str, checked: bool) -> list[str]:
    turns, _ = recipe.stop_policy(4, None)
    return prompts_of(chain(recipe.dialogue, problem_of(task), 0, turns), written(task, checked))


@each_recipe
def test_every_program_asks_what_the_golden_of_its_recipe_says(name: str) -> None:
    file, training, _ = PROMPTS[name]
    expected = golden(f"countdown-{file}")[:training]
    requested = in_training(RECIPES[name][0], "countdown", file.startswith("svr"))
    assert requested == [expected] * len(requested)


@each_recipe
def test_evaluation_asks_what_the_golden_of_its_recipe_says(name: str) -> None:
    file, _, evaluation = PROMPTS[name]
    expected = golden(f"countdown-{file}")[:evaluation]
    assert in_evaluation(RECIPES[name][0], "countdown", file.startswith("svr")) == expected


@pytest.mark.parametrize("name", ["mlmt_rl", "scrpo"])
def test_prompts_follow_the_style_of_their_task(name: str) -> None:
    recipe, expected = RECIPES[name][0], golden(f"math-{name}")
    assert in_training(recipe, "math", checked=False) == [expected] * 8


def test_the_tutors_prompt_through_a_chat_template() -> None:
    program = chain(RECIPES["mlmt_rl"][0].dialogue, ten(), 0, 3)
    next(program)
    ((messages, limit),) = program.send([completion("<answer>8+4*2</answer>")])
    assert limit == 512
    assert RENDERER.text(messages) == (GOLDENS / "rendered-mlmt_rl.txt").read_text()


def test_every_golden_belongs_to_a_test() -> None:
    expected = {f"countdown-{file}" for file, *_ in PROMPTS.values()}
    expected |= {"math-mlmt_rl", "math-scrpo", "rendered-mlmt_rl"}
    assert {path.stem for path in GOLDENS.iterdir()} == expected
    assert PROMPTS.keys() == RECIPES.keys()
