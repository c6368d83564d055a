"""ScRPO (Li et al. 2025, arXiv 2511.06065) as chains: learn from analysing one's wrong answers.

Differs from GRPO in: trajectories of several turns, whose later turns analyse the previous answer
before they solve again; they are optimised only after a wrong answer to a problem that is neither
always nor never solved, only where they earn more than their group's mean, and only in the tokens
of the analysis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from svr_lightning.core.credit import group_advantages
from svr_lightning.core.parsing import without_spans
from svr_lightning.core.prompts import AnswerStyle
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.types import DraftState, Message, OracleState, Problem, Sample, Turn
from svr_lightning.recipes.base import Group, LossTurns, learns, sample_of, turns_learned
from svr_lightning.recipes.baseline import Baseline
from svr_lightning.recipes.dialogues import (
    CUT_OFF,
    Dialogue,
    Neutral,
    Prompt,
    RolloutFn,
    draft_of,
    later_turn,
)
from svr_lightning.recipes.labels import oracle_state
from svr_lightning.recipes.options import check_range
from svr_lightning.tasks import get_task
from svr_lightning.tasks.answers import OPEN_TAG as ANSWER_OPEN
from svr_lightning.tasks.base import Task

ANALYSIS_OPEN, ANALYSIS_CLOSE = "<analysis>", "</analysis>"


@dataclass(frozen=True)
class Analysing(Neutral):
    """Later turns analyse the previous answer, then solve again."""

    oracle_free: bool = True
    """Whether prompts know no label; see :class:`ScRPO`."""

    @property
    def uses_labels(self) -> bool:
        """Whether prompts show labels."""
        return not self.oracle_free

    def later(self, problem: Problem, turns: Sequence[Turn]) -> Prompt:
        """Analysis of the previous answer, then a solution."""
        style, turn = get_task(problem.task).style, turns[-1].index + 1
        if self.oracle_free:
            return doubtful_draft(style, problem.question, draft_of(turns[-1]), turn)
        state = oracle_state(self, problem, turns[-1])
        if state.correct:
            return super().later(problem, turns)
        return wrong_draft(style, problem.question, state, turn)

    def formats(self, task: Task, text: str) -> tuple[float, float]:
        """The task's format score of what is left without the analysis."""
        return task.format_score(without_analysis(text)), 0.0


@dataclass(frozen=True, kw_only=True)
class ScRPO(Baseline):
    """Self-correction relative policy optimisation, one trajectory after another."""

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
    def samples_per_problem(self) -> int:
        """Every turn, where none is left out."""
        return self.group_size * turns_learned(self.horizon, self.loss_turns)

    def method_dialogue(self) -> Dialogue:
        """Analysis and solution."""
        return Analysing(self.oracle_free)

    def programs(self, problem: Problem, place: SeedContext = START) -> list[RolloutFn]:
        """G chains."""
        return self.chains(problem, self.horizon)

    def credit(self, group: Group) -> list[Sample]:
        """First answers as in GRPO, then the corrections that beat their group's mean."""
        chains = range(len(group.trajectories))
        first = group_advantages([group.rewards[i][0].total for i in chains], self.scale_rewards)
        samples = [
            sample_of(turn, group.problem, first[i])
            for i in chains
            if learns(turn := group.trajectories[i].turns[0], self.horizon, self.loss_turns)
        ]
        if not self.hard_enough(group):
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

    def hard_enough(self, group: Group) -> bool:
        """Whether first answers are right neither nearly always nor nearly never."""
        solved = fmean(scored[0].correct for scored in group.scored)
        return solved * (1 - solved) >= self.min_variance

    def correction_samples(self, turn: Turn, problem: Problem, advantage: float) -> list[Sample]:
        """A correction as a sequence, or nothing where it did no better than the others."""
        if advantage == 0 or (advantage < 0 and not self.penalise_fail):
            return []
        span = analysis_span(turn.completion.text) if self.mask == "analysis" else None
        return [sample_of(turn, problem, advantage, span)]


# --- what is said and read --------------------------------------------------------------------


def doubtful_draft(
    style: AnswerStyle, question: str, state: DraftState, turn: int
) -> list[Message]:
    """Analysis, then solution, of a draft that may be wrong."""
    claim = CUT_OFF if state.truncated else "Your previous answer may be wrong."
    instruction = _analyse(style, claim, "what went wrong in it, if anything did")
    return later_turn(style, question, state.draft, turn, instruction)


def wrong_draft(style: AnswerStyle, question: str, state: OracleState, turn: int) -> list[Message]:
    """Analysis, then solution, of a draft that the evaluator found wrong.

    Raises:
        ValueError: if the draft is right.
    """
    if state.correct:
        raise ValueError("a draft that is right must not be called wrong")
    claim = CUT_OFF if state.truncated else "Your previous answer was wrong."
    instruction = _analyse(style, claim, "what went wrong in it")
    return later_turn(style, question, state.draft, turn, instruction)


def _analyse(style: AnswerStyle, claim: str, found: str) -> str:
    return (
        f"{claim} First explain inside {ANALYSIS_OPEN}...{ANALYSIS_CLOSE} {found}. Then give the "
        f"corrected, complete solution with the final answer in {style.reminder}."
    )


def without_analysis(text: str) -> str:
    """A completion without its analyses."""
    return without_spans(text, ANALYSIS_OPEN, ANALYSIS_CLOSE)


def analysis_span(text: str) -> tuple[int, int] | None:
    """The analysis of a completion, else what stands before its answer, else None for all of it.

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
