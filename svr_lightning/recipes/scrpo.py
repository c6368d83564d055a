"""ScRPO (Li et al. 2025, arXiv 2511.06065) as chains: learn by analysing wrong answers.

Differs from GRPO in: trajectories of several turns, whose later turns analyse the previous answer
before they solve again; they are optimised only after a wrong answer to a problem that is solved
sometimes, only if they earn more than their group's mean, and only on the tokens of the analysis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated

from msgspec import Meta

from svr_lightning.core.credit import group_advantages
from svr_lightning.core.parsing import ANSWER_OPEN, without_spans
from svr_lightning.core.prompts import analysis
from svr_lightning.core.types import Problem, Sample, Turn
from svr_lightning.recipes.base import Group, MultiTurn, sample_of
from svr_lightning.recipes.dialogues import Dialogue, PlainRefinement, Prompt
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import Task

ANALYSIS_OPEN, ANALYSIS_CLOSE = "<analysis>", "</analysis>"


class Analysing(PlainRefinement):
    """Later turns analyse the previous answer, then solve again."""

    def later(self, problem: Problem, turns: Sequence[Turn]) -> Prompt:
        """Analysis of the previous answer, which may be wrong, then a solution."""
        return analysis(get_task(problem.task), problem, turns[-1])

    def formats(self, task: Task, turn: Turn) -> tuple[float, float]:
        """The task's format score of the text without the analysis."""
        return task.format_score(
            without_spans(turn.completion.text, ANALYSIS_OPEN, ANALYSIS_CLOSE)
        ), 0.0


@dataclass(frozen=True, kw_only=True)
class ScRPO(MultiTurn):
    """Self-correction relative policy optimisation on chains."""

    min_variance: Annotated[float, Meta(ge=0, le=0.25)] = 0.05
    """tau: corrections are optimised where p (1 - p) is at least this, p being the share of right
    first answers; a quarter is its maximum."""

    @property
    def dialogue(self) -> Dialogue:
        """Prompts for an analysis and a solution."""
        return Analysing()

    def credit(self, group: Group) -> list[Sample]:
        """First answers as in GRPO, then the analyses of corrections that beat their mean."""
        samples: list[Sample] = []
        solved = fmean(scored[0].correct for scored in group.scored)
        corrects = solved * (1 - solved) >= self.min_variance  # the share is not near 0 or 1
        for t in range(self.horizon if corrects else 1):
            eligible = [
                (trajectory.turns[t], rewards[t].total)
                for trajectory, rewards, scored in zip(
                    group.trajectories, group.rewards, group.scored, strict=True
                )
                if t == 0 or not scored[t - 1].correct
            ]
            advantages = group_advantages([reward for _, reward in eligible], self.scale_rewards)
            for (turn, _), advantage in zip(eligible, advantages, strict=True):
                if t == 0:
                    samples.append(sample_of(turn, group.problem, advantage))
                elif advantage > 0:
                    analysed = analysis_span(turn.completion.text)
                    samples.append(sample_of(turn, group.problem, advantage, analysed))
        return samples


def analysis_span(text: str) -> tuple[int, int] | None:
    """The analysis of a completion, else the text before its answer, else None for all of it.

    Examples:
        >>> analysis_span("<analysis>a</analysis> <answer>1</answer>")
        (0, 22)
    """
    start = text.find(ANALYSIS_OPEN)
    end = text.find(ANALYSIS_CLOSE, max(start, 0))
    if start >= 0 and end >= 0:
        return start, end + len(ANALYSIS_CLOSE)
    answer = text.find(ANSWER_OPEN)
    return (0, answer) if answer > 0 else None
