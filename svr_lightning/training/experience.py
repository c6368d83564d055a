"""One on-policy batch: problems to groups, labels, rewards and samples, with dynamic resampling."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from svr_lightning.core.credit import is_degenerate
from svr_lightning.core.rewards import TurnReward
from svr_lightning.core.types import Problem, Sample, ScoredTurn, Trajectory
from svr_lightning.recipes.base import Recipe
from svr_lightning.rollout import Decoding, Driver, Job
from svr_lightning.scoring import score_turns
from svr_lightning.training.config import ResampleMode

MAX_ATTEMPTS = 3
"""Generation attempts per batch, the first included."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The trajectories of one problem, their labels and what they earned."""

    problem: Problem
    trajectories: tuple[Trajectory, ...]
    scored: tuple[tuple[ScoredTurn, ...], ...]
    rewards: tuple[tuple[TurnReward, ...], ...]
    returns: tuple[float, ...]
    attempt: int

    @property
    def degenerate(self) -> bool:
        """All returns equal: nothing to learn from but the KL term."""
        return is_degenerate(self.returns)


RollOut = Callable[[Sequence[Problem], int], list[Group]]
"""From problems and the attempt number to one group per problem."""

FreshProblems = Callable[[int, int, frozenset[str]], list[Problem]]
"""From the attempt number, a count and ids to leave out to that many training problems."""


def roll_out(
    problems: Sequence[Problem],
    *,
    recipe: Recipe,
    driver: Driver,
    decoding: Decoding,
    attempt: int = 0,
) -> list[Group]:
    """Run the recipe's programs for all problems at once and reward what they return."""
    jobs = [
        Job(problem=problem, sample=index, program=program, decoding=decoding)
        for problem in problems
        for index, program in enumerate(recipe.programs(problem))
    ]
    trajectories: dict[str, list[Trajectory]] = {problem.id: [] for problem in problems}
    for trajectory in driver.run(jobs):
        trajectories[trajectory.problem.id].append(trajectory)
    return [_reward_group(p, trajectories[p.id], recipe, attempt) for p in problems]


def with_resampling(
    problems: Sequence[Problem], roll: RollOut, fresh: FreshProblems, mode: ResampleMode
) -> list[Group]:
    """Roll out a batch and replace what taught nothing, as ``mode`` says.

    ``top_up`` replaces only degenerate groups, by groups of fresh problems, in at most three
    attempts in all, and keeps what is left. ``batch`` is ms-swift's rule: pool the groups with
    variance over whole fresh batches until one batch is full, else fall back to the original
    batch untouched. ``off`` keeps the batch.
    """
    groups = roll(problems, 0)
    if mode == "top_up":
        return _top_up(groups, roll, fresh)
    if mode == "batch":
        return _pool_batches(groups, roll, fresh)
    return groups


def samples_of(groups: Sequence[Group], recipe: Recipe) -> list[Sample]:
    """Credit every group."""
    return [
        sample for group in groups for sample in recipe.credit(group.trajectories, group.rewards)
    ]


def _reward_group(
    problem: Problem, trajectories: list[Trajectory], recipe: Recipe, attempt: int
) -> Group:
    scored = [score_turns(problem, trajectory.turns) for trajectory in trajectories]
    rewards = [recipe.reward(turns) for turns in scored]
    return Group(
        problem=problem,
        trajectories=tuple(trajectories),
        scored=tuple(tuple(turns) for turns in scored),
        rewards=tuple(tuple(turns) for turns in rewards),
        returns=tuple(recipe.returns(rewards)),
        attempt=attempt,
    )


def _top_up(groups: list[Group], roll: RollOut, fresh: FreshProblems) -> list[Group]:
    seen = frozenset(group.problem.id for group in groups)
    for attempt in range(1, MAX_ATTEMPTS):
        gaps = [i for i, group in enumerate(groups) if group.degenerate]
        if not gaps:
            break
        problems = fresh(attempt, len(gaps), seen)
        seen |= {problem.id for problem in problems}
        for index, group in zip(gaps, roll(problems, attempt), strict=False):
            if not group.degenerate:
                groups[index] = group
    return groups


def _pool_batches(original: list[Group], roll: RollOut, fresh: FreshProblems) -> list[Group]:
    pool = [group for group in original if not group.degenerate]
    for attempt in range(1, MAX_ATTEMPTS):
        if len(pool) >= len(original):
            break
        batch = roll(fresh(attempt, len(original), frozenset()), attempt)
        pool.extend(group for group in batch if not group.degenerate)
    return pool[: len(original)] if len(pool) >= len(original) else original
