"""MLMT-RL (Singh et al. 2026): a solver and a tutor take turns, here both played by one policy.

Differs from GRPO-MT in: turn 2 is feedback under a tutor's prompt; turn 3 solves again with attempt
and feedback; all three turns share the last one's reward. The group's mean stands for the value
model of the original, and the value shaping of its tutor is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from svr_lightning.core import baseline_prompts
from svr_lightning.core.credit import group_advantages
from svr_lightning.core.rewards import Reward
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.stopping import StopRule
from svr_lightning.core.types import Message, Problem, Sample, ScoredTurn, Turn
from svr_lightning.errors import require
from svr_lightning.recipes.base import Group, PromptRequest, RolloutFn, sample_of
from svr_lightning.recipes.baseline import Baseline, LossTurns, learns, turns_learned
from svr_lightning.recipes.options import PLACE
from svr_lightning.tasks import get_task

EPISODE = 3
"""Solve, feedback, solve again."""


@dataclass(frozen=True, kw_only=True)
class MLMTRL(Baseline):
    """Multi-level multi-turn RL with one shared actor."""

    group_size: int = 8
    """G, episodes per problem."""
    feedback_tokens: int = 512
    """Longest feedback, in tokens, where the completion limit is not lower."""
    loss_turns: LossTurns = "all"
    """Which turns are optimised: ``all``, or the ``final`` one, and then the tutor never learns."""
    alpha: float = 0.0
    """Bonus for improving on the first turn: the last one is credited with R + alpha (R - r_1)."""

    def check(self, updates_per_rollout: int = 1) -> None:
        """Refuse options that are out of range."""
        super().check(updates_per_rollout)
        require(self.alpha >= 0, f"{PLACE}.alpha={self.alpha} must not be negative")

    @property
    def samples_per_problem(self) -> int:
        """Every optimised turn of every episode."""
        return self.group_size * turns_learned(EPISODE, self.loss_turns)

    def programs(self, problem: Problem, place: SeedContext = START) -> list[RolloutFn]:
        """G episodes."""
        return [self.inference(problem, i, EPISODE) for i in range(self.group_size)]

    def later_messages(
        self, problem: Problem, turns: Sequence[Turn]
    ) -> list[Message] | PromptRequest:
        """Feedback on an answer; after feedback, the question with both."""
        style = get_task(problem.task).style
        texts = [turn.completion.text for turn in turns]
        if len(turns) % 2:
            prompt = baseline_prompts.feedback(style, problem.question, texts[-1])
            return PromptRequest(prompt, self.feedback_tokens)
        attempt, hints = texts[-2:]
        return baseline_prompts.guided(style, problem.question, attempt, hints, len(turns) + 1)

    def reward(self, scored: Sequence[ScoredTurn]) -> list[Reward]:
        """Of ``reward_kind``; an answer's progress is that since the answer before it."""
        rewards = super().reward(scored)
        rewards[::2] = super().reward(scored[::2])
        return rewards

    def credit(self, group: Group) -> list[Sample]:
        """Each turn, with its advantage among the same turns of the other episodes."""
        first = [rewards[0].total for rewards in group.rewards]
        improved = [
            last + self.alpha * (last - before)
            for last, before in zip(group.returns, first, strict=True)
        ]
        shared = group_advantages(group.returns, self.scale_rewards)
        bonus = group_advantages(improved, self.scale_rewards)
        return [
            sample_of(turn, group.problem, advantage)
            for trajectory, both, last in zip(group.trajectories, shared, bonus, strict=True)
            for turn, advantage in zip(trajectory.turns, (both, both, last), strict=True)
            if learns(turn, EPISODE, self.loss_turns)
        ]

    def protocol(self, max_turns: int, rule: StopRule | None) -> tuple[int, StopRule | None]:
        """An odd number of turns: an even one would end with feedback that nobody reads."""
        return max_turns - (max_turns % 2 == 0), None
