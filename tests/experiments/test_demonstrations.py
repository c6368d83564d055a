"""Demonstrations of the embedded tasks and of a user's rows: what they teach, what they hide."""

import hashlib
import itertools
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from experiments.problems.countdown import split_of
from experiments.warmstart import __main__ as command
from experiments.warmstart import countdown, word_problems
from experiments.warmstart.attempts import encoded
from experiments.warmstart.embedded import build_tokenizer
from svr_lightning.core.parsing import self_check_format_score, without_spans
from svr_lightning.recipes.scrpo import ANALYSIS_CLOSE, ANALYSIS_OPEN
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import Task
from svr_lightning.training.documents import Document

COUNTDOWN, GSM8K = get_task("countdown"), get_task("gsm8k")


MANY = 6000
"""The standard error of an AUROC over so many documents is below .01."""


def documents(module: Any, count: int) -> list[Document]:
    """Of the last lesson."""
    return [*itertools.islice(module.lessons()[-1].demonstrations.stream(3), count)]


def countdown_question(document: Document) -> tuple[list[int], int]:
    """Numbers and target of the question in a prompt; drafts come behind it or hold none."""
    question = document.messages[1]["content"].split("Using the numbers [", 1)[1]
    numbers, rest = question.split("]", 1)
    return [int(n) for n in numbers.split(",")], int(rest.split("equals ")[1].split(".")[0])


def assert_form(task: Task, document: Document) -> None:
    """A completion has the form that its prompt asks for."""
    assert len(document.completion) <= task.style.draft_limit
    assert document.draft in document.messages[1]["content"]
    if document.kind == "tutor":  # gives no answer
        assert document.correct is None
        return
    solution = without_spans(document.completion, ANALYSIS_OPEN, ANALYSIS_CLOSE)
    assert task.format_score(solution) == 1.0
    if document.kind == "svr":
        assert self_check_format_score(document.completion) == 1.0


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    shown = countdown.lessons()[-1].demonstrations.stream(0)
    return build_tokenizer(shown, sample=2000, vocabulary=1000, largest_number=200)


@pytest.fixture(scope="module")
def many() -> list[Document]:
    return documents(countdown, MANY)


def test_demonstrations_are_graded_as_they_are_labelled_and_of_no_held_out_problem(many):
    for document in many[:1500]:
        nums, target = countdown_question(document)
        problem = COUNTDOWN.from_row({"id": "x", "nums": nums, "target": target})
        assert COUNTDOWN.grade(document.completion, problem) == bool(document.correct)
        assert_form(COUNTDOWN, document)
    assert {split_of(countdown_question(document)[0]) for document in many} == {"train"}


def test_an_untraced_start_shows_no_calculation():
    lessons, options = command.TASKS["untraced"]
    for lesson in lessons.lessons(**options):
        for document in itertools.islice(lesson.demonstrations.stream(3), 50):
            assert "=" not in document.completion


def test_the_loss_covers_the_completion_and_the_draft_inside_the_prompt(tokenizer, many):
    for document in many[:200]:
        whole = encoded(Renderer(tokenizer), document, 1.0)
        learned = [i for i, weight in zip(whole.ids, whole.weights, strict=True) if weight]
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
def test_the_demonstrations_are_those_that_taught_the_shipped_policies(module, informative, digest):
    found = hashlib.sha256()
    for lesson in module.lessons(informative):
        for d in itertools.islice(lesson.demonstrations.stream(7), 300):
            shown = (d.kind, d.messages, d.completion, d.draft, d.correct)
            found.update(repr(shown).encode())
    assert found.hexdigest()[:16] == digest


def test_a_short_warm_start_makes_the_same_policy_each_time(tmp_path):
    first, again = (
        command.main(["--out", str(tmp_path / name), "--steps", "3"]) for name in ("a", "b")
    )
    assert first == again
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
