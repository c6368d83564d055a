"""Adaptive inference over a data set, recorded turn by turn in the samples-file schema."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from svr_lightning.core.stopping import should_stop
from svr_lightning.core.types import Problem, Trajectory, Turn
from svr_lightning.messages import first_turn_messages
from svr_lightning.recipes.chain import StopRule, refinement_chain
from svr_lightning.rendering import Renderer
from svr_lightning.rollout import Decoding, Job, Refused
from svr_lightning.tasks import get_task

Record = dict[str, Any]
"""One line of a samples file."""

OnTurn = Callable[[Problem, Turn], None]


class Runs(Protocol):
    """What runs programs: a driver of an engine, or of a server."""

    def run(
        self, jobs: Iterable[Job], on_done: Callable[[int, Any], None] | None = None
    ) -> list[Any]:
        """The programs' results in order; a :class:`Refused` for one that could not go on."""


def stop_rule(threshold: float) -> StopRule:
    """The gate of :func:`should_stop` on a turn."""

    def stop(turn: Turn) -> bool:
        return should_stop(
            turn.check.verdict, turn.check.confidence, turn.completion.truncated, threshold
        )

    return stop


def run_adaptive(
    problems: Sequence[Problem],
    *,
    dataset: str,
    driver: Runs,
    renderer: Renderer | None,
    decoding: Decoding,
    max_turns: int,
    threshold: float | None,
    on_turn: OnTurn | None = None,
) -> list[Record]:
    """Solve problems with adaptive stopping, the batch kept full as they stop.

    Args:
        problems: of one data set.
        dataset: its name in the records.
        driver: runs the trajectories.
        renderer: says which problems fit; None where a server says it, as it refuses them.
        decoding: how completions are drawn.
        max_turns: T_max.
        threshold: gamma; None runs every turn and returns the last.
        on_turn: told of each turn as it ends.

    Returns:
        One record per problem, in order. A problem that does not fit the prompt budget, or whose
        trajectory a server refuses to go on with, has no turns and an ``error``; it counts as
        wrong.
    """
    stop = None if threshold is None else stop_rule(threshold)
    fitting = [
        p
        for p in problems
        if renderer is None or renderer.fits(first_turn_messages(get_task(p.task), p))
    ]
    jobs = [
        Job(
            problem=problem,
            sample=0,
            program=refinement_chain(
                problem, 0, max_turns, stop, partial(on_turn, problem) if on_turn else None
            ),
            decoding=decoding,
        )
        for problem in fitting
    ]
    done = {
        problem.id: _error_record(problem, dataset, result.reason)
        if isinstance(result, Refused)
        else trajectory_record(result, dataset, max_turns, adaptive=stop is not None)
        for problem, result in zip(fitting, driver.run(jobs), strict=True)
    }
    budget = renderer.max_prompt_tokens if renderer is not None else None
    too_long = f"the problem does not fit {budget} prompt tokens"
    return [done.get(p.id) or _error_record(p, dataset, too_long) for p in problems]


def trajectory_record(
    trajectory: Trajectory, dataset: str, max_turns: int, *, adaptive: bool
) -> Record:
    """Grade a trajectory's turns and write it down. Without a reference ``correct`` is null."""
    problem = trajectory.problem
    last = trajectory.turns[-1].index
    return {
        **_head(problem, dataset),
        "returned_turn": last,
        "stopped_early": adaptive and last < max_turns,
        "turns": [_turn_record(problem, turn) for turn in trajectory.turns],
    }


def _turn_record(problem: Problem, turn: Turn) -> Record:
    task = get_task(problem.task)
    text = turn.completion.text
    return {
        "turn": turn.index,
        "text": text,
        "answer": task.extract_answer(text),
        "correct": task.grade(text, problem) if problem.reference else None,
        "verdict": turn.check.verdict.value,
        "confidence": turn.check.confidence,
        "truncated": turn.completion.truncated,
        "prompt_tokens": turn.completion.prompt_tokens,
        "completion_tokens": turn.completion.completion_tokens,
        "finish_reason": turn.completion.finish_reason.value,
    }


def _error_record(problem: Problem, dataset: str, error: str) -> Record:
    return {
        **_head(problem, dataset),
        "returned_turn": 0,
        "stopped_early": False,
        "turns": [],
        "error": error,
    }


def _head(problem: Problem, dataset: str) -> Record:
    return {
        "dataset": dataset,
        "id": problem.id,
        "question": problem.question,
        "reference": problem.reference,
    }
