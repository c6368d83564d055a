"""Warmup-stable-decay (appendix "Training and Generation Hyperparameters")."""

import math


def warmup_stable_decay(
    step: int,
    total_steps: int,
    *,
    warmup_fraction: float = 0.05,
    decay_fraction: float = 0.20,
    floor: float = 0.05,
) -> float:
    """Multiplier of the peak learning rate for optimizer step ``step``, counted from 0.

    Linear from ``floor`` to 1 over the first ``ceil(warmup_fraction * total)`` steps, then 1,
    then linear down to ``floor`` over the last ``floor(decay_fraction * total)``. Warm-up starts
    at the floor rather than at 0, so that no step is wasted (as ms-swift's schedule does).

    Examples:
        >>> [round(warmup_stable_decay(s, 40), 3) for s in (0, 1, 2, 31, 32, 36, 40)]
        [0.05, 0.525, 1.0, 1.0, 1.0, 0.525, 0.05]
    """
    warmup = math.ceil(warmup_fraction * total_steps)
    decay = int(decay_fraction * total_steps)
    if step < warmup:
        return floor + (1.0 - floor) * step / warmup
    left = total_steps - step
    if left <= 0:
        return floor
    return floor + (1.0 - floor) * left / decay if left < decay else 1.0
