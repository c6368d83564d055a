"""The stopping gate (equation "stopping-time", appendix "app_adaptive_stop")."""

from collections.abc import Sequence

from svr_lightning.core.types import Verdict

DEFAULT_THRESHOLD = 0.85


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
