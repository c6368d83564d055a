"""What every demonstration of a warm start has to be, and what a policy learned from them."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import svr_lightning as svr
from experiments.warmstart.documents import Document
from svr_lightning.core.metrics import auroc
from svr_lightning.core.parsing import self_check_format_score, without_spans
from svr_lightning.core.types import Verdict
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.recipes.base import Group
from svr_lightning.recipes.scrpo import ANALYSIS_CLOSE, ANALYSIS_OPEN
from svr_lightning.recipes.svr import SVR
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import Task
from svr_lightning.tiny import problems, word_problems
from tools.bench.workloads import start_policy


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


# --- what a shipped policy says before any training ----------------------------------------------

TASKS: dict[str, tuple[str, Callable[[Any], list[dict[str, Any]]]]] = {
    "countdown": ("countdown", problems.generate),
    "word_problems": ("gsm8k", word_problems.generate),
}
"""The task that reads a problem, and the rows of a split."""


def sampled(policy: Path, task: str, limit: int, temperature: float = 0.9) -> list[Group]:
    """Two trajectories of three turns for each of ``limit`` test problems."""
    name, generate = TASKS[task]
    reader, rows = get_task(name), generate("test")
    chosen = [reader.from_row(row) for row in rows[:: max(1, len(rows) // limit)]][:limit]
    engine = TransformersEngine(max_batch=128)
    _, renderer = start_policy(engine, str(policy), ends=True)
    return svr.collect_rollout(
        engine,
        SVR(group_size=2, horizon=3, length_scale=256),
        chosen,
        renderer=renderer,
        sampling=svr.Decoding(max_completion_tokens=96, temperature=temperature),
        seed=0,
        step=0,
    )


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


def summary(groups: Sequence[Group], tokenizer: Any) -> dict[str, Any]:
    """Accuracy of first turns, overconfidence, doubt, and what gives away which are right."""
    pairs = [
        (turn, scored)
        for group in groups
        for trajectory, labels in zip(group.trajectories, group.scored, strict=True)
        for turn, scored in zip(trajectory.turns, labels, strict=True)
    ]
    right = np.array([scored.correct for _, scored in pairs])
    confidence = np.array([scored.confidence for _, scored in pairs], dtype=float)
    trusted = np.array([scored.verdict == Verdict.CORRECT for _, scored in pairs])
    first = np.array([turn.index == 1 for turn, _ in pairs])
    texts = [turn.completion.text.partition("\n<self_check>")[0] for turn, _ in pairs]
    return {
        "first turns right": right[first].mean(),
        "wrong answers called CORRECT": trusted[~right].mean(),
        "doubt": (~trusted | (confidence < 0.85)).mean(),
        "AUROC": auroc(np.where(trusted, 1.0, -1.0) + confidence, right),
        "tokens": np.mean([scored.completion_tokens for _, scored in pairs]),
        "leak": worst_leak(tokenizer, texts, right.tolist()),
    }
