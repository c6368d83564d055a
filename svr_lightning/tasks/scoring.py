"""Labels: where a grader meets a completion. Nothing that builds an SVR prompt imports this."""

from collections.abc import Callable, Iterable, Sequence

from svr_lightning.core.types import Problem, ScoredTurn, Turn
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import Task
from svr_lightning.tasks.grading import Label, label

Formats = Callable[[Task, str], tuple[float, float]]
"""From a task and a completion's text to r_taskfmt and r_scfmt."""


def score_turns(
    problem: Problem,
    turns: Sequence[Turn],
    formats: Formats,
    labels: Iterable[Label] | None = None,
) -> list[ScoredTurn]:
    """Grade every turn of one trajectory: y_t and the two format scores beside v_t, c_t, q_t.

    Args:
        problem: of the trajectory.
        turns: its turns.
        formats: the method's format scores.
        labels: y_t of each turn, where a :class:`GradingPool` has graded them already.
    """
    task = get_task(problem.task)
    if labels is None:
        labels = [label(task, turn.completion.text, problem) for turn in turns]
    formatted = [formats(task, turn.completion.text) for turn in turns]
    return [
        ScoredTurn(
            correct=y.correct,
            truncated=turn.completion.truncated,
            verdict=turn.check.verdict if turn.check else None,
            confidence=turn.check.confidence if turn.check else None,
            completion_tokens=turn.completion.completion_tokens,
            task_format=task_format,
            self_check_format=self_check_format,
        )
        for turn, y, (task_format, self_check_format) in zip(turns, labels, formatted, strict=True)
    ]
