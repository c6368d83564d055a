"""One evaluated problem as a line of a samples file."""

from collections.abc import Sequence
from typing import Any

from svr_lightning.core.stopping import StopRule, answer_turn
from svr_lightning.core.types import AnyCompletion, Problem, SelfCheck, Trajectory, Turn, Verdict
from svr_lightning.recipes.dialogues import signals_of
from svr_lightning.tasks import get_task
from svr_lightning.tasks.graders import get_grader
from svr_lightning.tasks.grading import label

Record = dict[str, Any]
"""One line of a samples file."""
_SILENT = SelfCheck(verdict=Verdict.UNSURE, confidence=0.5)
"""What a record says of a turn without a self-check."""


def trajectory_record(
    trajectory: Trajectory,
    dataset: str,
    max_turns: int,
    rule: StopRule | None,
    grader: str = "paper",
) -> Record:
    """Grade a trajectory's turns and write it down. Without a reference ``correct`` is null.

    Args:
        trajectory: as it ended under ``rule``.
        dataset: its name in the record.
        max_turns: T_max.
        rule: what ended it; None where nothing could.
        grader: name of the notion of correctness.
    """
    problem = trajectory.problem
    task = get_task(problem.task)
    last = trajectory.turns[-1].index
    returned = last
    if rule is not None:
        returned = answer_turn(rule, [signals_of(task, turn) for turn in trajectory.turns])
    return {
        **head(problem, dataset),
        "returned_turn": returned,
        "stopped_early": rule is not None and last < max_turns,
        **({"observed_turns": last} if last != returned else {}),
        "turns": [_turn_record(problem, turn, grader) for turn in trajectory.turns],
    }


def completion_fields(problem: Problem, completion: AnyCompletion, grader: str) -> Record:
    """What a completion says and whether it is right.

    A completion that cannot be graded counts as wrong and says why in ``grading_error``.
    """
    task = get_task(problem.task)
    fields: Record = {
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


def _turn_record(problem: Problem, turn: Turn, grader: str) -> Record:
    fields = completion_fields(problem, turn.completion, grader)
    check = turn.check or _SILENT
    record = {
        "turn": turn.index,
        "text": fields.pop("text"),
        "answer": fields.pop("answer"),
        "correct": fields.pop("correct"),
        "verdict": check.verdict.value,
        "confidence": check.confidence,
        **fields,
    }
    if turn.verdict_probability is not None:
        record["verdict_probability"] = turn.verdict_probability
    return record


def error_record(problem: Problem, dataset: str, error: str) -> Record:
    """The record of a problem that could not be run."""
    return {
        **head(problem, dataset),
        "returned_turn": 0,
        "stopped_early": False,
        "turns": [],
        "error": error,
    }


def vote_record(
    problem: Problem, dataset: str, solutions: Sequence[Trajectory], grader: str
) -> Record:
    """The record of a problem's pool of single-turn solutions, in the order of their samples."""
    in_order = sorted(solutions, key=lambda solution: solution.sample)
    return {
        **head(problem, dataset),
        "task": problem.task,
        "samples": [
            completion_fields(problem, solution.turns[0].completion, grader)
            for solution in in_order
        ],
    }


def head(problem: Problem, dataset: str) -> Record:
    """What every line of an evaluation begins with."""
    return {
        "dataset": dataset,
        "id": problem.id,
        "question": problem.question,
        "reference": problem.reference,
    }
