"""The demonstrations of the embedded Countdown: what they teach and what they hide."""

import hashlib
import itertools
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from experiments.warmstart import __main__ as command
from experiments.warmstart import countdown, word_problems
from experiments.warmstart.attempts import Lesson
from experiments.warmstart.countdown import documents, lessons
from experiments.warmstart.documents import Document, encode
from experiments.warmstart.embedded import build_tokenizer
from svr_lightning import tiny
from svr_lightning.tasks import get_task
from svr_lightning.tiny.problems import split_of
from tests.demonstrations import (
    assert_form,
    countdown_question,
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
