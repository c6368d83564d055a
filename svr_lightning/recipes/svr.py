"""SVR: fixed-horizon refinement, the joint reward averaged over turns, loss on the last turn.

Differs from GRPO in: G trajectories of several turns instead of G completions; one return per
trajectory from the solve, self-verification and format rewards of all its turns; the loss covers
the final completion only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from svr_lightning.core.credit import group_advantages
from svr_lightning.core.parsing import SelfCheckFields
from svr_lightning.core.rewards import Reward, turn_rewards
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.types import Problem, Sample, ScoredTurn
from svr_lightning.recipes.base import Group, Recipe, last_turn_samples
from svr_lightning.recipes.dialogues import Dialogue, RolloutFn, SelfVerifying


@dataclass(frozen=True, kw_only=True)
class SelfChecked(Recipe):
    """Chains of turns with a self-check, the mean of their rewards, and loss on the last turn."""

    horizon: int = 3
    """T_tr, turns per trajectory; adaptive stopping is off in training."""
    interface: SelfCheckFields = "joint"
    """What a self-check consists of. ``verdict`` and ``confidence`` ask for one field, read it
    only, score its form, and stop on it; set the reward weights of the other field to 0."""

    @property
    def dialogue(self) -> Dialogue:
        """The prompts for a solution with a self-check, and for its refinement."""
        return SelfVerifying(self.interface)

    def programs(self, problem: Problem, seeds: SeedContext = START) -> list[RolloutFn]:
        """G chains of ``horizon`` turns that never stop early."""
        return self.chains(problem, self.horizon)

    def returns(self, rewards: Sequence[Sequence[Reward]]) -> list[float]:
        """[G] the mean total over the turns of each trajectory."""
        return [sum(turn.total for turn in turns) / len(turns) for turns in rewards]

    def credit(self, group: Group) -> list[Sample]:
        """The final completion of each trajectory, with its group-relative advantage."""
        return last_turn_samples(group, group_advantages(group.returns, self.scale_rewards))


@dataclass(frozen=True, kw_only=True)
class SVR(SelfChecked):
    """The paper's method (sections 3.3 and 3.4)."""

    proper: bool = False
    """Use a proper score: overconfidence and readiness then depend on the verdict alone, and
    the best confidence is the probability of being correct (docs/method.md), not 2.1 p - 0.8."""

    def reward(self, scored: Sequence[ScoredTurn]) -> Sequence[Reward]:
        """Equation svr-reward, term by term, or its proper form."""
        return turn_rewards(scored, self.weights, self.length_scale, proper=self.proper)
