"""Records of evaluated problems, graded as they are made."""

from collections.abc import Sequence
from typing import Any

from svr_lightning.core.stopping import StopRule, answer_turn
from svr_lightning.core.types import AnyCompletion, Problem, Trajectory, Turn
from svr_lightning.evaluation.records import (
    CompletionRecord,
    PoolRecord,
    SampleRecord,
    TurnRecord,
    problem_fields,
)
from svr_lightning.recipes.dialogues import signals_of
from svr_lightning.tasks import get_task
from svr_lightning.tasks.graders import get_grader
from svr_lightning.tasks.grading import label


def trajectory_record(
    trajectory: Trajectory,
    dataset: str,
    max_turns: int,
    rule: StopRule | None,
    grader: str = "paper",
) -> SampleRecord:
    """Grade a trajectory's turns and write it down. Without a reference ``correct`` is null.

    Args:
        trajectory: as it ended under ``rule``.
        dataset: its name in the record.
        max_turns: T_max.
        rule: the stopping rule; None for a fixed budget.
        grader: name of the notion of correctness.
    """
    problem = trajectory.problem
    task = get_task(problem.task)
    last = trajectory.turns[-1].index
    returned = last
    if rule is not None:
        returned = answer_turn(rule, [signals_of(task, turn) for turn in trajectory.turns])
    return SampleRecord(
        **problem_fields(problem, dataset),
        returned_turn=returned,
        observed_turns=None if last == returned else last,
        stopped_early=rule is not None and last < max_turns,
        turns=tuple(_turn_record(problem, turn, grader) for turn in trajectory.turns),
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
        fields |= label(task, completion.text, problem, get_grader(grader)).fields()
    return fields


def _turn_record(problem: Problem, turn: Turn, grader: str) -> TurnRecord:
    check = turn.check
    return TurnRecord(
        turn=turn.index,
        verdict=None if check is None else check.verdict,
        confidence=None if check is None else check.confidence,
        verdict_probability=turn.verdict_probability,
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
    problem: Problem, dataset: str, solutions: Sequence[Trajectory], grader: str
) -> PoolRecord:
    """The record of a problem's pool of single-turn solutions, in the order of their samples."""
    in_order = sorted(solutions, key=lambda solution: solution.sample)
    completions = [solution.turns[0].completion for solution in in_order]
    return PoolRecord(
        **problem_fields(problem, dataset),
        samples=tuple(
            CompletionRecord(**completion_fields(problem, one, grader)) for one in completions
        ),
    )
