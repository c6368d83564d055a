"""ScRPO (Li et al. 2025, arXiv 2511.06065) as chains: learn by analysing wrong answers.

Differs from GRPO in: trajectories of several turns, whose later turns analyse the previous answer
before they solve again; they are optimised only after a wrong answer to a problem that is solved
sometimes, only if they earn more than their group's mean, and only on the tokens of the analysis.

:class:`ScRPOPool` is closer to the source: wrong answers go into a pool, and in every
(``period`` + 1)-th step, G corrections of a pooled answer replace each problem's answers.
The pool is part of the checkpoint and the same on all processes.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from svr_lightning.core.credit import group_advantages
from svr_lightning.core.parsing import without_spans
from svr_lightning.core.prompts import AnswerStyle
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.types import (
    DraftState,
    FinishReason,
    Message,
    OracleState,
    Problem,
    RemoteCompletion,
    Sample,
    Turn,
)
from svr_lightning.errors import require
from svr_lightning.recipes.base import Gather, Group, MultiTurn, Scheduler, check_range, sample_of
from svr_lightning.recipes.dialogues import (
    CUT_OFF,
    Dialogue,
    Neutral,
    Prompt,
    RolloutFn,
    ask,
    draft_of,
    later_turn,
    node,
)
from svr_lightning.recipes.labels import oracle_state
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import OPEN_TAG as ANSWER_OPEN
from svr_lightning.tasks.base import Task

ANALYSIS_OPEN, ANALYSIS_CLOSE = "<analysis>", "</analysis>"


@dataclass(frozen=True)
class Analysing(Neutral):
    """Later turns analyse the previous answer, then solve again."""

    oracle_free: bool = True
    """Whether prompts show no label; see :class:`ScRPO`."""

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
        """The task's format score of the text without the analysis."""
        return task.format_score(without_analysis(text)), 0.0


@dataclass(frozen=True, kw_only=True)
class ScRPO(MultiTurn):
    """Self-correction relative policy optimisation on chains."""

    oracle_free: bool = True
    """Prompts say of every draft that it may be wrong. False names the wrong ones and shows labels,
    in evaluation too; correct drafts then have the neutral prompt."""
    min_variance: float = 0.05
    """tau: corrections are optimised where p (1 - p) is at least this, p being the share of right
    first answers."""

    def check(self, updates_per_rollout: int = 1) -> None:
        """Refuse options that are out of range: p (1 - p) is at most a quarter."""
        super().check(updates_per_rollout)
        check_range("min_variance", self.min_variance, 0, 0.25)

    def method_dialogue(self) -> Dialogue:
        """Analysis and solution."""
        return Analysing(self.oracle_free)

    def credit(self, group: Group) -> list[Sample]:
        """First answers as in GRPO, then the corrections that beat their group's mean."""
        samples: list[Sample] = []
        for t in range(self.horizon if self.hard_enough(group) else 1):
            eligible = [
                (trajectory.turns[t], rewards[t].total)
                for trajectory, rewards, scored in zip(
                    group.trajectories, group.rewards, group.scored, strict=True
                )
                if t == 0 or not scored[t - 1].correct
            ]
            advantages = group_advantages([reward for _, reward in eligible], self.scale_rewards)
            for (turn, _), advantage in zip(eligible, advantages, strict=True):
                if self.learns(turn):
                    samples += self.optimised(turn, group.problem, advantage)
        return samples

    def hard_enough(self, group: Group) -> bool:
        """Whether the share of correct first answers is neither near 0 nor near 1."""
        solved = fmean(scored[0].correct for scored in group.scored)
        return solved * (1 - solved) >= self.min_variance

    def optimised(self, turn: Turn, problem: Problem, advantage: float) -> list[Sample]:
        """A first answer; the analysis of a correction, or nothing if it did not beat the mean."""
        if turn.index == 1:
            return [sample_of(turn, problem, advantage)]
        if advantage <= 0:
            return []
        return [sample_of(turn, problem, advantage, analysis_span(turn.completion.text))]


# --- the pool -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A wrong answer and the optimizer step at which it was sampled."""

    problem: Problem
    draft: str
    truncated: bool
    step: int

    def as_turn(self) -> Turn:
        """The answer as the first turn of its correction. It is not trained on."""
        completion = RemoteCompletion(
            text=self.draft,
            finish_reason=FinishReason.LENGTH if self.truncated else FinishReason.STOP,
            prompt_tokens=0,
            completion_tokens=0,
        )
        return Turn(index=1, completion=completion, check=None)


class MistakePool(Scheduler):
    """A queue of wrong answers, oldest first. In some steps its problems replace the data's."""

    def __init__(self, recipe: "ScRPOPool") -> None:
        self._recipe = recipe
        self._queue: deque[Mistake] = deque()
        self.chosen: dict[str, Mistake] = {}
        """The answers that the current rollout corrects, by problem id."""
        self._taken: set[str] = set()

    def batch(self, problems: Sequence[Problem], place: SeedContext) -> list[Problem]:
        """In the second stage, problems of the pool with one wrong answer each, if any.

        Resampling continues after the previous attempt, so that no answer is used twice.
        """
        self.chosen.clear()
        if place.attempt == 0:
            self._taken.clear()
        if place.step % (self._recipe.period + 1) < self._recipe.period:
            return list(problems)
        newest = {mistake.problem.id: mistake for mistake in self._queue}
        order = sorted(newest)
        replace(place, attempt=0).generator("", "pool").shuffle(order)
        mine = order[place.part :: place.parts]
        own = [name for name in mine if name not in self._taken][: len(problems)]
        self._taken.update(own)
        self.chosen.update({name: newest[name] for name in own})
        rest = [problem for problem in problems if problem.id not in self.chosen]
        return [newest[name].problem for name in own] + rest[: len(problems) - len(own)]

    def remember(self, groups: Sequence[Group], step: int, gather: Gather[Any]) -> None:
        """Add the wrong answers of the first stage; drop answers that are too old or too many."""
        self._queue.extend(
            gather([m for g in groups if self._recipe.pools(g) for m in mistakes_of(g, step)])
        )
        oldest = step - self._recipe.period + 1
        while self._queue and (
            len(self._queue) > self._recipe.capacity or self._queue[0].step < oldest
        ):
            self._queue.popleft()

    def state_dict(self) -> dict[str, Any]:
        """The pool, oldest first."""
        return {"pool": [asdict(mistake) for mistake in self._queue]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the pool."""
        self._queue = deque(
            Mistake(**{**entry, "problem": Problem(**entry["problem"])}) for entry in state["pool"]
        )


@dataclass(frozen=True, kw_only=True)
class ScRPOPool(ScRPO):
    """ScRPO in two alternating stages; ``horizon`` and ``loss_turns`` are not used."""

    group_size: int = 24
    """G, answers per problem, and corrections per pooled answer."""
    period: int = 4
    """M, steps of the first stage before one of the second."""
    capacity: int = 4096
    """Size of the pool; the oldest answers are dropped first. None is older than M steps."""
    _pool: MistakePool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pool", MistakePool(self))

    @property
    def scheduler(self) -> MistakePool:
        """The pool of wrong answers."""
        return self._pool

    def check(self, updates_per_rollout: int = 1) -> None:
        """Refuse several steps per rollout, since the step determines the stage."""
        super().check(updates_per_rollout)
        require(
            updates_per_rollout == 1,
            f"model.updates_per_rollout={updates_per_rollout} must be 1 with "
            f"{type(self).__name__}, whose stages alternate by optimizer steps",
        )

    @property
    def samples_per_problem(self) -> int:
        """Every answer, or every correction that is optimised."""
        return self.group_size

    def programs(self, problem: Problem, place: SeedContext = START) -> list[RolloutFn]:
        """G answers, or G corrections of the answer that was chosen for this problem."""
        mistake = self._pool.chosen.get(problem.id)
        if mistake is None:
            return self.chains(problem, 1)
        return [self._correct(mistake, i) for i in range(self.group_size)]

    def _correct(self, mistake: Mistake, sample: int) -> RolloutFn:
        (turn,) = yield from ask(self.dialogue, mistake.problem, [[mistake.as_turn()]])
        return node(mistake.problem, sample, turn)

    def credit(self, group: Group) -> list[Sample]:
        """Answers as in GRPO; of corrections, those that beat their group's mean."""
        advantages = group_advantages(group.returns, self.scale_rewards)
        return [
            sample
            for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
            for sample in self.optimised(trajectory.turns[0], group.problem, advantage)
        ]

    def pools(self, group: Group) -> bool:
        """Whether a group is of the first stage, and neither too easy nor too hard."""
        return group.trajectories[0].turns[0].index == 1 and self.hard_enough(group)


def mistakes_of(group: Group, step: int) -> list[Mistake]:
    """The wrong first answers of a group."""
    return [
        Mistake(
            problem=group.problem,
            draft=trajectory.turns[0].completion.text,
            truncated=trajectory.turns[0].completion.truncated,
            step=step,
        )
        for trajectory, scored in zip(group.trajectories, group.scored, strict=True)
        if not scored[0].correct
    ]


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
