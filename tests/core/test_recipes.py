"""What holds of every recipe: its budget, what its prompts may know, what a lost group teaches."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from svr_lightning.core.parsing import parse_self_check, self_check_format_score
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import Message, SelfCheck, Verdict
from svr_lightning.errors import ConfigError
from svr_lightning.recipes.dialogues import chain
from svr_lightning.recipes.oracle import Oracle
from svr_lightning.recipes.svr import SVR
from tests.recipes import RECIPES, RIGHT, WRONG, completion, each_recipe, mixed, play, ten


@each_recipe
def test_a_problem_takes_twenty_four_generations_and_the_stated_samples(name: str) -> None:
    recipe, samples, _ = RECIPES[name]
    ((group,), actors) = play(recipe, mixed)
    assert len(actors.prompts) == 24
    assert recipe.samples_per_problem == samples
    assert 1 <= len(recipe.credit(group)) <= samples
    assert sum(len(turns) for turns in group.scored) == 24


@each_recipe
@pytest.mark.parametrize("text", [RIGHT, WRONG], ids=["right", "wrong"])
def test_a_group_of_equals_teaches_nothing(name: str, text: str) -> None:
    recipe = RECIPES[name][0]
    ((group,), _) = play(recipe, lambda *_: text)
    assert group.degenerate
    assert {sample.advantage for sample in recipe.credit(group)} == {0.0}


# --- evaluation -------------------------------------------------------------------------------


@each_recipe
def test_each_policy_is_evaluated_for_its_own_number_of_turns(name: str) -> None:
    recipe, _, turns = RECIPES[name]
    rule = Confident()
    max_turns, kept = recipe.stop_policy(10, rule)
    assert max_turns == turns
    assert (kept is not None) == name.startswith(("svr", "rlcr"))
    problem = ten()
    seen: list[int] = []
    program = chain(
        recipe.dialogue, problem, 0, max_turns, None, lambda turn: seen.append(turn.index)
    )
    trajectory = finish(program, lambda _: WRONG)
    assert [turn.index for turn in trajectory.turns] == seen == list(range(1, turns + 1))


def finish(program: Any, write: Callable[[list[Message]], str]) -> Any:
    requested = next(program)
    while True:
        try:
            requested = program.send([completion(write(one)) for one in requested])
        except StopIteration as end:
            return end.value


def test_a_policy_of_one_field_is_stopped_by_that_field() -> None:
    assert SVR(interface="verdict").stop_policy(10, Confident()) == (10, Confident(threshold=0.0))
    alone = Confident(needs_correct=False)
    assert SVR(interface="confidence").stop_policy(10, Confident()) == (10, alone)
    says_so = "<self_check>VERDICT: CORRECT </self_check>"
    program = chain(SVR(interface="verdict").dialogue, ten(), 0, 10, Confident(threshold=0.0))
    assert len(finish(program, lambda _: RIGHT + says_so).turns) == 1
    sure = "<self_check>CONFIDENCE: 0.9 </self_check>"
    program = chain(SVR(interface="confidence").dialogue, ten(), 0, 10, alone)
    assert len(finish(program, lambda _: RIGHT + sure).turns) == 1


def test_a_method_that_needs_labels_refuses_a_question_without_reference() -> None:
    question = replace(ten(), reference="")
    program = chain(Oracle().dialogue, question, 0, 10)
    with pytest.raises(ConfigError, match=r"method needs reference answers .* 'p' has none"):
        finish(program, lambda _: WRONG)


# --- the interfaces of the ablations ----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "verdict_only", "confidence_only"),
    [
        ("<self_check>VERDICT: CORRECT</self_check>", 1.0, 0.0),
        ("<self_check>CONFIDENCE: 0.3</self_check>", 0.0, 1.0),
        ("<self_check>VERDICT: WRONG; CONFIDENCE: 0.3</self_check>", 1.0, 1.0),
        ("VERDICT: CORRECT; CONFIDENCE: 0.3", -1.0, -1.0),
        ("<self_check>VERDICT: CORRECT; CONFIDENCE: 0.3", 0.0, 0.0),
    ],
)
def test_the_form_of_a_self_check_is_that_of_its_interface(
    text: str, verdict_only: float, confidence_only: float
) -> None:
    assert self_check_format_score(text, "verdict") == verdict_only
    assert self_check_format_score(text, "confidence") == confidence_only


def test_a_field_that_was_not_asked_for_is_not_read() -> None:
    text = "<self_check>VERDICT: CORRECT; CONFIDENCE: 0.3</self_check>"
    assert parse_self_check(text, "verdict") == SelfCheck(verdict=Verdict.CORRECT, confidence=0.8)
    assert parse_self_check(text, "confidence") == SelfCheck(verdict=Verdict.UNSURE, confidence=0.3)
