"""Graded records of evaluated problems."""

from collections.abc import Sequence
from typing import Any

from svr_lightning.analysis.records import (
    CompletionRecord,
    PoolRecord,
    SampleRecord,
    TurnRecord,
    problem_fields,
)
from svr_lightning.core.types import Problem, Trajectory, Turn
from svr_lightning.tasks import get_task
from svr_lightning.tasks.grading import get_grader, label


def trajectory_record(trajectory: Trajectory, dataset: str, grader: str = "paper") -> SampleRecord:
    """Grade the turns of an ended chain and make its record.

    Without a reference ``correct`` is null. A turn that cannot be graded counts as wrong and says
    why in ``grading_error``.

    Args:
        trajectory: what :func:`~svr_lightning.recipes.dialogues.chain` returned.
        dataset: its name in the record.
        grader: name of the grader.
    """
    problem, end = trajectory.problem, trajectory.ending
    assert end is not None, "nodes of trees are not evaluated"
    return SampleRecord(
        **problem_fields(problem, dataset),
        returned_turn=end.returned,
        observed_turns=None if end.observed == end.returned else end.observed,
        stopped_early=end.stopped_early,
        turns=tuple(
            TurnRecord(
                turn=turn.index,
                verdict=None if turn.check is None else turn.check.verdict,
                confidence=None if turn.check is None else turn.check.confidence,
                answer_group=turn.answer_group,
                **turn.scores._asdict(),
                **_completion_fields(problem, turn, grader),
            )
            for turn in trajectory.turns
        ),
    )


def _completion_fields(problem: Problem, turn: Turn, grader: str) -> dict[str, Any]:
    """The fields of a :class:`CompletionRecord`: what a completion says and whether it is right."""
    completion = turn.completion
    y = None
    if problem.has_reference:
        y = label(get_task(problem.task), completion.text, problem, get_grader(grader))
    return {
        "text": completion.text,
        "answer": turn.answer,
        "correct": None if y is None else y.correct,
        "grading_error": None if y is None else y.error,
        "truncated": completion.truncated,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "finish_reason": completion.finish_reason.value,
    }


def error_record(problem: Problem, dataset: str, error: str) -> SampleRecord:
    """The record of a problem that could not be run."""
    return SampleRecord(
        **problem_fields(problem, dataset),
        returned_turn=0,
        stopped_early=False,
        turns=(),
        error=error,
    )


def vote_record(
    problem: Problem,
    dataset: str,
    solutions: Sequence[Trajectory],
    grader: str,
    error: str | None = None,
) -> PoolRecord:
    """The record of a problem's pool of single-turn solutions, in the order of their samples.

    With an ``error`` it has no samples.
    """
    found = () if error is not None else sorted(solutions, key=lambda solution: solution.sample)
    return PoolRecord(
        **problem_fields(problem, dataset),
        samples=tuple(
            CompletionRecord(**_completion_fields(problem, one.turns[0], grader)) for one in found
        ),
        error=error,
    )
