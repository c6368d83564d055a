"""Rollouts for training: problems to groups of trajectories with labels, rewards and advantages."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Literal

from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import Decoding, Problem, Trajectory
from svr_lightning.display import Progress
from svr_lightning.engines.base import Engine
from svr_lightning.recipes.base import Group, Recipe, rewards_of
from svr_lightning.rollout.driver import Driver, Job
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.tasks.grading import score_turns

MAX_ATTEMPTS = 3
"""Generation attempts per batch, the first included."""

ResampleMode = Literal["top_up", "batch", "off"]

RunRollout = Callable[[Sequence[Problem], int], list[Group]]
"""Takes problems and the attempt number; returns one group per problem."""

FreshProblems = Callable[[int, int, frozenset[str]], list[Problem]]
"""Takes the number of a draw, a count and ids to leave out; returns that many training problems.
Equal numbers give the same order of problems, from which the ids are left out."""


def collect_rollout(
    engine: Engine,
    recipe: Recipe,
    problems: Sequence[Problem],
    *,
    renderer: Renderer,
    sampling: Decoding,
    seed: int,
    step: int = 0,
    resample: ResampleMode = "off",
    fresh: FreshProblems | None = None,
    show_progress: bool = False,
) -> list[Group]:
    """Roll out a batch of problems: sample, grade, reward and credit.

    Every draw is seeded by (seed, step, problem, sample, turn, attempt), so that the result does
    not depend on the order in which completions end.

    Args:
        engine: started, and with the weights after ``step`` optimizer steps.
        recipe: the training method.
        problems: each gets one group.
        renderer: turns messages into prompt ids.
        sampling: temperature, top-p and completion limit of every turn.
        seed: of the run.
        step: optimizer steps before this rollout.
        resample: what to do about degenerate groups, whose returns are all equal. ``top_up``
            replaces only these by groups of fresh problems, in at most three attempts in all, and
            keeps what is left. ``batch`` is ms-swift's rule: pool the groups with variance over
            whole fresh batches until one batch is full, else fall back to the original batch.
            ``off`` keeps the batch.
        fresh: draws further training problems; needed unless ``resample`` is ``off``.
        show_progress: on the terminal, in one line.

    Returns:
        One group per problem with its trajectories, labels (``scored``), rewards, returns, and
        ``samples``, the optimised sequences with their advantages.

    Raises:
        ValueError: if ``resample`` needs ``fresh`` and it is None.
    """
    if resample != "off" and fresh is None:
        raise ValueError(f"resample={resample!r} needs fresh=, which draws training problems")

    def run(problems: Sequence[Problem], attempt: int) -> list[Group]:
        progress = Progress("rollout", 0, turns=max(recipe.horizon, 2), quiet=not show_progress)
        seeds = SeedContext(run_seed=seed, step=step, attempt=attempt)
        driver = Driver(engine, renderer, sampling, seeds, progress=progress)
        return run_rollout(problems, recipe, driver)

    groups = run(problems, 0)
    if resample == "off" or fresh is None:
        return groups
    return REPLACEMENTS[resample](groups, run, fresh)


def run_rollout(problems: Sequence[Problem], recipe: Recipe, driver: Driver) -> list[Group]:
    """Run the recipe's rollouts for all problems at once; grade and reward what they return."""
    jobs = [
        [
            Job(problem, i, rollout)
            for i, rollout in enumerate(recipe.rollouts(problem, driver.seeds))
        ]
        for problem in problems
    ]
    results = iter(driver.run(chain.from_iterable(jobs)))
    return [
        _reward_group(problem, islice(results, len(its_jobs)), recipe, driver.seeds)
        for problem, its_jobs in zip(problems, jobs, strict=True)
    ]


def _reward_group(
    problem: Problem, results: Iterable[Any], recipe: Recipe, seeds: SeedContext
) -> Group:
    """The group of a problem whose rollouts returned ``results``."""
    trajectories: list[Trajectory] = []
    for result in results:
        trajectories += result if isinstance(result, list) else [result]
    formats = recipe.dialogue.formats
    scored = [score_turns(one.problem, one.turns, formats) for one in trajectories]
    rewards = [rewards_of(recipe, turns) for turns in scored]
    group = Group(
        problem=problem,
        trajectories=tuple(trajectories),
        scored=tuple(map(tuple, scored)),
        rewards=tuple(map(tuple, rewards)),
        returns=tuple(recipe.returns(rewards)),
        seeds=seeds,
    )
    samples = tuple(recipe.credit(group))
    return replace(
        group, samples=samples, degenerate=not any(sample.advantage for sample in samples)
    )


def _top_up(groups: list[Group], run: RunRollout, fresh: FreshProblems) -> list[Group]:
    seen = frozenset(group.problem.id for group in groups)
    for attempt in range(1, MAX_ATTEMPTS):
        gaps = [i for i, group in enumerate(groups) if group.degenerate]
        if not gaps:
            break
        # All attempts continue one draw: processes take turns in it, so that none of them draws
        # what another one has had, however many attempts each makes.
        problems = fresh(1, len(gaps), seen)
        seen |= {problem.id for problem in problems}
        for index, group in zip(gaps, run(problems, attempt), strict=False):
            if not group.degenerate:
                groups[index] = group
    return groups


def _pool_batches(original: list[Group], run: RunRollout, fresh: FreshProblems) -> list[Group]:
    pool = [group for group in original if not group.degenerate]
    for attempt in range(1, MAX_ATTEMPTS):
        if len(pool) >= len(original):
            break
        batch = run(fresh(attempt, len(original), frozenset()), attempt)
        pool.extend(group for group in batch if not group.degenerate)
    return pool[: len(original)] if len(pool) >= len(original) else original


REPLACEMENTS = {"top_up": _top_up, "batch": _pool_batches}
"""What replaces degenerate groups, by ``resample`` of :func:`collect_rollout`."""
