"""ScRPO with its error pool: every few steps the policy corrects wrong answers of earlier steps.

Differs from the chains of :mod:`recipes.scrpo` in: problems get G single answers each, as in GRPO;
wrong answers to problems that are neither always nor never solved go into a pool; in every
(``period`` + 1)-th step, G corrections of a pooled answer take the place of each problem. The pool
is part of the checkpoint and the same on all processes.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from svr_lightning.core.baseline_prompts import doubtful_draft, wrong_draft
from svr_lightning.core.credit import group_advantages
from svr_lightning.core.seeds import START, Place
from svr_lightning.core.types import DraftState, Message, OracleState, Problem, Sample
from svr_lightning.recipes.base import Gather, Group, Program, sample_of
from svr_lightning.recipes.baseline import node, turn_of
from svr_lightning.recipes.scrpo import ScRPO
from svr_lightning.tasks import get_task


@dataclass(frozen=True, kw_only=True)
class _Mistake:
    """A wrong answer and the optimizer step that it was given at."""

    problem: Problem
    draft: str
    truncated: bool
    step: int


@dataclass(frozen=True, kw_only=True)
class ScRPOPool(ScRPO):
    """ScRPO in two alternating stages; ``horizon`` is not used."""

    group_size: int = 24
    """G, answers per problem, and corrections per pooled answer."""
    period: int = 4
    """M, steps of the first stage before one of the second; takes one update per rollout."""
    capacity: int = 4096
    """Wrong answers that the pool holds; the oldest leave first. None is older than M steps."""
    _pool: deque[_Mistake] = field(default_factory=deque, init=False, repr=False, compare=False)
    _chosen: dict[str, _Mistake] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def samples_per_problem(self) -> int:
        """Every answer, or every correction that is not left out."""
        return self.group_size

    def batch(self, problems: Sequence[Problem], place: Place) -> list[Problem]:
        """In the second stage, problems of the pool, one wrong answer each, as far as they go."""
        self._chosen.clear()
        if place.step % (self.period + 1) < self.period:
            return list(problems)
        newest = {mistake.problem.id: mistake for mistake in self._pool}
        order = sorted(newest)
        place.generator("", "pool").shuffle(order)
        own = order[place.part :: place.parts][: len(problems)]
        self._chosen.update({name: newest[name] for name in own})
        rest = [problem for problem in problems if problem.id not in self._chosen]
        return [newest[name].problem for name in own] + rest[: len(problems) - len(own)]

    def programs(self, problem: Problem, place: Place = START) -> list[Program]:
        """G answers, or G corrections of the answer that was chosen for this problem."""
        mistake = self._chosen.get(problem.id)
        if mistake is None:
            return [self.inference(problem, i, 1) for i in range(self.group_size)]
        return [self._correct(mistake, i) for i in range(self.group_size)]

    def _correct(self, mistake: _Mistake, sample: int) -> Program:
        (completion,) = yield [self._correction(mistake)]
        return node(mistake.problem, sample, turn_of(completion, 2))

    def _correction(self, mistake: _Mistake) -> list[Message]:
        problem, draft, cut = mistake.problem, mistake.draft, mistake.truncated
        style = get_task(problem.task).style
        if self.oracle_free:
            doubtful = DraftState(draft=draft, truncated=cut)
            return doubtful_draft(style, problem.question, doubtful, 2)
        wrong = OracleState(draft=draft, truncated=cut, correct=False)
        return wrong_draft(style, problem.question, wrong, 2)

    def credit(self, group: Group) -> list[Sample]:
        """Answers as in GRPO; of corrections, those that succeeded."""
        advantages = group_advantages(group.returns, self.scale_rewards)
        turns = [trajectory.turns[0] for trajectory in group.trajectories]
        if turns[0].index == 1:
            return [
                sample_of(turn, group.problem, advantage)
                for turn, advantage in zip(turns, advantages, strict=True)
            ]
        return [
            sample
            for turn, advantage in zip(turns, advantages, strict=True)
            for sample in self.correction_samples(turn, group.problem, advantage)
        ]

    def remember(self, groups: Sequence[Group], step: int, gather: Gather[Any]) -> None:
        """Pool the wrong answers of the first stage, and forget those that are too old."""
        mistakes = [mistake for group in groups for mistake in self._mistakes(group, step)]
        self._pool.extend(gather(mistakes))
        while self._pool and (
            len(self._pool) > self.capacity or self._pool[0].step <= step - self.period
        ):
            self._pool.popleft()

    def _mistakes(self, group: Group, step: int) -> list[_Mistake]:
        solved = fmean(scored[0].correct for scored in group.scored)
        first_stage = group.trajectories[0].turns[0].index == 1
        if not first_stage or solved * (1 - solved) < self.min_variance:
            return []
        return [
            _Mistake(
                problem=group.problem,
                draft=trajectory.turns[0].completion.text,
                truncated=trajectory.turns[0].completion.truncated,
                step=step,
            )
            for trajectory, scored in zip(group.trajectories, group.scored, strict=True)
            if not scored[0].correct
        ]

    def state_dict(self) -> dict[str, Any]:
        """The pool, oldest first."""
        return {"pool": [asdict(mistake) for mistake in self._pool]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Fill the pool."""
        self._pool.clear()
        self._pool.extend(_mistake(entry) for entry in state["pool"])


def _mistake(entry: dict[str, Any]) -> _Mistake:
    problem = {**entry["problem"], "numbers": tuple(entry["problem"]["numbers"])}
    return _Mistake(**{**entry, "problem": Problem(**problem)})
