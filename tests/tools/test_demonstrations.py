"""The demonstrations of the embedded Countdown: what they teach and what they hide."""

import hashlib
import itertools
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from experiments.warmstart import __main__ as command
from experiments.warmstart import countdown, word_problems
from experiments.warmstart.attempts import Lesson
from experiments.warmstart.countdown import documents, lessons
from experiments.warmstart.documents import Document, encode
from experiments.warmstart.embedded import build_tokenizer
from svr_lightning import tiny
from svr_lightning.core.metrics import auroc
from svr_lightning.core.parsing import parse_self_check
from svr_lightning.core.types import Verdict
from svr_lightning.recipes.base import Group
from svr_lightning.tasks import get_task
from svr_lightning.tiny.problems import split_of
from tests.demonstrations import (
    assert_form,
    countdown_question,
    sampled,
    summary,
    worst_leak_of,
)

SHIPPED = Path(tiny.__file__).parent / "countdown_policy"
COUNTDOWN = get_task("countdown")
MANY = 6000
"""The standard error of an AUROC over so many documents is below .01."""


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(documents(0), sample=2000, largest_number=200)


@pytest.fixture(scope="module")
def many() -> list[Document]:
    return list(itertools.islice(documents(3), MANY))


def test_demonstrations_are_graded_as_they_are_labelled(many: list[Document]) -> None:
    for document in many[:1500]:
        nums, target = countdown_question(document)
        problem = COUNTDOWN.from_row({"id": "x", "nums": nums, "target": target})
        assert COUNTDOWN.grade(document.completion, problem) == bool(document.correct)
        assert_form(COUNTDOWN, document)


def test_demonstrations_hold_no_numbers_of_a_held_out_problem(many: list[Document]) -> None:
    assert {split_of(countdown_question(document)[0]) for document in many} == {"train"}
    held_out = itertools.islice(documents(3, "test"), 50)
    assert {split_of(countdown_question(document)[0]) for document in held_out} == {"test"}


@pytest.mark.parametrize("lesson", lessons(), ids=("compare", "solve", "trust"))
def test_neither_a_token_nor_the_length_gives_away_which_answers_are_right(
    tokenizer: PreTrainedTokenizerFast, lesson: Lesson
) -> None:
    shown = itertools.islice(lesson.demonstrations.stream(3), MANY)
    name, value = worst_leak_of(tokenizer, shown)
    assert value <= 0.6, name  # of "*": .586, .579 and .581


@pytest.mark.parametrize(("informative", "low", "high"), [(1.0, 0.74, 0.84), (0.0, 0.47, 0.53)])
def test_the_demonstrated_self_check_is_overconfident_where_wrong(
    informative: float, low: float, high: float
) -> None:
    told = replace(lessons(informative)[-1].demonstrations, kinds=("svr",)).stream(3)
    checked = [(parse_self_check(d.completion), d.correct) for d in itertools.islice(told, MANY)]
    wrong = [check for check, correct in checked if not correct]
    assert fmean(check.verdict is Verdict.CORRECT for check in wrong) >= 0.55
    doubt = [c.verdict is not Verdict.CORRECT or c.confidence < 0.85 for c, _ in checked]
    assert 0.1 <= fmean(doubt) <= 0.3
    confidence = np.array([check.confidence for check, _ in checked])
    assert low <= auroc(confidence, np.array([bool(y) for _, y in checked])) <= high


def test_the_loss_covers_the_completion_and_the_draft_inside_the_prompt(
    tokenizer: PreTrainedTokenizerFast, many: list[Document]
) -> None:
    for document in many[:200]:
        encoded = encode(tokenizer, document)
        learned = [i for i, weight in zip(encoded.ids, encoded.weights, strict=True) if weight]
        assert tokenizer.decode(learned) == document.draft + document.completion + "<|im_end|>"


@pytest.mark.parametrize(
    ("module", "informative", "digest"),
    [
        (countdown, 1.0, "d9dac17898ee4d7e"),
        (countdown, 0.0, "43924bf68bbcd2e5"),
        (word_problems, 1.0, "379ff57757201652"),
        (word_problems, 0.0, "763f59ebd5cf645a"),
    ],
)
def test_the_demonstrations_are_those_that_taught_the_shipped_policies(
    module: Any, informative: float, digest: str
) -> None:
    found = hashlib.sha256()
    for lesson in module.lessons(informative):
        for d in itertools.islice(lesson.demonstrations.stream(7), 300):
            shown = (d.kind, d.messages, d.completion, d.draft, d.correct)
            found.update(repr(shown).encode())
    assert found.hexdigest()[:16] == digest


def test_a_short_warm_start_makes_the_same_policy_each_time(tmp_path: Path) -> None:
    first, again = (
        command.main(["--out", str(tmp_path / name), "--steps", "3"]) for name in ("a", "b")
    )
    assert first == again
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


@pytest.fixture(scope="module")
def drawn() -> list[Group]:
    """Three sampled turns on the test problems."""
    return sampled(SHIPPED, "countdown", 300)


def test_the_shipped_policy_starts_overconfident_and_knows_a_little(
    drawn: list[Group],
) -> None:
    found = summary(drawn, AutoTokenizer.from_pretrained(SHIPPED))
    assert 0.28 <= found["first turns right"] <= 0.42
    assert found["wrong answers called CORRECT"] >= 0.7
    assert 0.1 <= found["doubt"] <= 0.3
    assert 0.55 <= found["AUROC"] <= 0.7
    assert found["tokens"] <= 35
    name, value = found["leak"]
    assert value <= 0.63, name  # .609 of 1,800 turns; the demonstrations have .6 at most


def test_the_shipped_policy_gives_another_answer_where_it_doubts(
    drawn: list[Group],
) -> None:
    kept: dict[bool, list[bool]] = {True: [], False: []}
    for group in drawn:
        for trajectory, labels in zip(group.trajectories, group.scored, strict=True):
            answers = [COUNTDOWN.extract_answer(turn.completion.text) for turn in trajectory.turns]
            for (old, new), label in zip(itertools.pairwise(answers), labels, strict=False):
                kept[label.verdict is Verdict.CORRECT].append(old == new)
    assert fmean(kept[True]) >= 0.6
    assert fmean(kept[False]) <= 0.25
