"""GRPO-MT: trajectories of a fixed number of turns under a neutral refinement prompt.

Differs from GRPO in: G trajectories of several turns; the last turn's reward is the return of the
whole trajectory; all of its turns are optimised.
"""

from dataclasses import dataclass

from svr_lightning.core.credit import group_advantages
from svr_lightning.core.types import Sample
from svr_lightning.recipes.base import Group, MultiTurn, sample_of


@dataclass(frozen=True, kw_only=True)
class GRPOMT(MultiTurn):
    """Multi-turn GRPO with one advantage per trajectory."""

    def credit(self, group: Group) -> list[Sample]:
        """All turns, each with the advantage of its trajectory."""
        advantages = group_advantages(group.returns, self.scale_rewards)
        return [
            sample_of(turn, group.problem, advantage)
            for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
            for turn in trajectory.turns
        ]
