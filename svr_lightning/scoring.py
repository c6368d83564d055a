"""Labels: where a grader meets a completion. Nothing that builds an SVR prompt imports this."""

from collections.abc import Sequence

from svr_lightning.core.parsing import self_check_format_score
from svr_lightning.core.types import Problem, ScoredTurn, Turn
from svr_lightning.tasks import get_task


def score_turns(problem: Problem, turns: Sequence[Turn]) -> list[ScoredTurn]:
    """Grade every turn of one trajectory: y_t and the two format scores beside v_t, c_t, q_t."""
    task = get_task(problem.task)
    return [
        ScoredTurn(
            correct=task.grade(turn.completion.text, problem),
            truncated=turn.completion.truncated,
            verdict=turn.check.verdict,
            confidence=turn.check.confidence,
            completion_tokens=turn.completion.completion_tokens,
            task_format=task.format_score(turn.completion.text),
            self_check_format=self_check_format_score(turn.completion.text),
        )
        for turn in turns
    ]
