"""SVR with a proper score: overconfidence and readiness judge the verdict, not the confidence.

Differs from SVR in two terms of the reward, which lose their factor c. docs/recipes.md derives that
the best confidence then is the probability of being correct, where SVR's is 2.1 p - 0.8.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from svr_lightning.core.rewards import Reward, proper_rewards
from svr_lightning.core.types import ScoredTurn
from svr_lightning.recipes.svr import SVR


@dataclass(frozen=True, kw_only=True)
class SVRProper(SVR):
    """SVR, calibrated at its optimum."""

    def reward(self, scored: Sequence[ScoredTurn]) -> Sequence[Reward]:
        """Equation svr-reward with -lambda_over [C, y = 0] and +lambda_ready [C, y = 1]."""
        return proper_rewards(scored, self.weights, self.length_scale)
