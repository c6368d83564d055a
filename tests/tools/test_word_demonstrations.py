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

from svr_lightning import tiny
from svr_lightning.core.metrics import auroc
from svr_lightning.core.parsing import parse_self_check
from svr_lightning.core.types import Verdict
from svr_lightning.recipes.base import Group
from svr_lightning.tasks import get_task
from svr_lightning.tiny.word_problems import Step
from tests.demonstrations import assert_form
from tools.warmstart import __main__ as command
from tools.warmstart.attempts import SHARES
from tools.warmstart.documents import Document
from tools.warmstart.embedded import build_tokenizer
from tools.warmstart.measure import leaks_of_documents, repeated, sampled, summary, worst_leak
from tools.warmstart.word_problems import WordSolver, documents, mistakes, slipped

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
    assert set(shown) == set(SHARES)
    assert max(shown.values()) <= 2.5 * min(shown.values())  # SHARES: 24 to 12


def test_neither_a_token_nor_the_length_gives_away_which_answers_are_right(
    many: list[Document],
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    name, value = worst_leak(leaks_of_documents(tokenizer, many))
    assert value <= 0.6, name


def test_the_demonstrated_self_check_is_overconfident(many: list[Document]) -> None:
    checked = [(parse_self_check(d.completion), d.correct) for d in many if d.kind == "svr"]
    wrong = [check for check, correct in checked if not correct]
    assert fmean(check.verdict is Verdict.CORRECT for check in wrong) >= 0.55
    confidence = np.array([check.confidence for check, _ in checked])
    assert 0.55 <= auroc(confidence, np.array([bool(y) for _, y in checked])) <= 0.85


def test_every_mistake_is_wrong_and_every_kind_occurs() -> None:
    rng, solver, kinds = random.Random(0), WordSolver(), Counter[str]()
    for _ in range(300):
        word_problem = solver.problem(rng).payload["word_problem"]
        for kind, wrong in mistakes(word_problem).items():
            kinds[kind] += len(wrong)
            assert all(steps[-1].value != word_problem.steps[-1].value for steps in wrong)
        distracted = mistakes(word_problem)["distractor"] + mistakes(word_problem)["extra"]
        assert bool(distracted) <= (word_problem.place > 0)
    assert set(kinds) == {"distractor", "extra", "operation", "skip"}
    assert min(kinds.values()) > 50


def test_a_slip_is_carried_through_the_later_steps() -> None:
    steps = (
        Step(label="all", left=9, operator="*", right=8, value=72),
        Step(label="left", left=72, operator="-", right=4, value=68),
    )
    found = {slipped(random.Random(seed), steps) for seed in range(4000)}
    assert steps in found
    first = [steps_ for steps_ in found if steps_[0].value != 72]
    assert len(first) == 6  # SLIPS
    assert all(steps_[1].left == steps_[0].value for steps_ in first)
    assert all(steps_[1].value == steps_[0].value - 4 for steps_ in first)


def test_a_built_tokenizer_has_one_token_for_every_number_up_to_99() -> None:
    built = build_tokenizer(TASK.demonstrator(0, "train"), sample=500, **TASK.tokenizer)
    assert all(len(built(str(n))["input_ids"]) == 1 for n in range(100))
    text = next(TASK.demonstrator(1, "train")).completion
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
    assert 0.38 <= found["accuracy"][1] <= 0.54
    assert found["wrong answers called CORRECT"] >= 0.7
    assert found["doubt"] >= 0.02
    assert 0.55 <= found["AUROC of verdict and confidence"] <= 0.7
    assert found["tokens"] <= 60


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_repeated_answer_of_the_shipped_policy_is_often_wrong(
    drawn: dict[float, tuple[list[Group], Any]], temperature: float
) -> None:
    again = repeated(drawn[temperature][0])
    assert len(again) > 200
    assert fmean(again) < 0.9


def test_no_token_and_no_length_of_the_shipped_policys_traces_gives_away_what_is_right(
    drawn: dict[float, tuple[list[Group], Any]],
) -> None:
    name, value = summary(*drawn[0.9])["strongest sign in the text"]
    assert value <= 0.6, name


def test_a_refinement_of_the_shipped_policy_corrects_some_and_keeps_most(
    drawn: dict[float, tuple[list[Group], Any]],
) -> None:
    after: dict[bool, list[bool]] = {True: [], False: []}
    for group in drawn[0.9][0]:
        for labels in group.scored:
            for old, new in itertools.pairwise(labels):
                after[old.correct].append(new.correct)
    assert fmean(after[True]) >= 0.8
    assert 0.05 <= fmean(after[False]) <= 0.5
