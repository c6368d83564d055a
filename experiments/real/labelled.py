"""Teach a self-check the labels of a policy's own answers: the arm ``labelled``.

The strongest simple rival of reinforcement learning on self-checks: no rollouts, one supervised
pass over first turns that the start sampled on training problems. The answers stay as they were
sampled; the self-check says what the label says.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.real.recipes import SYSTEM
from experiments.warmstart.documents import Document
from svr_lightning.core.prompts import chat

CHECKS = {
    True: "<self_check>VERDICT: CORRECT; CONFIDENCE: 0.9</self_check>",
    False: "<self_check>VERDICT: INCORRECT; CONFIDENCE: 0.1</self_check>",
}
CHECK_WEIGHT = 4.0
"""Of a self-check's tokens; the sampled answer's weigh 1, so that the policy keeps solving."""


def documents(recording: Path, seed: int) -> Iterator[Document]:
    """Endless first turns, shuffled anew in each pass, with a self-check that is the label."""
    lines = recording.read_text(encoding="utf-8").splitlines()
    found = [document for line in lines if (document := labelled(json.loads(line)))]
    rng = random.Random(seed)
    while True:
        yield from rng.sample(found, len(found))


def labelled(row: dict[str, Any]) -> Document | None:
    """A recorded problem's first turn; None where it was cut off or has no self-check."""
    turn = row["turns"][0]
    solution, check, _ = turn["text"].partition("<self_check>")
    if turn["truncated"] or not check:
        return None
    return Document(
        kind="labelled",
        messages=chat(SYSTEM, row["question"]),
        completion=solution + CHECKS[turn["correct"]],
        correct=turn["correct"],
    )
