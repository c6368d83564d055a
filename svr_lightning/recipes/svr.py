"""SVR: fixed-horizon refinement, the joint reward averaged over turns, loss on the last turn.

Differs from GRPO in: G trajectories of several turns instead of G completions; one return per
trajectory from the solve, self-verification and format rewards of all its turns; the loss covers
the final completion only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from svr_lightning.core.credit import RewardScale, group_advantages
from svr_lightning.core.losses import LossSpec
from svr_lightning.core.rewards import RewardWeights, TurnReward, turn_rewards
from svr_lightning.core.types import Problem, Sample, ScoredTurn, Trajectory
from svr_lightning.recipes.base import Program, Recipe
from svr_lightning.recipes.chain import refinement_chain


@dataclass(frozen=True, kw_only=True)
class SVR(Recipe):
    """The paper's method (sections 3.3 and 3.4)."""

    group_size: int = 8
    """G, trajectories per problem."""
    horizon: int = 3
    """T_tr, turns per trajectory; adaptive stopping is off in training."""
    length_scale: int = 1024
    """L_len of the solve reward, in tokens."""
    weights: RewardWeights = field(default_factory=RewardWeights)
    """Reward coefficients; 0 switches a term off."""
    scale_rewards: RewardScale = "group"
    """``group`` divides advantages by the group's standard deviation, ``none`` does not."""
    loss: LossSpec = field(default_factory=LossSpec)
    """Ratio level, clip range and KL coefficient."""

    @property
    def samples_per_problem(self) -> int:
        """One optimised completion per trajectory."""
        return self.group_size

    def programs(self, problem: Problem) -> list[Program]:
        """G chains of ``horizon`` turns that never stop early."""
        return [refinement_chain(problem, i, self.horizon) for i in range(self.group_size)]

    def reward(self, scored: Sequence[ScoredTurn]) -> list[TurnReward]:
        """Equation svr-reward, term by term."""
        return turn_rewards(scored, self.weights, self.length_scale)

    def returns(self, rewards: Sequence[Sequence[TurnReward]]) -> list[float]:
        """R_SVR: the mean total over the turns of each trajectory."""
        return [sum(turn.total for turn in turns) / len(turns) for turns in rewards]

    def credit(
        self, trajectories: Sequence[Trajectory], rewards: Sequence[Sequence[TurnReward]]
    ) -> list[Sample]:
        """The final completion of each trajectory, with its group-relative advantage."""
        advantages = group_advantages(self.returns(rewards), self.scale_rewards)
        return [
            Sample(
                prompt_ids=trajectory.turns[-1].sampled.prompt_ids,
                completion_ids=trajectory.turns[-1].sampled.token_ids,
                logprobs=trajectory.turns[-1].sampled.logprobs,
                advantage=advantage,
                group_id=trajectory.problem.id,
                policy_version=trajectory.turns[-1].sampled.policy_version,
            )
            for trajectory, advantage in zip(trajectories, advantages, strict=True)
        ]
