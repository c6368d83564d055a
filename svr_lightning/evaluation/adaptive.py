"""Graded records of evaluated problems."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from svr_lightning.analysis.records import SampleRecord, TurnRecord
from svr_lightning.core.types import Problem, Trajectory, Turn
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import AnswerNumbers
from svr_lightning.tasks.grading import get_grader, label


def trajectory_record(
    trajectory: Trajectory,
    dataset: str,
    grader: str = "paper",
    answers: Callable[[int], bool] = bool,
) -> SampleRecord:
    """Grade the turns of an ended chain and make its record.

    Without a reference ``correct`` is null. A turn that cannot be graded counts as wrong and says
    why in ``grading_error``. ``answers`` says which turns (from 1) answer the problem.
    """
    problem, end = trajectory.problem, trajectory.ending
    assert end is not None, "nodes of trees are not evaluated"
    numbers = AnswerNumbers(get_task(problem.task).answer_form)
    return SampleRecord(
        **_problem_fields(problem, dataset),
        returned_turn=end.returned,
        observed_turns=None if end.observed == end.returned else end.observed,
        stopped_early=end.stopped_early,
        accepted=end.accepted,
        turns=tuple(
            _turn_record(problem, turn, numbers, grader, feedback=not answers(turn.index))
            for turn in trajectory.turns
        ),
    )


def _turn_record(
    problem: Problem, turn: Turn, numbers: AnswerNumbers, grader: str, *, feedback: bool
) -> TurnRecord:
    completion = turn.completion
    answer = None if feedback else turn.answer
    y = None
    if problem.has_reference and not feedback:
        part = turn.reading.final_part(completion.text)
        y = label(get_task(problem.task), part, problem, get_grader(grader))
    return TurnRecord(
        turn=turn.index,
        text=completion.text,
        answer=answer,
        correct=None if y is None else y.correct,
        grading_error=None if y is None else y.error,
        truncated=completion.truncated,
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=completion.completion_tokens,
        finish_reason=completion.finish_reason.value,
        verdict=None if turn.check is None else turn.check.verdict,
        confidence=None if turn.check is None else turn.check.confidence,
        answer_group=numbers.number(answer),
        feedback=feedback or None,
        **turn.scores._asdict(),
    )


def error_record(problem: Problem, dataset: str, error: str) -> SampleRecord:
    """The record of a problem that could not be run."""
    return SampleRecord(
        **_problem_fields(problem, dataset),
        returned_turn=0,
        stopped_early=False,
        accepted=False,
        turns=(),
        error=error,
    )


def _problem_fields(problem: Problem, dataset: str) -> dict[str, Any]:
    return {"dataset": dataset, **{f.name: getattr(problem, f.name) for f in fields(Problem)}}
