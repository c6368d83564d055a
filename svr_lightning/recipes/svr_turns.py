"""SVR that trains the states of every turn, with as many optimised samples as before.

Differs from SVR in: of each trajectory one turn is optimised, drawn uniformly, instead of always
the last; its credit is what that turn and those after it earned, compared with the same turn of the
other trajectories.
"""

from dataclasses import dataclass

from svr_lightning.core.credit import group_advantages, reward_to_go
from svr_lightning.core.types import Sample
from svr_lightning.recipes.base import Group, sample_of
from svr_lightning.recipes.svr import SVR


@dataclass(frozen=True, kw_only=True)
class SVRTurns(SVR):
    """Reward-to-go on one random turn per trajectory."""

    def credit(self, group: Group) -> list[Sample]:
        """A drawn turn of each trajectory, with its advantage among that turn of all of them."""
        to_go = [reward_to_go([turn.total for turn in turns]) for turns in group.rewards]
        advantages = [
            group_advantages(column, self.scale_rewards) for column in zip(*to_go, strict=True)
        ]
        samples = []
        for i, trajectory in enumerate(group.trajectories):
            t = self.drawn(group, i)
            samples.append(sample_of(trajectory.turns[t], group.problem, advantages[t][i]))
        return samples

    def drawn(self, group: Group, i: int) -> int:
        """The turn, from 0, of trajectory ``i`` that is optimised."""
        trajectory = group.trajectories[i]
        draw = group.place.generator(group.problem.id, "turn", sample=trajectory.sample)
        return draw.randrange(len(trajectory.turns))

    def degenerate(self, group: Group) -> bool:
        """Whether no drawn turn has an advantage."""
        return not any(sample.advantage for sample in self.credit(group))
