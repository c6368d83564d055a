"""What every demonstration of a warm start has to be."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from experiments.warmstart.documents import Document
from svr_lightning.core.metrics import auroc
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


def worst_leak(
    tokenizer: Any, texts: Sequence[str], correct: Sequence[bool | None]
) -> tuple[str, float]:
    """What tells right texts from wrong ones best: their length, or how often a token occurs.

    Args:
        tokenizer: splits the texts.
        texts: completions up to their self-checks.
        correct: [N] whether each text's answer is right.

    Returns:
        Its name and its AUROC, at least .5: a low count may give it away as well.
    """
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    labels = np.array(correct, dtype=bool)
    counts = [Counter(row) for row in ids]
    found = {"length": auroc(np.array([float(len(row)) for row in ids]), labels)}
    for token in sorted({token for row in ids for token in row}):
        values = np.array([float(count[token]) for count in counts])
        found[f"{tokenizer.decode([token])!r} ({token})"] = auroc(values, labels)
    sizes = {name: max(value, 1 - value) for name, value in found.items()}
    return max(sizes.items(), key=lambda item: item[1])


def worst_leak_of(tokenizer: Any, documents: Iterable[Document]) -> tuple[str, float]:
    """The same of the demonstrations that give an answer."""
    graded = [document for document in documents if document.correct is not None]
    return worst_leak(tokenizer, [d.solution for d in graded], [d.correct for d in graded])
