"""Recordings made up from a seed, of any size: seven data sets that behave differently."""

from typing import Any

import numpy as np

from svr_lightning.analysis.records import SCHEMA_VERSION

DATASETS = {
    # name: (problems, how likely the first answer is right, how likely a turn mends or breaks one)
    "countdown": (300, 0.60, 0.30, 0.08),
    "gsm8k": (250, 0.80, 0.20, 0.10),
    "math500": (200, 0.58, 0.22, 0.16),
    "aime26": (30, 0.07, 0.04, 0.30),
    "amc23": (40, 0.35, 0.12, 0.20),
    "olympiadbench": (220, 0.32, 0.10, 0.22),
    "minerva_math": (180, 0.40, 0.10, 0.18),
}


def recording(
    datasets: dict[str, tuple[int, float, float, float]] | None = None,
    *,
    seed: int = 0,
    turns: int = 10,
    skill: float = 1.0,
) -> list[dict[str, Any]]:
    """Uncensored records: ``turns`` turns of every problem, all returned."""
    random = np.random.default_rng(seed)
    return [
        _record(random, name, index, turns, min(first * skill, 1.0), mend * skill, breaks)
        for name, (count, first, mend, breaks) in (datasets or DATASETS).items()
        for index in range(count)
    ]


def _record(
    random: np.random.Generator,
    dataset: str,
    index: int,
    turns: int,
    first: float,
    mend: float,
    breaks: float,
) -> dict[str, Any]:
    right, said = bool(random.random() < first), []
    for number in range(1, turns + 1):
        if number > 1:
            right = bool(random.random() >= breaks if right else random.random() < mend)
        confidence = round(float(random.beta(5, 1.2) if right else random.beta(2, 1.8)), 2)
        verdict = "CORRECT" if confidence > 0.7 else "INCORRECT" if confidence < 0.4 else "UNSURE"
        cut = bool(random.random() < 0.03)
        check = f"<self_check>VERDICT: {verdict}; CONFIDENCE: {confidence}</self_check>"
        said.append(
            {
                "turn": number,
                "text": f"<think>step {number}</think>\n<answer>{number}</answer>\n"
                + ("" if cut else check),
                "answer": str(42 if right else int(random.integers(0, 9))),
                "correct": right,
                "verdict": verdict,
                "confidence": confidence,
                "truncated": cut,
                "prompt_tokens": int(random.integers(150, 400)) + 300 * (number > 1),
                "completion_tokens": int(random.integers(100, 900)),
                "finish_reason": "length" if cut else "stop",
            }
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "dataset": dataset,
        "id": f"test-{index}",
        "task": "gsm8k",
        "payload": {},
        "question": f"Problem {index}?",
        "reference": "42",
        "returned_turn": turns,
        "stopped_early": False,
        "turns": said,
    }
