"""The best combination of SVR's variants that was found on the embedded task (docs/recipes.md).

Differs from SVR in: reward-to-go instead of one return per trajectory; every turn is optimised, or
one drawn turn; solution and self-check can be credited apart, each with what it brings about; the
score of the self-check can be a proper one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from svr_lightning.core.credit import group_advantages, reward_to_go
from svr_lightning.core.parsing import self_check_start
from svr_lightning.core.rewards import Reward, proper_rewards, sections, turn_rewards
from svr_lightning.core.types import Sample, ScoredTurn
from svr_lightning.recipes.base import Group, sample_of
from svr_lightning.recipes.svr_turns import SVRTurns


@dataclass(frozen=True, kw_only=True)
class SVRPlus(SVRTurns):
    """SVR with credit for each turn and each of its two parts."""

    turns: Literal["all", "drawn"] = "drawn"
    """Optimise every turn, at three times the update's cost, or one per trajectory."""
    sections: bool = True
    """Credit a solution with the solve and answer-format rewards to go, and its self-check with the
    verification and self-check-format rewards of its own turn, as two sequences."""
    proper: bool = False
    """The reward of :class:`~svr_lightning.recipes.svr_proper.SVRProper`."""

    @property
    def samples_per_problem(self) -> int:
        """Every optimised part of every optimised turn."""
        turns = self.horizon if self.turns == "all" else 1
        return self.group_size * turns * (2 if self.sections else 1)

    def reward(self, scored: Sequence[ScoredTurn]) -> Sequence[Reward]:
        """Equation svr-reward, or its proper form."""
        rewards = proper_rewards if self.proper else turn_rewards
        return rewards(scored, self.weights, self.length_scale)

    def credit(self, group: Group) -> list[Sample]:
        """The optimised turns' parts, each compared with the same of the other trajectories."""
        columns = [self._advantages(group, t) for t in range(self.horizon)]
        return [
            sample
            for i in range(len(group.trajectories))
            for t in (range(self.horizon) if self.turns == "all" else [self.drawn(group, i)])
            for sample in self._samples(group, i, t, [part[i] for part in columns[t]])
        ]

    def _advantages(self, group: Group, t: int) -> list[list[float]]:
        """[1 or 2][G] advantages of the parts of turn ``t``, from 0."""
        if self.sections:
            parts = [[sections(reward) for reward in rewards] for rewards in group.rewards]
            solved = [reward_to_go([solution for solution, _ in turns])[t] for turns in parts]
            earned = [solved, [turns[t][1] for turns in parts]]
        else:
            earned = [[reward_to_go([r.total for r in rewards])[t] for rewards in group.rewards]]
        return [group_advantages(values, self.scale_rewards) for values in earned]

    def _samples(
        self, group: Group, i: int, t: int, advantages: Sequence[float]
    ) -> Iterator[Sample]:
        turn = group.trajectories[i].turns[t]
        if not self.sections:
            yield sample_of(turn, group.problem, advantages[0])
            return
        end = len(turn.completion.text)
        check = self_check_start(turn.completion.text)
        if check > 0:
            yield sample_of(turn, group.problem, advantages[0], (0, check))
        # One that is missing is answered for by the end of the turn.
        yield sample_of(turn, group.problem, advantages[1], (check, end + 1))
