"""ScRPO with its error pool: every few steps the policy corrects wrong answers of earlier steps.

Differs from the chains of :mod:`recipes.scrpo` in: problems get G single answers each, as in GRPO;
wrong answers to problems that are neither nearly always nor nearly never solved go into a pool; in
every (``period`` + 1)-th step, G corrections of a pooled answer take the place of each problem. The
pool is part of the checkpoint and the same on all processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from svr_lightning.core.baseline_prompts import doubtful_draft, wrong_draft
from svr_lightning.core.credit import group_advantages
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.types import DraftState, Message, OracleState, Problem, Sample
from svr_lightning.errors import require
from svr_lightning.recipes.base import Gather, Group, RolloutFn, sample_of
from svr_lightning.recipes.baseline import node, turn_of
from svr_lightning.recipes.mistakes import Mistake, MistakePool, mistakes_of
from svr_lightning.recipes.scrpo import ScRPO
from svr_lightning.tasks import get_task


@dataclass(frozen=True, kw_only=True)
class ScRPOPool(ScRPO):
    """ScRPO in two alternating stages; ``horizon`` and ``loss_turns`` are not used."""

    group_size: int = 24
    """G, answers per problem, and corrections per pooled answer."""
    period: int = 4
    """M, steps of the first stage before one of the second."""
    capacity: int = 4096
    """Wrong answers that the pool holds; the oldest leave first. None is older than M steps."""
    _pool: MistakePool = field(default_factory=MistakePool, init=False, repr=False, compare=False)
    _chosen: dict[str, Mistake] = field(default_factory=dict, init=False, repr=False, compare=False)
    _taken: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def check(self, updates_per_rollout: int = 1) -> None:
        """Refuse several steps per rollout, since stages are told apart by the step."""
        super().check(updates_per_rollout)
        require(
            updates_per_rollout == 1,
            f"model.updates_per_rollout={updates_per_rollout} must be 1 with "
            f"{type(self).__name__}, whose stages alternate by optimizer steps",
        )

    @property
    def samples_per_problem(self) -> int:
        """Every answer, or every correction that is not left out."""
        return self.group_size

    def batch(self, problems: Sequence[Problem], place: SeedContext) -> list[Problem]:
        """In the second stage, problems of the pool, one wrong answer each, as far as they go.

        Resampling goes on where the attempt before stopped, so that no answer is taken twice.
        """
        self._chosen.clear()
        if place.attempt == 0:
            self._taken.clear()
        if place.step % (self.period + 1) < self.period:
            return list(problems)
        newest = self._pool.newest()
        order = sorted(newest)
        replace(place, attempt=0).generator("", "pool").shuffle(order)
        mine = order[place.part :: place.parts]
        own = [name for name in mine if name not in self._taken][: len(problems)]
        self._taken.update(own)
        self._chosen.update({name: newest[name] for name in own})
        rest = [problem for problem in problems if problem.id not in self._chosen]
        return [newest[name].problem for name in own] + rest[: len(problems) - len(own)]

    def programs(self, problem: Problem, place: SeedContext = START) -> list[RolloutFn]:
        """G answers, or G corrections of the answer that was chosen for this problem."""
        mistake = self._chosen.get(problem.id)
        if mistake is None:
            return [self.inference(problem, i, 1) for i in range(self.group_size)]
        return [self._correct(mistake, i) for i in range(self.group_size)]

    def _correct(self, mistake: Mistake, sample: int) -> RolloutFn:
        (completion,) = yield [self._correction(mistake)]
        return node(mistake.problem, sample, turn_of(completion, 2))

    def _correction(self, mistake: Mistake) -> list[Message]:
        problem, draft, cut = mistake.problem, mistake.draft, mistake.truncated
        style = get_task(problem.task).style
        if self.oracle_free:
            doubtful = DraftState(draft=draft, truncated=cut)
            return doubtful_draft(style, problem.question, doubtful, 2)
        wrong = OracleState(draft=draft, truncated=cut, correct=False)
        return wrong_draft(style, problem.question, wrong, 2)

    def credit(self, group: Group) -> list[Sample]:
        """Answers as in GRPO; of corrections, those that beat their group's mean."""
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
        mistakes = [
            mistake
            for group in groups
            if self._pools(group)
            for mistake in mistakes_of(group, step)
        ]
        self._pool.add(gather(mistakes))
        self._pool.forget(self.capacity, before=step - self.period + 1)

    def _pools(self, group: Group) -> bool:
        """Whether a group is of the first stage, and neither too easy nor too hard."""
        solved = fmean(scored[0].correct for scored in group.scored)
        first_stage = group.trajectories[0].turns[0].index == 1
        return first_stage and solved * (1 - solved) >= self.min_variance

    def state_dict(self) -> dict[str, Any]:
        """The pool, oldest first."""
        return {"pool": self._pool.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Fill the pool."""
        self._pool.load(state["pool"])
