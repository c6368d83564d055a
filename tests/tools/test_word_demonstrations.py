"""The demonstrations of the embedded word problems, and the policy that learned from them."""

import itertools
import random
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from experiments.warmstart import __main__ as command
from experiments.warmstart.attempts import KINDS
from experiments.warmstart.documents import Document
from experiments.warmstart.embedded import build_tokenizer
from experiments.warmstart.measure import leaks_of_documents, repeated, sampled, summary, worst_leak
from experiments.warmstart.word_problems import (
    CONFUSIONS,
    HARD,
    WordSolver,
    documents,
    mistaken,
    solved,
)
from svr_lightning import tiny
from svr_lightning.core.metrics import auroc
from svr_lightning.core.parsing import parse_self_check
from svr_lightning.core.types import Verdict
from svr_lightning.recipes.base import Group
from svr_lightning.tasks import get_task
from svr_lightning.tiny.word_problems import LARGEST_VALUE, STORIES, WordProblem
from tests.demonstrations import assert_form

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


def test_no_prompt_of_a_recipe_is_rare_in_the_warm_start(many: list[Document]) -> None:
    shown = Counter(document.kind for document in many)
    assert set(shown) == set(KINDS)
    assert max(shown.values()) <= 1.2 * min(shown.values())


def test_neither_a_token_nor_the_length_gives_away_which_answers_are_right(
    many: list[Document],
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    name, value = worst_leak(leaks_of_documents(tokenizer, many))
    assert value <= 0.6, name


def test_the_demonstrated_self_check_knows_more_than_the_policy_will(many: list[Document]) -> None:
    checked = [(parse_self_check(d.completion), d.correct) for d in many if d.kind == "svr"]
    wrong = [check for check, correct in checked if not correct]
    assert 0.25 <= fmean(check.verdict is Verdict.CORRECT for check in wrong) <= 0.35  # TRUST
    confidence = np.array([check.confidence for check, _ in checked])
    assert auroc(confidence, np.array([bool(y) for _, y in checked])) >= 0.8


def test_some_facts_with_a_large_right_operand_are_misremembered() -> None:
    assert mistaken(7, "*", 5) is None
    assert mistaken(42, "/", 6) is None
    assert mistaken(3, "-", 6) is None  # no value at all
    facts = [
        (left, operator, right)
        for left in range(2, 60)
        for operator in "+-*"
        for right in HARD
        if mistaken(left, operator, right)
    ]
    assert len(facts) > 400
    for left, operator, right in facts:
        found = mistaken(left, operator, right)
        assert found is not None
        wrong, chance = found
        assert chance in CONFUSIONS
        assert 0 < wrong <= LARGEST_VALUE
        assert wrong != {"+": left + right, "-": left - right, "*": left * right}[operator]


def pens(boxes: int, pens_each: int) -> WordProblem:
    """Of which three are given away."""
    story = next(story for story in STORIES if story.name == "pens")
    quantities = {"a": boxes, "b": pens_each, "c": 3, "d": 2}
    return WordProblem(story=story, quantities=quantities, people=("Ada", "Ben"), place=0)


def test_a_misremembered_value_is_carried_through_the_later_steps() -> None:
    problem = next(pens(a, b) for a in range(2, 11) for b in HARD if mistaken(a, "*", b))
    texts = {
        tuple(step.value for step in solved(random.Random(seed), problem, careful=False))
        for seed in range(200)
    }
    a, b = problem.quantities["a"], problem.quantities["b"]
    fact = mistaken(a, "*", b)
    assert fact is not None
    assert texts == {(a * b, a * b - 3), (fact[0], fact[0] - 3)}


def test_with_care_a_shaky_fact_is_worked_out_in_halves() -> None:
    problem = next(pens(a, 8) for a in range(2, 11) if mistaken(a, "*", 8))
    a = problem.quantities["a"]
    steps = solved(random.Random(0), problem, careful=True)
    assert [(s.left, s.operator, s.right, s.value) for s in steps[:3]] == [
        (a, "*", 4, 4 * a),
        (a, "*", 4, 4 * a),
        (4 * a, "+", 4 * a, 8 * a),
    ]


def test_solving_again_is_right_more_often() -> None:
    rng, solver = random.Random(0), WordSolver()
    first, again = [], []
    for _ in range(1500):
        problem = solver.problem(rng)
        attempt = solver.first(rng, problem)
        first.append(attempt.correct)
        if not attempt.correct:
            again.append(solver.another(rng, problem, attempt).correct)
    assert 0.55 <= fmean(first) <= 0.7
    assert fmean(again) >= 0.7


def test_a_built_tokenizer_has_one_token_for_every_number_up_to_99() -> None:
    built = build_tokenizer(documents(0), sample=500, **TASK.tokenizer)
    assert all(len(built(str(n))["input_ids"]) == 1 for n in range(100))
    text = next(documents(1)).completion
    assert built.decode(built(text)["input_ids"]) == text


@pytest.fixture(scope="module")
def drawn() -> dict[float, tuple[list[Group], Any]]:
    """Three turns on the test problems: greedy, and sampled."""
    return {
        temperature: sampled(SHIPPED, "word_problems", "test", 240, temperature=temperature)
        for temperature in (0.0, 0.9)
    }


def test_the_shipped_policy_starts_overconfident_and_hardly_knows(
    drawn: dict[float, tuple[list[Group], Any]],
) -> None:
    found = summary(*drawn[0.9])
    assert 0.45 <= found["accuracy"][1] <= 0.65
    assert found["wrong answers called CORRECT"] >= 0.7
    assert found["doubt"] >= 0.02
    assert 0.5 <= found["AUROC of verdict and confidence"] <= 0.65
    assert found["tokens"] <= 60


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_repeated_answer_of_the_shipped_policy_is_often_wrong(
    drawn: dict[float, tuple[list[Group], Any]], temperature: float
) -> None:
    again = repeated(drawn[temperature][0])
    assert len(again) > 200
    assert fmean(again) < 0.9


def test_no_token_and_no_length_of_the_shipped_policys_traces_says_much_of_what_is_right(
    drawn: dict[float, tuple[list[Group], Any]],
) -> None:
    name, value = summary(*drawn[0.9])["strongest sign in the text"]
    assert value <= 0.65, name


def test_a_refinement_of_the_shipped_policy_corrects_some_and_keeps_most(
    drawn: dict[float, tuple[list[Group], Any]],
) -> None:
    after: dict[bool, list[bool]] = {True: [], False: []}
    for group in drawn[0.9][0]:
        for labels in group.scored:
            for old, new in itertools.pairwise(labels):
                after[old.correct].append(new.correct)
    assert fmean(after[True]) >= 0.8
    assert 0.1 <= fmean(after[False]) <= 0.5
