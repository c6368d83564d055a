"""MLMT-RL (Singh et al. 2026): a solver and a tutor take turns, here both played by one policy.

Differs from GRPO in: episodes of three turns, where turn 2 is feedback with a tutor's prompt and
turn 3 solves again with attempt and feedback; all three turns share the last one's reward. The
group's mean replaces the original's value model; the value shaping of its tutor is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from svr_lightning.core.prompts import feedback, guided
from svr_lightning.core.ranges import require_field
from svr_lightning.core.rewards import Reward
from svr_lightning.core.stopping import StopRule
from svr_lightning.core.types import Problem, ScoredTurn, Turn
from svr_lightning.recipes.dialogues import Dialogue, PlainRefinement, Prompt, PromptRequest
from svr_lightning.recipes.grpo_mt import GRPOMT
from svr_lightning.tasks import get_task

FEEDBACK_TOKENS = 512
"""Longest feedback, in tokens, where the completion limit is not lower."""


class SolverAndTutor(PlainRefinement):
    """Odd turns solve, even ones give feedback on the answer before."""

    def later(self, problem: Problem, turns: Sequence[Turn]) -> Prompt:
        """Feedback on an answer; after feedback, the question with both."""
        task = get_task(problem.task)
        if self.answers(len(turns)):
            return PromptRequest(feedback(task, problem, turns[-1]), FEEDBACK_TOKENS)
        return guided(task, problem, *turns[-2:])

    def answers(self, turn: int) -> bool:
        """Odd turns do."""
        return turn % 2 == 1

    def applied_rule(self, rule: StopRule) -> StopRule | None:
        """None: feedback is no answer that a rule could judge."""
        return None


@dataclass(frozen=True, kw_only=True)
class MLMTRL(GRPOMT):
    """Multi-level multi-turn RL with one shared actor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_odd = self.horizon % 2 == 1
        require_field(self, "horizon", is_odd, "must be odd, since even turns are feedback")

    def evaluated_turns(self, max_turns: int) -> int:
        """An odd number: an even one would end with unused feedback."""
        return max_turns if max_turns % 2 else max_turns - 1

    @property
    def dialogue(self) -> Dialogue:
        """Prompts for solver and tutor in turn."""
        return SolverAndTutor()

    def reward(self, scored: Sequence[ScoredTurn]) -> Sequence[Reward]:
        """As ``reward_kind`` says; an answer's progress is measured from the previous answer."""
        rewards = list(super().reward(scored))
        rewards[::2] = super().reward(scored[::2])
        return rewards
