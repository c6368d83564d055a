"""The demonstrations of the embedded word problems, and the policy that learned from them."""

import itertools
import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from experiments.warmstart import __main__ as command
from experiments.warmstart.documents import Document
from experiments.warmstart.word_problems import (
    WordSolver,
    documents,
)
from svr_lightning import tiny
from svr_lightning.tasks import get_task
from tests.demonstrations import assert_form, worst_leak_of

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
