"""GRPO-MT: trajectories of a fixed number of turns under a neutral refinement prompt.

Differs from GRPO in: G trajectories of several turns; the last turn's reward is the return of the
whole trajectory; all of its turns are optimised.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from svr_lightning.core.credit import group_advantages
from svr_lightning.core.rewards import Reward
from svr_lightning.core.types import Sample
from svr_lightning.recipes.base import Group, MultiTurn, sample_of

ReturnOf = Literal["final", "mean"]


@dataclass(frozen=True, kw_only=True)
class GRPOMT(MultiTurn):
    """Multi-turn GRPO with one advantage per trajectory."""

    return_of: ReturnOf = "final"
    """A trajectory's return: the reward of its last turn, or the mean over its turns."""

    def returns(self, rewards: Sequence[Sequence[Reward]]) -> list[float]:
        """[G] as ``return_of`` says."""
        if self.return_of == "final":
            return super().returns(rewards)
        return [fmean(turn.total for turn in turns) for turns in rewards]

    def credit(self, group: Group) -> list[Sample]:
        """The optimised turns, each with the advantage of its trajectory."""
        advantages = group_advantages(group.returns, self.scale_rewards)
        return [
            sample_of(turn, group.problem, advantage)
            for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
            for turn in filter(self.in_loss, trajectory.turns)
        ]
