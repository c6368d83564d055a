"""ScRPO (Li et al. 2025, arXiv 2511.06065) as chains: learn from analysing one's wrong answers.

Differs from GRPO-MT in: later turns analyse the previous answer before they solve again; they are
optimised only after a wrong answer to a problem that is neither always nor never solved, only where
they earn more than their group's mean, and only in the tokens of the analysis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from svr_lightning.core import baseline_prompts
from svr_lightning.core.credit import group_advantages
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.types import Message, Problem, Sample, Turn
from svr_lightning.recipes.analysis import analysis_span, without_analysis
from svr_lightning.recipes.base import Group, PromptRequest, RolloutFn, sample_of
from svr_lightning.recipes.baseline import Baseline, LossTurns, draft_of, learns, turns_learned
from svr_lightning.recipes.labels import oracle_state
from svr_lightning.recipes.options import check_range
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class ScRPO(Baseline):
    """Self-correction relative policy optimisation, one trajectory after another."""

    group_size: int = 8
    """G, trajectories per problem."""
    horizon: int = 3
    """Turns per trajectory."""
    oracle_free: bool = True
    """Say of every draft that it may be wrong. False says of wrong ones that they are, which shows
    labels, in evaluation too, and gives right ones the neutral prompt."""
    min_variance: float = 0.05
    """tau: corrections are optimised where p (1 - p) is at least this, p being the share of right
    first answers."""
    loss_turns: LossTurns = "all"
    """Which turns are optimised: ``all`` that count, or of these the ``final`` one."""
    mask: Literal["analysis", "all"] = "analysis"
    """Which tokens of a correction are optimised."""
    penalise_fail: bool = False
    """Whether corrections with a negative advantage are optimised too."""

    def check(self, updates_per_rollout: int = 1) -> None:
        """Refuse options that are out of range: p (1 - p) is at most a quarter."""
        super().check(updates_per_rollout)
        check_range("min_variance", self.min_variance, 0, 0.25)

    @property
    def uses_labels(self) -> bool:
        """Whether prompts show labels."""
        return not self.oracle_free

    @property
    def samples_per_problem(self) -> int:
        """Every turn, where none is left out."""
        return self.group_size * turns_learned(self.horizon, self.loss_turns)

    def programs(self, problem: Problem, place: SeedContext = START) -> list[RolloutFn]:
        """G chains."""
        return [self.inference(problem, i, self.horizon) for i in range(self.group_size)]

    def later_messages(
        self, problem: Problem, turns: Sequence[Turn]
    ) -> list[Message] | PromptRequest:
        """Analysis of the previous answer, then a solution."""
        style, turn = get_task(problem.task).style, turns[-1].index + 1
        if self.oracle_free:
            draft = draft_of(turns[-1])
            return baseline_prompts.doubtful_draft(style, problem.question, draft, turn)
        state = oracle_state(self, problem, turns[-1])
        if state.correct:
            return super().later_messages(problem, turns)
        return baseline_prompts.wrong_draft(style, problem.question, state, turn)

    def formats(self, task: Task, text: str) -> tuple[float, float]:
        """The task's format score of what is left without the analysis."""
        return task.format_score(without_analysis(text)), 0.0

    def credit(self, group: Group) -> list[Sample]:
        """First answers as in GRPO, then the corrections that beat their group's mean."""
        chains = range(len(group.trajectories))
        first = group_advantages([group.rewards[i][0].total for i in chains], self.scale_rewards)
        samples = [
            sample_of(turn, group.problem, first[i])
            for i in chains
            if learns(turn := group.trajectories[i].turns[0], self.horizon, self.loss_turns)
        ]
        solved = fmean(group.scored[i][0].correct for i in chains)
        if solved * (1 - solved) < self.min_variance:
            return samples
        for t in range(1, self.horizon):
            eligible = [i for i in chains if not group.scored[i][t - 1].correct]
            values = [group.rewards[i][t].total for i in eligible]
            for i, advantage in zip(
                eligible, group_advantages(values, self.scale_rewards), strict=True
            ):
                turn = group.trajectories[i].turns[t]
                if learns(turn, self.horizon, self.loss_turns):
                    samples += self.correction_samples(turn, group.problem, advantage)
        return samples

    def correction_samples(self, turn: Turn, problem: Problem, advantage: float) -> list[Sample]:
        """A correction as a sequence, or nothing where it did no better than the others."""
        if advantage == 0 or (advantage < 0 and not self.penalise_fail):
            return []
        span = analysis_span(turn.completion.text) if self.mask == "analysis" else None
        return [sample_of(turn, problem, advantage, span)]
