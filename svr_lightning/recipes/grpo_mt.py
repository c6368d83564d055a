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
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.types import Problem, Sample
from svr_lightning.recipes.base import Group, LossTurns, trajectory_samples, turns_learned
from svr_lightning.recipes.baseline import Baseline
from svr_lightning.recipes.dialogues import RolloutFn

ReturnOf = Literal["final", "mean"]


@dataclass(frozen=True, kw_only=True)
class GRPOMT(Baseline):
    """Multi-turn GRPO with one advantage per trajectory."""

    horizon: int = 3
    """Turns per trajectory."""
    loss_turns: LossTurns = "all"
    """Which turns are optimised: ``all``, each as a sequence of its own, or the ``final`` one."""
    return_of: ReturnOf = "final"
    """A trajectory's return: the reward of its last turn, or the mean over its turns."""

    @property
    def samples_per_problem(self) -> int:
        """Every optimised turn of every trajectory."""
        return self.group_size * turns_learned(self.horizon, self.loss_turns)

    def programs(self, problem: Problem, place: SeedContext = START) -> list[RolloutFn]:
        """G chains."""
        return self.chains(problem, self.horizon)

    def returns(self, rewards: Sequence[Sequence[Reward]]) -> list[float]:
        """[G] as ``return_of`` says."""
        if self.return_of == "final":
            return super().returns(rewards)
        return [fmean(turn.total for turn in turns) for turns in rewards]

    def credit(self, group: Group) -> list[Sample]:
        """The optimised turns, each with the advantage of its trajectory."""
        advantages = group_advantages(group.returns, self.scale_rewards)
        return trajectory_samples(group, advantages, self.loss_turns)
