"""The stopping gate (equation "stopping-time", appendix "app_adaptive_stop").

:func:`gate` is the only definition of when a turn ends its trajectory: inference calls it turn by
turn, and replays call it on whole columns of recorded turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from svr_lightning.core.types import Verdict

DEFAULT_THRESHOLD = 0.85
Gate = Literal["joint", "verdict", "confidence"]
Evidence = Literal["stated", "verdict_probability", "product"]
Fallback = Literal["last", "most_confident"]


@dataclass(frozen=True, kw_only=True)
class StopSettings:
    """A stopping rule without its threshold. The defaults are the paper's."""

    gate: Gate = "joint"
    """What a turn has to show: a CORRECT verdict and the confidence, or one of the two alone."""
    evidence: Evidence = "stated"
    """What counts as the confidence: the number that the policy states, the probability that it
    gave the words of its verdict, or their product. A turn without that probability has its stated
    number taken."""
    agreement_threshold: float | None = None
    """The threshold that suffices where a turn repeats the answer of the turn before. None: an
    answer's being repeated is no evidence."""
    fallback: Fallback = "last"
    """What is returned if no turn ends the trajectory: the last turn, or the most confident one
    of those that are not truncated; ties go to the better verdict, then to the earlier turn."""


@dataclass(frozen=True, kw_only=True)
class StopRule(StopSettings):
    """When a trajectory ends, and which of its turns is returned."""

    threshold: float = DEFAULT_THRESHOLD
    """gamma: the confidence that a turn needs to end its trajectory."""


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


def same_answer(answer: str | None, before: str | None) -> bool:
    """Whether two extracted answers are there and equal, ignoring white space."""
    if answer is None or before is None:
        return False
    return "".join(answer.split()) == "".join(before.split())


def repeats(turns: Sequence[StopSignals]) -> bool:
    """Whether the last turn repeats the answer of the turn before."""
    return len(turns) > 1 and same_answer(turns[-1].answer, turns[-2].answer)


def gate(
    rule: StopRule, *, claims_correct: Any, evidence: Any, truncated: Any, repeated: Any
) -> Any:
    """Whether a turn ends its trajectory under ``rule``; plain values or arrays of one shape.

    Args:
        rule: the stopping rule.
        claims_correct: bool, whether the verdict is CORRECT.
        evidence: float, the number that is compared with the threshold; nan never suffices.
        truncated: bool, q_t. A truncated turn never ends its trajectory.
        repeated: bool, whether the answer is the one of the turn before.
    """
    is_open = truncated ^ True
    if rule.gate != "confidence":
        is_open = is_open & claims_correct
    if rule.gate == "verdict":
        return is_open
    enough = evidence >= rule.threshold
    if rule.agreement_threshold is not None:
        enough = enough | (repeated & (evidence >= rule.agreement_threshold))
    return is_open & enough


def stops(rule: StopRule, turns: Sequence[StopSignals]) -> bool:
    """Whether the last of ``turns`` ends its trajectory under ``rule``.

    Examples:
        >>> unsure = StopSignals(verdict=Verdict.UNSURE, confidence=0.9, truncated=False)
        >>> stops(StopRule(), [unsure]), stops(StopRule(gate="confidence"), [unsure])
        (False, True)
    """
    turn = turns[-1]
    return bool(
        gate(
            rule,
            claims_correct=turn.verdict == Verdict.CORRECT,
            evidence=evidence_of(rule, turn),
            truncated=turn.truncated,
            repeated=repeats(turns),
        )
    )


def answer_turn(rule: StopRule, turns: Sequence[StopSignals]) -> int:
    """The turn (from 1) whose answer is returned once ``turns`` have all been generated.

    Args:
        rule: says what is returned if no turn ended the trajectory.
        turns: [T] in order, the last of which ended the trajectory or exhausted its budget.
    """
    if rule.fallback == "last" or stops(rule, turns):
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

    Examples:
        >>> should_stop(Verdict.CORRECT, 0.85, truncated=False)
        True
        >>> should_stop(Verdict.CORRECT, 1.0, truncated=True)
        False
    """
    turn = StopSignals(verdict=verdict, confidence=confidence, truncated=truncated)
    return stops(StopRule(threshold=threshold), [turn])


def returned_turn(gates: Sequence[bool], max_turns: int) -> int:
    """The turn (from 1) whose answer is returned: the first open gate, else ``max_turns``.

    Args:
        gates: [T] :func:`should_stop` of each generated turn, in order.
        max_turns: T_max. A gate that opens at T_max is not an early stop.

    Raises:
        ValueError: if no gate opens and fewer than ``max_turns`` turns are given.

    Examples:
        >>> returned_turn([False, True, True], max_turns=3)
        2
    """
    for index, open_gate in enumerate(gates[:max_turns], start=1):
        if open_gate:
            return index
    if len(gates) < max_turns:
        raise ValueError(f"no turn stopped and only {len(gates)} of {max_turns} turns are there")
    return max_turns
