"""What holds of every recipe: its budget, what its prompts may know, what a lost group teaches."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from svr_lightning.core.parsing import parse_self_check, self_check_format_score
from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import Message, SelfCheck, Verdict
from svr_lightning.errors import ConfigError
from svr_lightning.recipes.base import Group
from svr_lightning.recipes.dialogues import chain
from svr_lightning.recipes.oracle import Oracle
from svr_lightning.recipes.scrpo import ScRPOPool
from svr_lightning.recipes.svr import SVR
from tests.recipes import RECIPES, RIGHT, WRONG, completion, each_recipe, mixed, play, scripts, ten


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
    max_turns, kept = recipe.protocol(10, rule)
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
    asked = next(program)
    while True:
        try:
            asked = program.send([completion(write(one)) for one in asked])
        except StopIteration as end:
            return end.value


def test_a_policy_of_one_field_is_stopped_by_that_field() -> None:
    assert SVR(interface="verdict").protocol(10, Confident()) == (10, Confident(threshold=0.0))
    alone = Confident(needs_correct=False)
    assert SVR(interface="confidence").protocol(10, Confident()) == (10, alone)
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


# --- ScRPO's pool -----------------------------------------------------------------------------


def together(values: Any) -> list[Any]:
    return list(values)


def fill(recipe: ScRPOPool, names: str, step: int) -> None:
    """One step of the first stage in which each problem has one right and one wrong answer."""
    problems = [ten(name) for name in names]
    groups, _ = play(recipe, scripts("R", "W"), problems, SeedContext(step=step))
    recipe.scheduler.remember(groups, step, together)


def small_pool() -> ScRPOPool:
    return ScRPOPool(group_size=2, period=2)


def test_the_pool_corrects_earlier_mistakes_in_every_third_step() -> None:
    recipe = small_pool()
    fill(recipe, "ab", 0)
    fill(recipe, "cd", 1)
    groups, actors = play(
        recipe, scripts("R", "W"), [ten("x"), ten("y"), ten("z")], SeedContext(step=2)
    )
    corrected = {group.problem.id for group in groups}
    assert corrected < set("abcd")
    assert len(corrected) == 3
    assert all(WRONG in prompt[1]["content"] for prompt in actors.prompts)
    assert [turn.index for turn in groups[0].trajectories[0].turns] == [2]
    # The second stage learns from what succeeded alone, and fills no pool.
    assert [sample.advantage > 0 for sample in recipe.credit(groups[0])] == [True]
    before = recipe.scheduler.state_dict()
    recipe.scheduler.remember(groups, 2, together)
    assert [entry["step"] for entry in recipe.scheduler.state_dict()["pool"]] == [1, 1]
    assert [entry["step"] for entry in before["pool"]] == [0, 0, 1, 1]


def test_problems_stand_in_where_the_pool_is_too_small() -> None:
    recipe = small_pool()
    fill(recipe, "a", 1)
    groups, _ = play(recipe, scripts("R", "W"), [ten("x"), ten("a"), ten("y")], SeedContext(step=2))
    assert [group.problem.id for group in groups] == ["a", "x", "y"]
    assert [g.trajectories[0].turns[0].index for g in groups] == [2, 1, 1]


def test_a_resumed_pool_is_the_same_pool() -> None:
    recipe, resumed = small_pool(), small_pool()
    fill(recipe, "abcdef", 1)
    resumed.scheduler.load_state_dict(json.loads(json.dumps(recipe.scheduler.state_dict())))
    problems = [ten("x"), ten("y")]
    place = SeedContext(run_seed=3, step=2)
    assert resumed.scheduler.batch(problems, place) == recipe.scheduler.batch(problems, place)
    assert resumed.scheduler.state_dict() == recipe.scheduler.state_dict()


def test_processes_correct_different_mistakes() -> None:
    recipe = small_pool()
    fill(recipe, "abcdef", 1)
    problems = [ten("x"), ten("y")]
    shares = [
        {p.id for p in recipe.scheduler.batch(problems, SeedContext(step=2, part=part, parts=3))}
        for part in range(3)
    ]
    assert set.union(*shares) == set("abcdef")


def test_resampling_takes_no_mistake_twice() -> None:
    recipe = small_pool()
    fill(recipe, "abcdef", 1)
    place = SeedContext(run_seed=3, step=2)
    first = recipe.scheduler.batch([ten("x"), ten("y")], place)
    second = recipe.scheduler.batch([ten("v"), ten("w")], replace(place, attempt=1))
    third = recipe.scheduler.batch([ten(name) for name in "rstu"], replace(place, attempt=2))
    assert {p.id for p in first + second} | {p.id for p in third[:2]} == set("abcdef")
    assert [p.id for p in third[2:]] == ["r", "s"]
    # The next rollout has all of them again.
    assert recipe.scheduler.batch([ten("x"), ten("y")], place) == first


def test_a_pool_that_shows_labels_is_privileged_and_says_that_answers_were_wrong() -> None:
    recipe = ScRPOPool(group_size=2, period=2, oracle_free=False)
    fill(recipe, "ab", 1)
    _, actors = play(recipe, scripts("R", "W"), [ten("x")], SeedContext(step=2))
    assert recipe.uses_labels
    assert all("answer was wrong" in prompt[1]["content"] for prompt in actors.prompts)


def test_the_pool_refuses_several_updates_per_rollout() -> None:
    with pytest.raises(ConfigError, match="updates_per_rollout=4 must be 1 with ScRPOPool"):
        small_pool().check(4)


def test_the_pool_forgets_the_oldest() -> None:
    recipe = ScRPOPool(group_size=2, period=2, capacity=3)
    fill(recipe, "ab", 0)
    fill(recipe, "cd", 1)
    assert [entry["problem"]["id"] for entry in recipe.scheduler.state_dict()["pool"]] == [
        "b",
        "c",
        "d",
    ]


def test_a_pool_of_hard_or_easy_problems_stays_empty() -> None:
    recipe = small_pool()
    groups: list[Group] = []
    for rows in (("R", "R"), ("W", "W")):
        groups += play(recipe, scripts(*rows))[0]
    recipe.scheduler.remember(groups, 0, together)
    assert recipe.scheduler.state_dict() == {"pool": []}
