"""What a self-check that knows nothing is paid: when is it better to doubt everything?"""

from typing import Any

from svr_lightning.core.rewards import turn_rewards
from svr_lightning.core.types import ScoredTurn, Verdict

CONFIDENCES = [k / 100 for k in range(101)]


def expected_reward(verdict: Verdict, confidence: float, accuracy: float) -> float:
    """Mean verification reward of saying the same of every answer.

    Args:
        verdict: what is said.
        confidence: what is stated.
        accuracy: share of answers that are right.
    """
    right, wrong = (_verify(verdict, confidence, correct) for correct in (True, False))
    return accuracy * right + (1 - accuracy) * wrong


def best(accuracy: float) -> dict[str, tuple[float, float]]:
    """The best confidence and its reward, for CORRECT and for INCORRECT."""
    found = {}
    for verdict in (Verdict.CORRECT, Verdict.INCORRECT):
        paid = {c: expected_reward(verdict, c, accuracy) for c in CONFIDENCES}
        confidence = max(paid, key=paid.__getitem__)
        found[verdict.value] = (confidence, paid[confidence])
    return found


def break_even() -> float:
    """The accuracy, in hundredths, from which CORRECT of everything beats doubt of everything."""
    for percent in range(101):
        options = best(percent / 100)
        if options["CORRECT"][1] > options["INCORRECT"][1]:
            return percent / 100
    return 1.0


def curve() -> list[dict[str, Any]]:
    """The best reward of both verdicts at every twentieth of accuracy."""
    rows = []
    for k in range(21):
        options = best(k / 20)
        row: dict[str, Any] = {"accuracy": k / 20}
        for name, (confidence, paid) in options.items():
            row[name.lower()] = {"confidence": confidence, "reward": round(paid, 4)}
        rows.append(row)
    return rows


def _verify(verdict: Verdict, confidence: float, correct: bool) -> float:
    turn = ScoredTurn(
        correct=correct,
        truncated=False,
        verdict=verdict,
        confidence=confidence,
        completion_tokens=1,
        task_format=1.0,
        self_check_format=1.0,
    )
    return turn_rewards([turn])[0].verify
