"""A method of your own: SVR without credit for earlier turns.

Difference from SVR: the return is the reward of the last turn instead of the mean over turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from svr_lightning.core.rewards import Reward
from svr_lightning.recipes.svr import SVR


@dataclass(frozen=True, kw_only=True)
class LastTurnReward(SVR):
    """SVR whose return is the last turn's reward."""

    def returns(self, rewards: Sequence[Sequence[Reward]]) -> list[float]:
        """[G] the last turn's total of each trajectory."""
        return [turns[-1].total for turns in rewards]
