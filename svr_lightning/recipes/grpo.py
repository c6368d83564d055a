"""GRPO (DeepSeekMath, arXiv 2402.03300): G independent completions, compared with one another.

Differs from GRPO in: nothing; the evaluator stands for the reward model. With ``loss.ratio:
sequence`` it is GSPO (arXiv 2507.18071). At one update per rollout that ratio is 1 and the gradient
is GRPO's; the published setting takes four (configs/methods/gspo_published.yaml).
"""

from dataclasses import dataclass

from svr_lightning.core.ranges import Count
from svr_lightning.recipes.base import Baseline


@dataclass(frozen=True, kw_only=True)
class GRPO(Baseline):
    """Single-turn GRPO with the evaluator in place of a reward model."""

    group_size: Count = 24
    """G, completions per problem."""
