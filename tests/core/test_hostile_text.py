"""A great deal of what a policy might write at its worst is read and graded in bounded time."""

import pytest

from svr_lightning.core.parsing import (
    CLOSE_TAG,
    OPEN_TAG,
    parse_self_check,
    plain_fields,
    read_completion,
    self_check_format_score,
    without_spans,
)
from svr_lightning.tasks import TASKS
from svr_lightning.tasks.base import AnswerNumbers
from tests.limits import bounded_processor_time
from tests.scripted import exam

CHECK = "<self_check>VERDICT: CORRECT</self_check>"
PIECES = [
    "\\boxed{",
    "\\boxed{}",
    "\\boxed{1} ",
    "{",
    "}",
    "\\\\",
    "(",
    "9",
    "#",
    "#### ",
    " ",
    "\0",
    "<answer>",
    "</answer>",
    "<answer>1</answer>",
    "</think>",
    "</think> ",
    "<self_check>",
    "</self_check>",
    CHECK,
    "VERDICT: CORRECT, ",
    "CONFIDENCE: 1e",
    "VERDICT ",
    "CONFIDENCE (1-10): 1 ",
    "#### 1 ",
    f"<answer>1</answer>{CHECK}",
]


@pytest.fixture(params=PIECES, ids=ascii)
def text(request) -> str:
    """One piece, repeated to 300,000 characters: quadratic time would take many minutes."""
    piece = str(request.param)
    return piece * (300_000 // len(piece))


@pytest.mark.parametrize("prefix", ["", "<self_check>CONFIDENCE: 0.9 VERDICT: CORRECT"])
def test_it_is_read_in_bounded_time(text, prefix):
    with bounded_processor_time():
        parsed = parse_self_check(prefix + text)
        self_check_format_score(prefix + text)
        without_spans(prefix + text, OPEN_TAG, CLOSE_TAG)
        read_completion(prefix + text, lambda part: part or None, plain=plain_fields(prefix + text))
    assert 0.0 <= parsed.confidence <= 1.0


@pytest.mark.parametrize("problem", exam(["10", "42", "42"]), ids=list(TASKS))
def test_it_is_graded_in_bounded_time_and_is_one_answer_at_most(text, problem):
    task = TASKS[problem.task]
    with bounded_processor_time():
        for before, after in (("", ""), ("<think>", "</answer>"), ("<answer>", "</answer>")):
            completion = before + text + after
            assert not task.grade(completion, problem)
            assert 0.0 <= task.format_score(completion) <= 1.0
        numbers = AnswerNumbers(task.answer_form)
        answers = (text, text[:150], task.extract_answer(text))
        assert max(map(numbers.number, answers)) < len(answers)
