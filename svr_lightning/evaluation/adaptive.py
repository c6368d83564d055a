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
from svr_lightning.core.stopping import StopRule, first_ending
from svr_lightning.core.types import AnyCompletion, Problem, Trajectory, Turn
from svr_lightning.recipes.dialogues import Signals
from svr_lightning.tasks import get_task
from svr_lightning.tasks.grading import get_grader, label


def trajectory_record(
    trajectory: Trajectory,
    dataset: str,
    max_turns: int,
    rule: StopRule | None,
    grader: str = "paper",
) -> SampleRecord:
    """Grade a trajectory's turns and make its record. Without a reference ``correct`` is null.

    Args:
        trajectory: up to its end under ``rule``, or with later turns.
        dataset: its name in the record.
        max_turns: T_max.
        rule: the stopping rule; None for a fixed budget.
        grader: name of the grader.
    """
    problem = trajectory.problem
    signals = Signals(get_task(problem.task))
    for turn in trajectory.turns:
        signals.hear(turn)
    end = first_ending(rule, signals.heard, max_turns)
    assert end is not None, "the trajectory ended under another rule"
    return SampleRecord(
        **problem_fields(problem, dataset),
        returned_turn=end.returned,
        observed_turns=None if end.observed == end.returned else end.observed,
        stopped_early=end.stopped_early,
        turns=tuple(
            _turn_record(problem, turn, heard.answer, grader)
            for turn, heard in zip(trajectory.turns, signals.heard, strict=True)
        ),
    )


def completion_fields(problem: Problem, completion: AnyCompletion, grader: str) -> dict[str, Any]:
    """The fields of a :class:`CompletionRecord`: what a completion says and whether it is right.

    A completion that cannot be graded counts as wrong and says why in ``grading_error``.
    """
    task = get_task(problem.task)
    fields: dict[str, Any] = {
        "text": completion.text,
        "answer": task.extract_answer(completion.text),
        "correct": None,
        "truncated": completion.truncated,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "finish_reason": completion.finish_reason.value,
    }
    if problem.has_reference:
        y = label(task, completion.text, problem, get_grader(grader))
        fields |= {"correct": y.correct, "grading_error": y.error}
    return fields


def _turn_record(problem: Problem, turn: Turn, answer: int, grader: str) -> TurnRecord:
    check = turn.check
    return TurnRecord(
        turn=turn.index,
        verdict=None if check is None else check.verdict,
        confidence=None if check is None else check.confidence,
        answer_group=answer,
        **turn.scores._asdict(),
        **completion_fields(problem, turn.completion, grader),
    )


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
    completions = [solution.turns[0].completion for solution in found]
    return PoolRecord(
        **problem_fields(problem, dataset),
        samples=tuple(
            CompletionRecord(**completion_fields(problem, one, grader)) for one in completions
        ),
        error=error,
    )
