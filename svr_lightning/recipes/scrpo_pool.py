"""ScRPO with its error pool: every few steps the policy corrects wrong answers of earlier steps.

Differs from GRPO in: wrong answers to problems that are neither nearly always nor nearly never
solved go into a pool; in every (``period`` + 1)-th step, G corrections of a pooled answer take the
place of each problem's G answers, and of these only the analysis of those that beat their group's
mean is optimised. The pool is part of the checkpoint and the same on all processes.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from svr_lightning.core.credit import group_advantages
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.types import FinishReason, Problem, RemoteCompletion, Sample, Turn
from svr_lightning.errors import require
from svr_lightning.recipes.base import Gather, Group, Scheduler, sample_of
from svr_lightning.recipes.dialogues import RolloutFn, ask, node
from svr_lightning.recipes.scrpo import ScRPO


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A wrong answer and the optimizer step that it was given at."""

    problem: Problem
    draft: str
    truncated: bool
    step: int

    def as_turn(self) -> Turn:
        """The answer as the first turn of its correction. Nothing trains on it."""
        completion = RemoteCompletion(
            text=self.draft,
            finish_reason=FinishReason.LENGTH if self.truncated else FinishReason.STOP,
            prompt_tokens=0,
            completion_tokens=0,
        )
        return Turn(index=1, completion=completion, check=None)


class MistakePool(Scheduler):
    """A queue of wrong answers, the oldest first, whose problems replace the data's at times."""

    def __init__(self, recipe: "ScRPOPool") -> None:
        self._recipe = recipe
        self._queue: deque[Mistake] = deque()
        self.chosen: dict[str, Mistake] = {}
        """The answers that the present rollout corrects, by problem id."""
        self._taken: set[str] = set()

    def batch(self, problems: Sequence[Problem], place: SeedContext) -> list[Problem]:
        """In the second stage, problems of the pool, one wrong answer each, as far as they go.

        Resampling goes on where the attempt before stopped, so that no answer is taken twice.
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
        """Add the wrong answers of the first stage; drop the oldest of too many, and old ones."""
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
    """Wrong answers that the pool holds; the oldest leave first. None is older than M steps."""
    _pool: MistakePool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pool", MistakePool(self))

    @property
    def scheduler(self) -> MistakePool:
        """The pool of wrong answers."""
        return self._pool

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
