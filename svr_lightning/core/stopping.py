"""The stopping gate (equation "stopping-time", appendix "app_adaptive_stop")."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from svr_lightning.core.types import Verdict

DEFAULT_THRESHOLD = 0.85
Gate = Literal["joint", "verdict", "confidence"]
Evidence = Literal["stated", "verdict_probability", "product"]
Exhausted = Literal["last", "most_confident"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """When a trajectory ends, and which of its turns is returned. The defaults are the paper's."""

    threshold: float = DEFAULT_THRESHOLD
    """gamma: the confidence that a turn needs to end its trajectory."""
    gate: Gate = "joint"
    """What a turn has to show: a CORRECT verdict and the confidence, or one of the two alone."""
    evidence: Evidence = "stated"
    """What counts as the confidence: the number that the policy states, the probability that it
    gave the words of its verdict, or their product. A turn without that probability has its stated
    number taken."""
    agreement_threshold: float | None = None
    """The threshold that suffices where a turn repeats the answer of the turn before. None: an
    answer's being repeated is no evidence."""
    exhausted: Exhausted = "last"
    """What is returned where no turn ends the trajectory: the last turn, or the most confident one
    of those that are not truncated; ties go to the better verdict, then to the earlier turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSignals:
    """What the policy said at one turn that a stopping rule may read. It has no label."""

    verdict: Verdict
    confidence: float
    truncated: bool
    answer: str | None = None
    """As extracted; None where none can be read."""
    verdict_probability: float | None = None
    """Probability that the policy gave the words of its verdict; None where it is not known."""


def evidence_of(rule: StopRule, turn: StopSignals) -> float:
    """The number that ``rule`` compares with its threshold, in [0, 1]."""
    if rule.evidence == "stated" or turn.verdict_probability is None:
        return turn.confidence
    if rule.evidence == "product":
        return turn.confidence * turn.verdict_probability
    return turn.verdict_probability


def repeats(turns: Sequence[StopSignals]) -> bool:
    """Whether the last turn's answer is, but for white space, the one of the turn before."""
    if len(turns) < 2 or turns[-1].answer is None or turns[-2].answer is None:
        return False
    return "".join(turns[-1].answer.split()) == "".join(turns[-2].answer.split())


def stops(rule: StopRule, turns: Sequence[StopSignals]) -> bool:
    """Whether the last of ``turns`` ends its trajectory under ``rule``.

    Example:
        >>> unsure = Signals(verdict=Verdict.UNSURE, confidence=0.9, truncated=False)
        >>> stops(StopRule(), [unsure]), stops(StopRule(gate="confidence"), [unsure])
        (False, True)
    """
    turn = turns[-1]
    if turn.truncated or (rule.gate != "confidence" and turn.verdict != Verdict.CORRECT):
        return False
    if rule.gate == "verdict":
        return True
    confidence = evidence_of(rule, turn)
    lower = rule.agreement_threshold
    agreed = lower is not None and confidence >= lower and repeats(turns)
    return confidence >= rule.threshold or agreed


def answer_turn(rule: StopRule, turns: Sequence[StopSignals]) -> int:
    """The turn (from 1) whose answer is returned once ``turns`` have all been generated.

    Args:
        rule: says what is returned where no turn ended the trajectory.
        turns: [T] in order, the last of which ended the trajectory or exhausted its budget.
    """
    if rule.exhausted == "last" or stops(rule, turns):
        return len(turns)
    order = (Verdict.INCORRECT, Verdict.UNSURE, Verdict.CORRECT)
    ranks = [
        (not turn.truncated, evidence_of(rule, turn), order.index(turn.verdict)) for turn in turns
    ]
    return ranks.index(max(ranks)) + 1


def should_stop(
    verdict: Verdict, confidence: float, truncated: bool, threshold: float = DEFAULT_THRESHOLD
) -> bool:
    """Whether a turn ends its trajectory: q_t = 0, v_t = CORRECT and c_t >= threshold.

    Example:
        >>> should_stop(Verdict.CORRECT, 0.85, truncated=False)
        True
        >>> should_stop(Verdict.CORRECT, 1.0, truncated=True)
        False
    """
    return not truncated and verdict == Verdict.CORRECT and confidence >= threshold


def returned_turn(gates: Sequence[bool], max_turns: int) -> int:
    """The turn (from 1) whose answer is returned: the first open gate, else ``max_turns``.

    Args:
        gates: [T] :func:`should_stop` of each generated turn, in order.
        max_turns: T_max. A gate that opens at T_max is not an early stop.

    Raises:
        ValueError: if no gate opens and fewer than ``max_turns`` turns are given.

    Example:
        >>> returned_turn([False, True, True], max_turns=3)
        2
    """
    for index, open_gate in enumerate(gates[:max_turns], start=1):
        if open_gate:
            return index
    if len(gates) < max_turns:
        raise ValueError(f"no turn stopped and only {len(gates)} of {max_turns} turns are there")
    return max_turns
