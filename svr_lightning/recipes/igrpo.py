"""iGRPO (Hatamizadeh et al. 2026, arXiv 2602.09000): GRPO on refinements of the best draft.

Differs from GRPO in: half of the completions are drafts without gradient; the other half refines
the draft with the highest reward, and is a group of its own. The prompt does not say that the
draft is the best. Evaluation is single-turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from svr_lightning.core.ranges import Count
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.types import Problem, Sample, Trajectory
from svr_lightning.recipes.base import Baseline, Group, rewards_of
from svr_lightning.recipes.dialogues import RolloutGenerator, ask, node
from svr_lightning.recipes.labels import score


@dataclass(frozen=True, kw_only=True)
class IGRPO(Baseline):
    """Two stages: sample drafts, then learn to refine the best one."""

    group_size: Count = 12
    """G, refinements per problem."""
    drafts: Count = 12
    """Drafts per problem."""

    def rollouts(self, problem: Problem, seeds: SeedContext = START) -> list[RolloutGenerator]:
        """One rollout, since the refinements need all drafts."""
        return [self._two_stages(problem, seeds)]

    def _two_stages(self, problem: Problem, seeds: SeedContext) -> RolloutGenerator:
        turns = yield from ask(self.dialogue, problem, [[]] * self.drafts)
        drafts = [node(problem, i, turn) for i, turn in enumerate(turns)]
        best = self._best(drafts, seeds)
        turns = yield from ask(self.dialogue, problem, [best.turns] * self.group_size)
        refined = [node(problem, self.drafts + i, turn, best) for i, turn in enumerate(turns)]
        return [*drafts, *refined]

    def _best(self, drafts: Sequence[Trajectory], seeds: SeedContext) -> Trajectory:
        """The draft with the highest reward; among equal ones, one drawn at random."""
        problem = drafts[0].problem
        scored = [score(self.dialogue, problem, draft.turns[0]) for draft in drafts]
        rewards = [rewards_of(self, [turn])[0].total for turn in scored]
        best = [d for d, reward in zip(drafts, rewards, strict=True) if reward == max(rewards)]
        return seeds.generator(problem.id, "draft").choice(best)

    def credit(self, group: Group) -> list[Sample]:
        """The refinements, as GRPO credits completions: each with its advantage among them."""
        trajectories, returns = group.trajectories[self.drafts :], group.returns[self.drafts :]
        return super().credit(replace(group, trajectories=trajectories, returns=returns))
