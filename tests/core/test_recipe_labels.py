"""What the prompts of each recipe may know of labels, in training and in evaluation."""

import json

import pytest

from svr_lightning.core.prompts import neutral
from svr_lightning.core.types import Decoding, DraftState, Message, Problem
from svr_lightning.recipes.base import Group, Recipe
from svr_lightning.recipes.dialogues import chain
from svr_lightning.rollout.driver import Job
from svr_lightning.tasks import get_task
from tests.recipes import RECIPES, Actors, Write, each_recipe, mixed, play
from tests.scripted import ORDERS, exam

PRIVILEGED = {"oracle"}
CHOOSES_BY_LABEL = {"igrpo", "murphy_tree"}
"""Their prompts show no label, but in training a label chooses the draft that a prompt shows."""


def in_training(recipe: Recipe, problems: list[Problem], write: Write = mixed) -> str:
    return json.dumps(play(recipe, write, problems)[1].prompts)


def in_evaluation(recipe: Recipe, problems: list[Problem]) -> str:
    turns = recipe.evaluated_turns(4)
    decoding = Decoding(max_completion_tokens=999)
    actors = Actors(mixed)
    jobs = (
        Job(problem, i, chain(recipe.dialogue, problem, i, turns), decoding)
        for problem in problems
        for i in range(3)
    )
    assert actors.run(jobs)
    return json.dumps(actors.prompts)


@each_recipe
def test_no_prompt_knows_a_label_unless_its_recipe_says_so(name):
    recipe = RECIPES[name][0]
    seen = {in_training(recipe, exam(order)) for order in ORDERS}
    assert (len(seen) == 1) == (name not in PRIVILEGED | CHOOSES_BY_LABEL)
    assert recipe.uses_labels == (name in PRIVILEGED)


@each_recipe
def test_no_prompt_of_an_evaluation_knows_a_label_unless_its_recipe_says_so(name):
    seen = {in_evaluation(RECIPES[name][0], exam(order)) for order in ORDERS}
    assert (len(seen) == 1) == (name not in PRIVILEGED)


# A tree goes on from wrong answers alone, so that only one without a right answer keeps its shape.
@pytest.mark.parametrize(("name", "answer"), [("igrpo", "42"), ("murphy_tree", "7")])
def test_where_answers_are_alike_no_choice_by_label_shows(name, answer):
    def alike(*_: object) -> str:
        return f"<think>x</think>\n<answer>\\boxed{{{answer}}}</answer>"

    seen = {in_training(RECIPES[name][0], exam(order), alike) for order in ORDERS}
    assert len(seen) == 1


def neutral_prompts(group: Group) -> list[list[Message]]:
    """Neutral prompts that go on from any completion of a group."""
    style, question = get_task(group.problem.task).style, group.problem.question
    turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
    drafts = [DraftState(draft=turn.completion.text, truncated=False) for turn in turns]
    return [
        neutral(style, question, draft, turn.index + 1)
        for turn, draft in zip(turns, drafts, strict=True)
    ]


@pytest.mark.parametrize("name", sorted(CHOOSES_BY_LABEL))
def test_a_draft_that_a_label_chose_is_followed_by_the_neutral_prompt(name):
    recipe = RECIPES[name][0]
    for order in ORDERS:
        groups, actors = play(recipe, mixed, exam(order))
        first = [recipe.dialogue.first(group.problem) for group in groups]
        later = [prompt for prompt in actors.prompts if prompt not in first]
        allowed = [prompt for group in groups for prompt in neutral_prompts(group)]
        assert len(later) >= 24
        assert all(prompt in allowed for prompt in later)
