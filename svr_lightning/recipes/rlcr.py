"""RLCR (Damani et al. 2025, arXiv 2507.16806): correctness plus a proper score of the confidence.

Differs from GRPO in: each answer states the probability that it is correct, and is rewarded by a
proper score of that too. The published method has one turn and the Brier score; ``score: log``
takes a bounded log score. With a ``horizon`` of several turns, answers are refined as in SVR, and
the confidence decides when to stop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from svr_lightning.core.parsing import SelfCheckFields
from svr_lightning.core.ranges import Count
from svr_lightning.core.rewards import Reward, RewardWeights, ScoringRule, calibrated_rewards
from svr_lightning.core.types import ScoredTurn
from svr_lightning.recipes.svr import SelfChecked


@dataclass(frozen=True, kw_only=True)
class RLCR(SelfChecked):
    """Reinforcement learning with calibration rewards."""

    group_size: Count = 24
    """G, answers per problem."""
    horizon: Count = 1
    """Turns per trajectory; the paper has one."""
    interface: SelfCheckFields = "confidence"
    """What a self-check consists of; the paper asks for a confidence alone."""
    weights: RewardWeights = field(default_factory=lambda: RewardWeights(cal=1.0))
    """``abs``, ``cal`` and ``fmt`` weight correctness, score and format; others are not used. The
    paper weighs correctness and score alike."""
    score: ScoringRule = "brier"
    """How a confidence is scored: ``brier`` or ``log``, both in [0, 1]."""

    def reward(self, scored: Sequence[ScoredTurn]) -> Sequence[Reward]:
        """Correctness, score and format of each turn."""
        return calibrated_rewards(scored, self.score, self.weights)
