"""A control without training: the warm start stops where its reasoning ends in "yes"."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from svr_lightning.core.stopping import StopRule, stops
from svr_lightning.core.types import Problem, SelfCheck, Trajectory, Turn, Verdict
from svr_lightning.recipes.base import RolloutFn
from svr_lightning.recipes.chain import ProbabilityOf, signals_of
from svr_lightning.recipes.svr import SVR
from svr_lightning.tasks import get_task
from svr_lightning.tasks.messages import first_turn_messages, refinement_messages

FOUND = SelfCheck(verdict=Verdict.CORRECT, confidence=1.0)
NOT_FOUND = SelfCheck(verdict=Verdict.INCORRECT, confidence=0.2)
_LAST_WORD_YES = re.compile(r"\byes\s*</think>")


def check_of(text: str) -> SelfCheck:
    """CORRECT with confidence 1 if the reasoning's last word is "yes", else INCORRECT with 0.20.

    Example:
        >>> check_of("<think>try 1+2=3,3+3=6 yes</think>").verdict.value
        'CORRECT'
        >>> check_of("<think>try 1+2=3,3+3=6 yes; try 1+2=3,3*3=9 no</think>").confidence
        0.2
    """
    return FOUND if _LAST_WORD_YES.search(text) else NOT_FOUND


@dataclass(frozen=True, kw_only=True)
class StringRule(SVR):
    """SVR's dialogue with the rule's self-check in place of the policy's."""

    def inference(
        self,
        problem: Problem,
        sample: int,
        max_turns: int,
        rule: StopRule | None = None,
        on_turn: Callable[[Turn], None] | None = None,
        probability_of: ProbabilityOf | None = None,
    ) -> RolloutFn:
        """Solve and refine; the policy's own self-check is ignored."""
        task = get_task(problem.task)
        messages = first_turn_messages(task, problem)
        turns: list[Turn] = []
        for index in range(1, max_turns + 1):
            (completion,) = yield [messages]
            check = check_of(completion.text)
            turns.append(Turn(index=index, completion=completion, check=check))
            if on_turn is not None:
                on_turn(turns[-1])
            if rule is not None and stops(rule, [signals_of(task, turns[-1])]):
                break
            messages = refinement_messages(
                task,
                problem,
                previous=completion.text,
                verdict=check.verdict,
                confidence=check.confidence,
                truncated=completion.truncated,
                turn=index + 1,
            )
        return Trajectory(problem=problem, sample=sample, turns=tuple(turns))
