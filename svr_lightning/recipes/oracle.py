"""The oracle-guided score-feedback reference (paper, appendix "Oracle-Guided Baseline Prompt").

Privileged: each prompt shows the evaluator's label of the previous answer, in evaluation too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from svr_lightning.core import baseline_prompts
from svr_lightning.core.rewards import BaselineReward
from svr_lightning.core.types import Message, Problem, Turn
from svr_lightning.recipes.baseline import LossTurns
from svr_lightning.recipes.grpo_mt import GRPOMT, ReturnOf
from svr_lightning.recipes.labels import oracle_state
from svr_lightning.tasks import get_task


@dataclass(frozen=True, kw_only=True)
class Oracle(GRPOMT):
    """SVR's horizon, return and loss mask, with a label where SVR has the self-check."""

    reward_kind: BaselineReward = "solve"
    """SVR's solve reward and the answer's format; see :class:`Baseline`."""
    loss_turns: LossTurns = "final"
    """Which turns are optimised: the ``final`` one, as SVR's, or ``all``."""
    return_of: ReturnOf = "mean"
    """A trajectory's return: the mean over its turns, as SVR's, or the ``final`` turn's reward."""

    @property
    def uses_labels(self) -> bool:
        """Its prompts show labels."""
        return True

    def later_messages(self, problem: Problem, turns: Sequence[Turn]) -> list[Message]:
        """The score of the previous answer, and an instruction that follows from it."""
        state = oracle_state(self, problem, turns[-1])
        style = get_task(problem.task).style
        return baseline_prompts.scored(style, problem.question, state, turns[-1].index + 1)
