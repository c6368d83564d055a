"""The oracle-guided score-feedback reference (paper, appendix "Oracle-Guided Baseline Prompt").

Differs from GRPO in: SVR's horizon, solve reward, return and loss mask, with a label in each later
prompt where SVR has the self-check. Privileged: evaluation shows the labels too.
"""

from dataclasses import dataclass

from svr_lightning.core.rewards import BaselineReward
from svr_lightning.recipes.base import LossTurns
from svr_lightning.recipes.dialogues import Dialogue
from svr_lightning.recipes.grpo_mt import GRPOMT, ReturnOf
from svr_lightning.recipes.labels import ScoreShown


@dataclass(frozen=True, kw_only=True)
class Oracle(GRPOMT):
    """SVR's horizon, return and loss mask, with a label where SVR has the self-check."""

    reward_kind: BaselineReward = "solve"
    """SVR's solve reward and the answer's format; see :class:`Baseline`."""
    loss_turns: LossTurns = "final"
    """Which turns are optimised: the ``final`` one, as in SVR, or ``all``."""
    return_of: ReturnOf = "mean"
    """A trajectory's return: the mean over its turns, as in SVR, or the ``final`` turn's reward."""

    @property
    def dialogue(self) -> Dialogue:
        """The previous answer's score in each later prompt."""
        return ScoreShown()
