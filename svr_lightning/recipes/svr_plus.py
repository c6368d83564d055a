"""SVR with credit for each turn and, if asked for, for each of a turn's two parts.

Differs from GRPO in: as SVR, but with reward-to-go instead of one return per
trajectory; one drawn turn per trajectory is optimised, or every turn; solution and self-check can
be credited separately, each with its own rewards. The defaults are the best combination that was
found on the embedded tasks (docs/method.md).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from svr_lightning.core.credit import turn_advantages
from svr_lightning.core.parsing import self_check_start
from svr_lightning.core.ranges import Count
from svr_lightning.core.rewards import sections
from svr_lightning.core.types import Problem, Sample, Turn
from svr_lightning.recipes.base import Group, sample_of
from svr_lightning.recipes.svr import SVR


@dataclass(frozen=True, kw_only=True)
class SVRPlus(SVR):
    """SVR with credit for each turn and each of its two parts."""

    turns: Literal["all", "drawn"] = "drawn"
    """``all`` optimises every turn, at three times the cost; ``drawn`` one per trajectory, drawn
    uniformly: as many sequences as SVR, and first turns are trained too."""
    sections: bool = True
    """Credit a solution with the solve and answer-format rewards to go, and its self-check with the
    verification and self-check-format rewards of its own turn, as two sequences. False credits
    whole turns with their total reward to go."""

    proper: bool = True
    """Use a proper score; see SVR, where it is off."""

    optimised: Count | None = None
    """Optimise this many sequences per problem, chosen at random; their advantages are those that
    they have among all. 8 costs as much as SVR's update. None optimises all."""

    @property
    def samples_per_problem(self) -> int:
        """Every optimised part of every optimised turn, or ``optimised`` of them; the checks."""
        turns = self.horizon if self.turns == "all" else 1
        sequences = self.group_size * turns * (2 if self.sections else 1)
        if self.optimised is not None:
            sequences = min(self.optimised, sequences)
        return sequences + self.exact_per_problem

    def credit(self, group: Group) -> list[Sample]:
        """The optimised turns' parts, each compared with the same of the other trajectories."""
        parts = self._advantages(group)
        samples: list[Sample] = []
        for i, trajectory in enumerate(group.trajectories):
            turns = range(self.horizon) if self.turns == "all" else [self.drawn(group, i)]
            for t in turns:
                advantages = [part[i][t] for part in parts]
                samples += self._samples(trajectory.turns[t], group.problem, advantages)
        count = self.samples_per_problem - self.exact_per_problem
        if count < len(samples):
            rng = group.seeds.generator(group.problem.id, "optimised")
            samples = [samples[index] for index in sorted(rng.sample(range(len(samples)), count))]
        return [*samples, *self.exact_samples(group)]

    def drawn(self, group: Group, i: int) -> int:
        """The turn, from 0, of trajectory ``i`` that is optimised."""
        trajectory = group.trajectories[i]
        draw = group.seeds.generator(group.problem.id, "turn", sample=trajectory.sample)
        return draw.randrange(len(trajectory.turns))

    def _advantages(self, group: Group) -> list[list[list[float]]]:
        """[1 or 2][G][T] advantages of the parts of every turn."""
        if not self.sections:
            totals = [[reward.total for reward in rewards] for rewards in group.rewards]
            return [turn_advantages(totals, self.scale_rewards)]
        parts = [[sections(reward) for reward in rewards] for rewards in group.rewards]
        solutions, checks = ([[part[k] for part in turns] for turns in parts] for k in (0, 1))
        return [
            turn_advantages(solutions, self.scale_rewards),
            turn_advantages(checks, self.scale_rewards, to_go=False),
        ]

    def _samples(
        self, turn: Turn, problem: Problem, advantages: Sequence[float]
    ) -> Iterator[Sample]:
        if not self.sections:
            yield sample_of(turn, problem, advantages[0])
            return
        text = turn.completion.text
        check = self_check_start(text, turn.reading.check)
        if check > 0:
            yield sample_of(turn, problem, advantages[0], (0, check))
        # Without a self-check, its advantage goes to the turn's last token.
        yield sample_of(turn, problem, advantages[1], (check, len(text) + 1))
