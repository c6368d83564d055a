"""SVR: fixed-horizon refinement, the joint reward averaged over turns, loss on the last turn.

Differs from GRPO in: G trajectories of several turns instead of G completions; one return per
trajectory from the solve, self-verification and format rewards of all its turns; the loss covers
the final completion only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from svr_lightning.core.credit import RewardScale, group_advantages
from svr_lightning.core.losses import LossSpec
from svr_lightning.core.parsing import SelfCheckFields, self_check_format_score
from svr_lightning.core.rewards import Reward, RewardWeights, turn_rewards
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.stopping import StopRule
from svr_lightning.core.types import Message, Problem, Sample, ScoredTurn, Turn
from svr_lightning.recipes.base import Group, Recipe, RolloutFn, sample_of
from svr_lightning.recipes.chain import ProbabilityOf, refinement_chain
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import Task
from svr_lightning.tasks.messages import first_turn_messages


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
    interface: SelfCheckFields = "joint"
    """What a self-check consists of. ``verdict`` and ``confidence`` ask for one field, read it
    alone, score its form, and stop on it; the weights of the other's rewards are to be set to 0."""

    @property
    def samples_per_problem(self) -> int:
        """One optimised completion per trajectory."""
        return self.group_size

    def programs(self, problem: Problem, place: SeedContext = START) -> list[RolloutFn]:
        """G chains of ``horizon`` turns that never stop early."""
        return [self.inference(problem, i, self.horizon) for i in range(self.group_size)]

    def reward(self, scored: Sequence[ScoredTurn]) -> Sequence[Reward]:
        """Equation svr-reward, term by term."""
        return turn_rewards(scored, self.weights, self.length_scale)

    def returns(self, rewards: Sequence[Sequence[Reward]]) -> list[float]:
        """R_SVR: the mean total over the turns of each trajectory."""
        return [sum(turn.total for turn in turns) / len(turns) for turns in rewards]

    def credit(self, group: Group) -> list[Sample]:
        """The final completion of each trajectory, with its group-relative advantage."""
        advantages = group_advantages(group.returns, self.scale_rewards)
        return [
            sample_of(trajectory.turns[-1], group.problem, advantage)
            for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
        ]

    def formats(self, task: Task, text: str) -> tuple[float, float]:
        """The task's format score, and that of the self-check as ``interface`` wants it."""
        return task.format_score(text), self_check_format_score(text, self.interface)

    def first_messages(self, problem: Problem) -> list[Message]:
        """The prompt of turn 1, which asks for what ``interface`` names."""
        return first_turn_messages(get_task(problem.task), problem, self.interface)

    def protocol(self, max_turns: int, rule: StopRule | None) -> tuple[int, StopRule | None]:
        """Adaptive stopping; a policy of one field is stopped by that field."""
        if rule is not None and self.interface != "joint":
            rule = replace(rule, gate=self.interface)
        return max_turns, rule

    def inference(
        self,
        problem: Problem,
        sample: int,
        max_turns: int,
        rule: StopRule | None = None,
        on_turn: Callable[[Turn], None] | None = None,
        probability_of: ProbabilityOf | None = None,
    ) -> RolloutFn:
        """Solve, self-check, refine, until ``rule`` is satisfied."""
        return refinement_chain(
            problem, sample, max_turns, rule, on_turn, probability_of, self.interface
        )
