"""What every demonstration of a warm start has to be."""

from experiments.warmstart.documents import Document
from svr_lightning.core.parsing import self_check_format_score, without_spans
from svr_lightning.recipes.scrpo import ANALYSIS_CLOSE, ANALYSIS_OPEN
from svr_lightning.tasks.base import Task


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
