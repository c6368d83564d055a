"""The oracle-guided score-feedback reference (paper, appendix "Oracle-Guided Baseline Prompt").

Differs from GRPO in: SVR's horizon, solve reward, return and loss mask, with a label in each later
prompt where SVR has the self-check. Privileged: evaluation shows the labels too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from svr_lightning.core.rewards import BaselineReward, Reward
from svr_lightning.recipes.base import MultiTurn
from svr_lightning.recipes.dialogues import Dialogue
from svr_lightning.recipes.labels import ScoreShown


@dataclass(frozen=True, kw_only=True)
class Oracle(MultiTurn):
    """SVR's horizon, return and loss mask, with a label where SVR has the self-check."""

    reward_kind: BaselineReward = "solve"
    """SVR's solve reward and the answer's format; see :class:`Baseline`."""

    @property
    def dialogue(self) -> Dialogue:
        """The previous answer's score in each later prompt."""
        return ScoreShown()

    @property
    def samples_per_problem(self) -> int:
        """The last turn of every trajectory."""
        return self.group_size

    def returns(self, rewards: Sequence[Sequence[Reward]]) -> list[float]:
        """[G] the mean over the turns of each trajectory, as in SVR."""
        return [fmean(turn.total for turn in turns) for turns in rewards]
