"""What the prompts of each recipe may know of labels, in training and in evaluation."""

import json

import pytest

from svr_lightning.core.types import Problem
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.dialogues import chain
from svr_lightning.rollout.driver import Job
from tests.recipes import RECIPES, Actors, Write, each_recipe, mixed, play
from tests.scripted import ORDERS, exam

PRIVILEGED = {"oracle"}
CHOOSES_BY_LABEL = {"igrpo", "murphy_tree"}
"""Their prompts show no label, but in training a label chooses the draft that a prompt shows."""


def in_training(recipe: Recipe, problems: list[Problem], write: Write = mixed) -> str:
    return json.dumps([play(recipe, write, problem)[1].prompts for problem in problems])


def in_evaluation(recipe: Recipe, problems: list[Problem]) -> str:
    turns = recipe.evaluated_turns(4)
    actors = Actors(mixed)
    jobs = (
        Job(problem, i, chain(recipe.dialogue, problem, i, turns))
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
    def alike(*_):
        return f"<think>x</think>\n<answer>\\boxed{{{answer}}}</answer>"

    seen = {in_training(RECIPES[name][0], exam(order), alike) for order in ORDERS}
    assert len(seen) == 1
