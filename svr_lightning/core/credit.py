"""Group-relative advantages (equation group-advantage)."""

import math
from collections.abc import Sequence
from typing import Literal

ADVANTAGE_EPSILON = 1e-4
RewardScale = Literal["group", "none"]


def group_advantages(returns: Sequence[float], scale: RewardScale = "group") -> list[float]:
    """A_i = (R_i - mean) / (std + 1e-4) over the trajectories of one problem.

    Args:
        returns: [G] returns of one group.
        scale: ``group`` divides by the sample standard deviation (ddof 1), the paper's equation;
            ``none`` only subtracts the mean, the other reading of "rewards are not rescaled".

    Returns:
        [G] advantages, all exactly 0 for a degenerate group or a group of one.

    Example:
        >>> [round(a, 3) for a in group_advantages([1.0, 2.0, 3.0])]
        [-1.0, 0.0, 1.0]
    """
    if is_degenerate(returns):
        return [0.0] * len(returns)
    mean = math.fsum(returns) / len(returns)
    centred = [value - mean for value in returns]
    if scale == "none":
        return centred
    std = math.sqrt(math.fsum(c * c for c in centred) / (len(returns) - 1))
    return [c / (std + ADVANTAGE_EPSILON) for c in centred]


def is_degenerate(returns: Sequence[float]) -> bool:
    """Whether all returns are equal, so that the group says nothing about what is better."""
    return all(value == returns[0] for value in returns)
