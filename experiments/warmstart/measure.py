"""``python -m experiments.warmstart.measure FOLDER``: what a policy says before any training.

It takes three turns of SVR's dialogue and reports accuracy, overconfidence, doubt and how well the
stated confidence ranks right answers; how many of the answers given twice in a row are right; and
whether the text before the self-check gives away which answers are right, by its length or by how
often any token occurs in it.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import svr_lightning as svr
from experiments.warmstart.documents import Document
from svr_lightning.core.metrics import auroc
from svr_lightning.core.types import Verdict
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.recipes.base import Group
from svr_lightning.recipes.svr import SVR
from svr_lightning.tasks import get_task
from svr_lightning.tiny import problems, word_problems
from tools.bench.workloads import start_policy

THRESHOLD = 0.85
TASKS: dict[str, tuple[str, Callable[[Any], list[dict[str, Any]]]]] = {
    "countdown": ("countdown", problems.generate),
    "word_problems": ("gsm8k", word_problems.generate),
}
"""The task that reads a problem, and the rows of a split."""


def leaks(tokenizer: Any, texts: Sequence[str], correct: Sequence[bool]) -> dict[str, float]:
    """How well length and each token's count tell right texts from wrong ones.

    Args:
        tokenizer: splits the texts.
        texts: completions up to their self-checks.
        correct: [N] whether each text's answer is right.

    Returns:
        AUROC by ``"length"`` and by token, each at least .5: a low count may give it away as well.
    """
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    labels = np.array(correct, dtype=bool)
    counts = [Counter(row) for row in ids]
    found = {"length": auroc(np.array([float(len(row)) for row in ids]), labels)}
    for token in sorted({token for row in ids for token in row}):
        values = np.array([float(count[token]) for count in counts])
        found[f"{tokenizer.decode([token])!r} ({token})"] = auroc(values, labels)
    return {name: max(value, 1 - value) for name, value in found.items()}


def worst_leak(found: dict[str, float]) -> tuple[str, float]:
    """The strongest sign and its AUROC."""
    return max(found.items(), key=lambda item: item[1])


def leaks_of_documents(tokenizer: Any, documents: Iterable[Document]) -> dict[str, float]:
    """:func:`leaks` of the demonstrations that give an answer."""
    graded = [document for document in documents if document.correct is not None]
    return leaks(tokenizer, [d.solution for d in graded], [bool(d.correct) for d in graded])


def sampled(
    policy: Path,
    task: str,
    split: str,
    limit: int,
    temperature: float = 0.9,
) -> tuple[list[Group], Any]:
    """Two trajectories of three turns for each of ``limit`` problems; and the tokenizer.

    At temperature 0 the two are equal.
    """
    name, generate = TASKS[task]
    reader, rows = get_task(name), generate(split)
    problems = [reader.from_row(row) for row in rows[:: max(1, len(rows) // limit)]][:limit]
    engine = TransformersEngine(max_batch=128)
    _, renderer = start_policy(engine, str(policy), ends=True)
    groups = svr.collect_rollout(
        engine,
        SVR(group_size=2, horizon=3, length_scale=256),
        problems,
        renderer=renderer,
        sampling=svr.Decoding(max_completion_tokens=96, temperature=temperature),
        seed=0,
        step=0,
    )
    return groups, renderer.tokenizer


def repeated(groups: Sequence[Group]) -> list[bool]:
    """Of every answer that equals the one of the turn before: whether it is right."""
    found = []
    for group in groups:
        task = get_task(group.problem.task)
        for trajectory, labels in zip(group.trajectories, group.scored, strict=True):
            answers = [task.extract_answer(turn.completion.text) for turn in trajectory.turns]
            pairs = zip(answers, answers[1:], labels[1:], strict=False)
            found += [label.correct for old, new, label in pairs if old and old == new]
    return found


def summary(groups: Sequence[Group], tokenizer: Any) -> dict[str, Any]:
    """The numbers of a rollout."""
    pairs = [
        (turn, scored)
        for group in groups
        for trajectory, labels in zip(group.trajectories, group.scored, strict=True)
        for turn, scored in zip(trajectory.turns, labels, strict=True)
    ]
    right = np.array([scored.correct for _, scored in pairs])
    confidence = np.array([scored.confidence for _, scored in pairs], dtype=float)
    trusted = np.array([scored.verdict == Verdict.CORRECT for _, scored in pairs])
    doubt = ~trusted | (confidence < THRESHOLD)
    belief = np.where(trusted, 1.0, -1.0) + confidence
    turns = np.array([turn.index for turn, _ in pairs])
    texts = [turn.completion.text.partition("\n<self_check>")[0] for turn, _ in pairs]
    again = repeated(groups)
    name, value = worst_leak(leaks(tokenizer, texts, right.tolist()))
    return {
        "turns": len(pairs),
        "accuracy": {int(t): round(float(right[turns == t].mean()), 3) for t in np.unique(turns)},
        "wrong answers called CORRECT": round(float(trusted[~right].mean()), 3),
        "doubt": round(float(doubt.mean()), 3),
        "doubt of wrong answers": round(float(doubt[~right].mean()), 3),
        "AUROC of the confidence": round(float(auroc(confidence, right)), 3),
        "AUROC of verdict and confidence": round(float(auroc(belief, right)), 3),
        "spread of the confidence": round(float(confidence.std()), 3),
        "repeated answers that are right": [round(float(np.mean(again)), 3), len(again)],
        "strongest sign in the text": [name, round(value, 3)],
        "tokens": round(float(np.mean([s.completion_tokens for _, s in pairs])), 1),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.warmstart.measure", description=__doc__
    )
    parser.add_argument("policy", type=Path)
    parser.add_argument("--task", choices=TASKS, default="countdown")
    parser.add_argument("--split", default="test")
    parser.add_argument("--temperature", type=float, default=0.9)
    parser.add_argument("--limit", type=int, default=300, help="problems")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(summary(*sampled(**vars(options))), indent=1))


if __name__ == "__main__":
    main()
