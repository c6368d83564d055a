"""SVR: fixed-horizon refinement, the joint reward averaged over turns, loss on the last turn.

Differs from GRPO in: G trajectories of several turns instead of G completions; one return per
trajectory from the solve, self-verification and format rewards of all its turns; the loss covers
the final completion only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from svr_lightning.core.credit import check_choices
from svr_lightning.core.parsing import SelfCheckFields
from svr_lightning.core.ranges import Count, NotNegative
from svr_lightning.core.rewards import Reward, turn_rewards
from svr_lightning.core.types import Sample, ScoredTurn
from svr_lightning.recipes.base import Group, Recipe, sample_of
from svr_lightning.recipes.dialogues import Dialogue, SelfVerifying


@dataclass(frozen=True, kw_only=True)
class SelfChecked(Recipe):
    """Chains of turns with a self-check, the mean of their rewards, and loss on the last turn."""

    horizon: Count = 3
    """T_tr, turns per trajectory; adaptive stopping is off in training."""
    interface: SelfCheckFields = "joint"
    """What a self-check consists of. ``verdict`` and ``confidence`` ask for one field, read it
    only, score its form, and stop on it; set the reward weights of the other field to 0."""

    @property
    def dialogue(self) -> Dialogue:
        """The prompts for a solution with a self-check, and for its refinement."""
        return SelfVerifying(self.interface)

    def returns(self, rewards: Sequence[Sequence[Reward]]) -> list[float]:
        """[G] the mean total over the turns of each trajectory."""
        return [sum(turn.total for turn in turns) / len(turns) for turns in rewards]


@dataclass(frozen=True, kw_only=True)
class SVR(SelfChecked):
    """The paper's method (sections 3.3 and 3.4)."""

    proper: bool = False
    """Use a proper score: overconfidence and readiness then depend on the verdict alone, and
    the best confidence is the probability of being correct (docs/method.md), not 2.1 p - 0.8."""
    exact_check: NotNegative = 0.0
    """Weight of a further term: at the verdict and at the confidence of every turn of every
    trajectory, the loss is minus the expected proper score under the policy's own distribution over
    the three words, or over the confidence's first decimals (:meth:`exact_samples`). 0: off."""

    @property
    def samples_per_problem(self) -> int:
        """The last turn of every trajectory; with ``exact_check`` also the check of every turn."""
        return self.group_size + self.exact_per_problem

    @property
    def exact_per_problem(self) -> int:
        """Sequences per problem that :meth:`exact_samples` returns."""
        return self.group_size * self.horizon if self.exact_check else 0

    def credit(self, group: Group) -> list[Sample]:
        """The final completion of each trajectory, and the self-checks."""
        return [*super().credit(group), *self.exact_samples(group)]

    def exact_samples(self, group: Group) -> list[Sample]:
        """The self-check of every turn, as choices with their scores; none without ``exact_check``.

        Two expectations are exact: that over the verdict's words, given the text before them, and
        that over the confidence, given the *sampled* verdict. Not covered are: how another verdict
        would change the confidence that follows it (the proper score has a term for each, so only
        this influence is missing), the solution, other forms of a confidence, and the decimals
        after the varied ones, which stay as sampled.
        """
        if not self.exact_check:
            return []
        samples = []
        for trajectory, scored in zip(group.trajectories, group.scored, strict=True):
            for turn, label in zip(trajectory.turns, scored, strict=True):
                choices = check_choices(label, turn.reading.check, self.weights, self.exact_check)
                samples.append(replace(sample_of(turn, group.problem, 0.0), choices=choices))
        return samples

    def reward(self, scored: Sequence[ScoredTurn]) -> Sequence[Reward]:
        """Equation svr-reward, term by term, or its proper form."""
        return turn_rewards(scored, self.weights, self.length_scale, proper=self.proper)
