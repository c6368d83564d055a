"""The demonstrations of the embedded word problems, and the policy that learned from them."""

import itertools
import random
from pathlib import Path
from statistics import fmean

import pytest
from transformers import AutoTokenizer

from experiments.warmstart import __main__ as command
from experiments.warmstart.documents import Document
from experiments.warmstart.word_problems import (
    WordSolver,
    documents,
)
from svr_lightning import tiny
from svr_lightning.recipes.base import Group
from svr_lightning.tasks import get_task
from tests.demonstrations import assert_form, sampled, summary, worst_leak_of

SHIPPED = Path(tiny.__file__).parent / "arithmetic_policy"
GSM8K = get_task("gsm8k")
TASK = command.TASKS["word_problems"]
MANY = 6000
"""The standard error of an AUROC over so many documents is below .01."""


@pytest.fixture(scope="module")
def many() -> list[Document]:
    return list(itertools.islice(documents(3), MANY))


def test_demonstrations_have_the_form_that_their_prompt_asks_for(many: list[Document]) -> None:
    for document in many[:1500]:
        assert_form(GSM8K, document)


def test_attempts_are_graded_as_they_are_labelled() -> None:
    rng, solver = random.Random(0), WordSolver()
    for _ in range(500):
        problem = solver.problem(rng)
        first = solver.first(rng, problem)
        for attempt in (first, solver.another(rng, problem, first)):
            assert GSM8K.grade(attempt.text, problem) == attempt.correct


def test_neither_a_token_nor_the_length_gives_away_which_answers_are_right(
    many: list[Document],
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    name, value = worst_leak_of(tokenizer, many)
    assert value <= 0.6, name


@pytest.fixture(scope="module")
def drawn() -> dict[float, list[Group]]:
    """Three turns on the test problems: greedy, and sampled."""
    return {
        temperature: sampled(SHIPPED, "word_problems", 240, temperature)
        for temperature in (0.0, 0.9)
    }


def test_the_shipped_policy_starts_overconfident_and_hardly_knows(
    drawn: dict[float, list[Group]],
) -> None:
    found = summary(drawn[0.9], AutoTokenizer.from_pretrained(SHIPPED))
    assert 0.45 <= found["first turns right"] <= 0.65
    assert found["wrong answers called CORRECT"] >= 0.7
    assert found["doubt"] >= 0.02
    assert 0.5 <= found["AUROC"] <= 0.65
    assert found["tokens"] <= 60
    name, value = found["leak"]
    assert value <= 0.65, name


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_repeated_answer_of_the_shipped_policy_is_often_wrong(
    drawn: dict[float, list[Group]], temperature: float
) -> None:
    again = []
    for group in drawn[temperature]:
        for trajectory, labels in zip(group.trajectories, group.scored, strict=True):
            answers = [GSM8K.extract_answer(turn.completion.text) for turn in trajectory.turns]
            pairs = zip(answers, answers[1:], labels[1:], strict=False)
            again += [label.correct for old, new, label in pairs if old and old == new]
    assert len(again) > 200
    assert fmean(again) < 0.9


def test_a_refinement_of_the_shipped_policy_corrects_some_and_keeps_most(
    drawn: dict[float, list[Group]],
) -> None:
    after: dict[bool, list[bool]] = {True: [], False: []}
    for group in drawn[0.9]:
        for labels in group.scored:
            for old, new in itertools.pairwise(labels):
                after[old.correct].append(new.correct)
    assert fmean(after[True]) >= 0.8
    assert 0.1 <= fmean(after[False]) <= 0.5
