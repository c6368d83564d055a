"""A recipe in one file outside the package."""

MADE_UP = '''"""Two answers; the shorter right one wins."""

from dataclasses import dataclass

from svr_lightning.core.credit import group_advantages
from svr_lightning.recipes.base import Baseline, sample_of


@dataclass(frozen=True, kw_only=True)
class Shorter(Baseline):
    """Pays for brevity."""

    group_size: int = 2
    reward_kind: str = "solve"

    def credit(self, group):
        lengths = [-float(turns[0].completion_tokens) for turns in group.scored]
        advantages = group_advantages(lengths)
        return [
            sample_of(trajectory.turns[0], group.problem, advantage)
            for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
        ]
'''
