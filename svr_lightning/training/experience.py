"""One on-policy batch: problems to groups, labels, rewards and samples, with dynamic resampling."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice

from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import Problem, Sample, Trajectory
from svr_lightning.recipes.base import Group, Recipe, sample_of
from svr_lightning.rollout.driver import Decoding, Driver, Job
from svr_lightning.scoring import score_turns
from svr_lightning.tasks.grading import GradingPool, Label
from svr_lightning.training.config import ResampleMode

__all__ = ["Group", "dummy_sample", "roll_out", "samples_of", "share_of", "with_resampling"]

MAX_ATTEMPTS = 3
"""Generation attempts per batch, the first included."""


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
    part: int = 0,
    parts: int = 1,
) -> list[Group]:
    """Run the recipe's programs for all problems at once and reward what they return.

    Args:
        problems: what the data bring; a recipe may put others in their place.
        recipe: the training method.
        driver: runs the programs.
        decoding: how completions are drawn.
        attempt: generation attempt under dynamic resampling.
        part: which share of the step's problems this is, of ``parts`` in all.
        parts: shares.
    """
    place = replace(driver.place, part=part, parts=parts)
    problems = recipe.batch(problems, place)
    programs = [recipe.programs(problem, place) for problem in problems]
    jobs = [
        Job(problem=problem, sample=index, program=program, decoding=decoding)
        for problem, its in zip(problems, programs, strict=True)
        for index, program in enumerate(its)
    ]
    labels: dict[int, list[list[Future[Label]]]] = {}
    groups = []
    with GradingPool() as pool:

        def grade(index: int, result: Trajectory | list[Trajectory]) -> None:
            labels[index] = [
                pool.submit(jobs[index].problem, [turn.completion.text for turn in t.turns])
                for t in _trajectories(result)
            ]

        results = enumerate(driver.run(jobs, on_done=grade))
        for problem, its in zip(problems, programs, strict=True):
            ends = list(islice(results, len(its)))
            trajectories = [t for _, result in ends for t in _trajectories(result)]
            graded = [[y.result() for y in turns] for index, _ in ends for turns in labels[index]]
            groups.append(_reward_group(problem, trajectories, graded, recipe, place, attempt))
    return groups


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


def share_of(
    drawn: Sequence[Problem], count: int, seen: frozenset[str], part: int, parts: int
) -> list[Problem]:
    """At most ``count`` problems for one part of the processes, none of them another part's.

    Args:
        drawn: the draw that all parts make alike.
        count: how many this part asks for.
        seen: ids that it has had; the others' are not known to it.
        part: which part this is, of ``parts`` in all.
        parts: the number of parts.
    """
    return [problem for problem in drawn[part::parts] if problem.id not in seen][:count]


def samples_of(groups: Sequence[Group], recipe: Recipe) -> list[Sample | None]:
    """Credit every group; None for each of its places that a group leaves empty."""
    samples: list[Sample | None] = []
    for group in groups:
        own = recipe.credit(group)
        samples += [*own, *[None] * (recipe.samples_per_problem - len(own))]
    return samples


def dummy_sample(groups: Sequence[Group]) -> Sample:
    """Some completion of a rollout, for micro-batches that weigh nothing."""
    turns = [turn for group in groups for t in group.trajectories for turn in t.turns]
    shortest = min(turns, key=lambda turn: turn.completion.completion_tokens)
    return sample_of(shortest, groups[0].problem, 0.0)


def _trajectories(result: Trajectory | list[Trajectory]) -> list[Trajectory]:
    return result if isinstance(result, list) else [result]


def _reward_group(
    problem: Problem,
    trajectories: list[Trajectory],
    labels: list[list[Label]],
    recipe: Recipe,
    place: SeedContext,
    attempt: int,
) -> Group:
    scored = [
        score_turns(problem, t.turns, recipe.formats, ys)
        for t, ys in zip(trajectories, labels, strict=True)
    ]
    rewards = [recipe.reward(turns) for turns in scored]
    group = Group(
        problem=problem,
        trajectories=tuple(trajectories),
        scored=tuple(tuple(turns) for turns in scored),
        rewards=tuple(tuple(turns) for turns in rewards),
        returns=tuple(recipe.returns(rewards)),
        attempt=attempt,
        place=place,
    )
    return replace(group, degenerate=recipe.degenerate(group))


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
