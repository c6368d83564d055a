"""A recipe in one file outside the package."""

MADE_UP = '''"""Two answers; the shorter right one wins."""

from dataclasses import dataclass

from svr_lightning.core.credit import group_advantages
from svr_lightning.recipes.base import sample_of
from svr_lightning.recipes.baseline import Baseline


@dataclass(frozen=True, kw_only=True)
class Shorter(Baseline):
    """Pays for brevity."""

    group_size: int = 2
    reward_kind: str = "solve"

    @property
    def samples_per_problem(self):
        return self.group_size

    def programs(self, problem, place):
        return [self.inference(problem, i, 1) for i in range(self.group_size)]

    def credit(self, group):
        lengths = [-float(turns[0].completion_tokens) for turns in group.scored]
        advantages = group_advantages(lengths)
        return [
            sample_of(trajectory.turns[0], group.problem, advantage)
            for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
        ]
'''
