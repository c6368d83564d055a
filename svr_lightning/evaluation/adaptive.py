"""Adaptive inference over a data set, recorded turn by turn in the samples-file schema."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from svr_lightning.core.stopping import should_stop
from svr_lightning.core.types import Problem, Trajectory, Turn
from svr_lightning.messages import first_turn_messages
from svr_lightning.recipes.chain import StopRule, refinement_chain
from svr_lightning.rendering import Renderer
from svr_lightning.rollout import Decoding, Driver, Job
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import GradingError
from svr_lightning.tasks.graders import get_grader

Record = dict[str, Any]
"""One line of a samples file."""

OnTurn = Callable[[Problem, Turn], None]


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
    driver: Driver,
    renderer: Renderer,
    decoding: Decoding,
    max_turns: int,
    threshold: float | None,
    on_turn: OnTurn | None = None,
    grader: str = "paper",
) -> list[Record]:
    """Solve problems with adaptive stopping, the batch kept full as they stop.

    Args:
        problems: of one data set.
        dataset: its name in the records.
        driver: runs the trajectories.
        renderer: says which problems fit.
        decoding: how completions are drawn.
        max_turns: T_max.
        threshold: gamma; None runs every turn and returns the last.
        on_turn: told of each turn as it ends.
        grader: name of the notion of correctness.

    Returns:
        One record per problem, in order. A problem that does not fit the prompt budget has no
        turns and an ``error``; it counts as wrong.
    """
    stop = None if threshold is None else stop_rule(threshold)
    fitting = [p for p in problems if renderer.fits(first_turn_messages(get_task(p.task), p))]
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
        problem.id: trajectory_record(
            trajectory, dataset, max_turns, adaptive=stop is not None, grader=grader
        )
        for problem, trajectory in zip(fitting, driver.run(jobs), strict=True)
    }
    return [done.get(p.id) or _unfit_record(p, dataset, renderer) for p in problems]


def trajectory_record(
    trajectory: Trajectory, dataset: str, max_turns: int, *, adaptive: bool, grader: str = "paper"
) -> Record:
    """Grade a trajectory's turns and write it down. Without a reference ``correct`` is null."""
    problem = trajectory.problem
    last = trajectory.turns[-1].index
    return {
        **_head(problem, dataset),
        "returned_turn": last,
        "stopped_early": adaptive and last < max_turns,
        "turns": [_turn_record(problem, turn, grader) for turn in trajectory.turns],
    }


def _turn_record(problem: Problem, turn: Turn, grader: str) -> Record:
    task = get_task(problem.task)
    text = turn.completion.text
    correct, fault = None, {}
    if problem.reference:
        try:
            correct = get_grader(grader).grade(task, text, problem)
        except GradingError as error:  # counts as wrong, and says why
            correct, fault = False, {"grading_error": str(error)}
    return {
        "turn": turn.index,
        "text": text,
        "answer": task.extract_answer(text),
        "correct": correct,
        **fault,
        "verdict": turn.check.verdict.value,
        "confidence": turn.check.confidence,
        "truncated": turn.completion.truncated,
        "prompt_tokens": len(turn.completion.prompt_ids),
        "completion_tokens": len(turn.completion.token_ids),
        "finish_reason": turn.completion.finish_reason.value,
    }


def _unfit_record(problem: Problem, dataset: str, renderer: Renderer) -> Record:
    return {
        **_head(problem, dataset),
        "returned_turn": 0,
        "stopped_early": False,
        "turns": [],
        "error": f"the problem does not fit {renderer.max_prompt_tokens} prompt tokens",
    }


def _head(problem: Problem, dataset: str) -> Record:
    return {
        "dataset": dataset,
        "id": problem.id,
        "question": problem.question,
        "reference": problem.reference,
    }
