"""Independent single-turn solutions, recorded for majority voting (table "majority_vote")."""

from collections.abc import Mapping, Sequence

from svr_lightning.core.types import Problem, Trajectory
from svr_lightning.evaluation.adaptive import (
    OnRecord,
    Record,
    Records,
    completion_fields,
    head,
    unfit_error,
)
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.driver import Decoding, Job, RequestError, RolloutDriver
from svr_lightning.rollout.rendering import Renderer

_SVR = SVR()


def sample_votes(
    problems: Sequence[Problem],
    *,
    dataset: str,
    driver: RolloutDriver,
    renderer: Renderer,
    decoding: Decoding,
    votes: int,
    recipe: Recipe = _SVR,
    grader: str = "paper",
    done: Mapping[str, Record] | None = None,
    on_record: OnRecord | None = None,
) -> list[Record]:
    """Sample ``votes`` first turns of each problem, the batch kept full.

    Args:
        problems: of one data set.
        dataset: its name in the records.
        driver: seeds each draw by problem and sample.
        renderer: says which problems fit.
        decoding: how completions are drawn.
        votes: solutions per problem.
        recipe: whose policy it is; says what its first prompt is.
        grader: name of the notion of correctness.
        done: records by problem id that are taken as they are instead of being sampled.
        on_record: told of each new record, as soon as its problem has all its solutions.

    Returns:
        One line of a votes file per problem, in order. A problem that does not fit the prompt
        budget, or that a server refuses, has no samples and an ``error``.
    """
    records = Records(problems, done, on_record)
    samples: dict[str, list[Trajectory | RequestError]] = {}
    fitting = []
    for problem in records.missing():
        if renderer.fits(recipe.first_messages(problem)):
            fitting.append(problem)
        else:
            record = _record(problem, dataset, [], grader)
            records.add({**record, "error": unfit_error(renderer)})
    jobs = (
        Job(problem, sample, recipe.inference(problem, sample, 1), decoding)
        for problem in fitting
        for sample in range(votes)
    )
    for index, result in driver.stream(jobs):
        problem = fitting[index // votes]
        solutions = samples.setdefault(problem.id, [])
        solutions.append(result)
        if len(solutions) == votes:
            records.add(_pool(problem, dataset, samples.pop(problem.id), grader))
    return records.in_order()


def _pool(
    problem: Problem, dataset: str, solutions: Sequence[Trajectory | RequestError], grader: str
) -> Record:
    refused = [solution for solution in solutions if isinstance(solution, RequestError)]
    if refused:
        return {**_record(problem, dataset, [], grader), "error": refused[0].reason}
    return _record(problem, dataset, [s for s in solutions if isinstance(s, Trajectory)], grader)


def _record(problem: Problem, dataset: str, solutions: Sequence[Trajectory], grader: str) -> Record:
    in_order = sorted(solutions, key=lambda solution: solution.sample)
    return {
        **head(problem, dataset),
        "task": problem.task,
        "samples": [
            completion_fields(problem, solution.turns[0].completion, grader)
            for solution in in_order
        ],
    }
