"""Rollouts for training: problems to groups of trajectories with labels, rewards and advantages."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain, islice
from typing import Literal

from torch.profiler import record_function

from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import Problem, Trajectory
from svr_lightning.display import Progress
from svr_lightning.engines.base import Engine
from svr_lightning.recipes.base import Group, Recipe, rewards_of
from svr_lightning.rollout.carry import Begun, CarryOver
from svr_lightning.rollout.driver import Decoding, Driver, Job
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.tasks.grading import GradingPool, Label, score_turns

MAX_ATTEMPTS = 3
"""Generation attempts per batch, the first included."""

ResampleMode = Literal["top_up", "batch", "off"]

RollOut = Callable[[Sequence[Problem], int], list[Group]]
"""From problems and the attempt number to one group per problem."""

FreshProblems = Callable[[int, int, frozenset[str]], list[Problem]]
"""From the attempt number, a count and ids to leave out to that many training problems."""


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
    carry: CarryOver | None = None,
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
        carry: work that the previous rollout began on ``problems``, and the next step's problems,
            which this one begins when the engine has room, also while it replaces groups.
        show_progress: on the terminal, in one line.

    Returns:
        One group per problem with its trajectories, labels (``scored``), rewards, returns, and
        ``samples``, the optimised sequences with their advantages.

    Raises:
        ValueError: if ``resample`` needs ``fresh`` and it is None.
    """
    if resample != "off" and fresh is None:
        raise ValueError(f"resample={resample!r} needs fresh=, which draws training problems")

    def roll(batch: Sequence[Problem], attempt: int) -> list[Group]:
        progress = Progress("rollout", 0, quiet=not show_progress)
        place = {"run_seed": seed, "step": step, "attempt": attempt}
        driver = Driver(engine, renderer, progress=progress, **place)
        return roll_out(batch, recipe=recipe, driver=driver, decoding=sampling, carry=carry)

    groups = roll(problems, 0)
    return groups if fresh is None else replace_degenerate(groups, roll, fresh, resample)


def roll_out(
    problems: Sequence[Problem],
    *,
    recipe: Recipe,
    driver: Driver,
    decoding: Decoding,
    carry: CarryOver | None = None,
) -> list[Group]:
    """Run the recipe's programs for all problems at once and reward what they return.

    The other arguments are those of :func:`collect_rollout`.
    """
    carry = carry or CarryOver()
    place = driver.place
    begun = {} if place.attempt else carry.begun
    programs = [_jobs(problem, recipe, place, decoding, begun) for problem in problems]
    jobs = list(chain.from_iterable(programs))
    later = replace(place, step=place.step + 1, attempt=0)
    ahead = [
        job
        for problem in carry.problems
        for job in _jobs(problem, recipe, later, decoding, carry.ahead)
    ]
    labels: dict[int, list[list[Future[Label]]]] = {}
    groups = []
    with GradingPool() as pool:

        def grade(index: int, result: Trajectory | list[Trajectory]) -> None:
            labels[index] = [
                pool.submit(jobs[index].problem, [turn.completion.text for turn in t.turns])
                for t in _trajectories(result)
            ]

        results = driver.run(jobs, on_done=grade, ahead=ahead)
        with record_function("reward"):
            ys = [[[y.result() for y in turns] for turns in labels[i]] for i in range(len(jobs))]
            # Processes that share an engine replace the same groups, also where a grader has
            # answered one of them only: other requests than its neighbours' would block them all.
            ends = zip(results, driver.agreed(ys), strict=True)
            for problem, its in zip(problems, programs, strict=True):
                own = list(islice(ends, len(its)))
                trajectories = [t for result, _ in own for t in _trajectories(result)]
                graded = [turns for _, of_job in own for turns in of_job]
                groups.append(_reward_group(problem, trajectories, graded, recipe, place))
    return groups


def replace_degenerate(
    groups: list[Group], roll: RollOut, fresh: FreshProblems, mode: ResampleMode
) -> list[Group]:
    """Replace degenerate groups, by ``resample`` of :func:`collect_rollout`."""
    if mode == "top_up":
        return _top_up(groups, roll, fresh)
    if mode == "batch":
        return _pool_batches(groups, roll, fresh)
    return groups


def share_of(
    drawn: Sequence[Problem], count: int, seen: frozenset[str], part: int, parts: int
) -> list[Problem]:
    """At most ``count`` of the problems drawn for all parts, none of them another part's.

    ``seen`` holds the ids that this part has had.
    """
    return [problem for problem in drawn[part::parts] if problem.id not in seen][:count]


def _jobs(
    problem: Problem, recipe: Recipe, place: SeedContext, decoding: Decoding, begun: Begun
) -> list[Job]:
    return [
        Job(problem, sample, program, decoding, place, begun.setdefault((problem.id, sample), []))
        for sample, program in enumerate(recipe.programs(problem, place))
    ]


def _trajectories(result: Trajectory | list[Trajectory]) -> list[Trajectory]:
    return result if isinstance(result, list) else [result]


def _reward_group(
    problem: Problem,
    trajectories: list[Trajectory],
    labels: list[list[Label]],
    recipe: Recipe,
    place: SeedContext,
) -> Group:
    scored = [
        score_turns(problem, t.turns, recipe.dialogue.formats, ys)
        for t, ys in zip(trajectories, labels, strict=True)
    ]
    rewards = [rewards_of(recipe, turns) for turns in scored]
    group = Group(
        problem=problem,
        trajectories=tuple(trajectories),
        scored=tuple(tuple(turns) for turns in scored),
        rewards=tuple(tuple(turns) for turns in rewards),
        returns=tuple(recipe.returns(rewards)),
        place=place,
    )
    samples = tuple(recipe.credit(group))
    return replace(
        group, samples=samples, degenerate=not any(sample.advantage for sample in samples)
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
