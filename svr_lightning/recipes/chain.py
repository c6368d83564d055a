"""The chain of refinement turns that SVR trains on and infers with."""

from collections.abc import Callable, Generator, Sequence

from svr_lightning.core.parsing import parse_self_check
from svr_lightning.core.types import AnyCompletion, Message, Problem, Trajectory, Turn
from svr_lightning.messages import first_turn_messages, refinement_messages
from svr_lightning.tasks import get_task

StopRule = Callable[[Turn], bool]


def refinement_chain(
    problem: Problem,
    sample: int,
    max_turns: int,
    stop: StopRule | None = None,
    on_turn: Callable[[Turn], None] | None = None,
) -> Generator[list[list[Message]], Sequence[AnyCompletion], Trajectory]:
    """One trajectory of solve, self-check, refine.

    Args:
        problem: only its question reaches a prompt.
        sample: number of the trajectory within its group.
        max_turns: the horizon in training (T_tr), the budget at inference (T_max).
        stop: ends the trajectory after a turn; None runs every turn, as training does.
        on_turn: told of each turn as it ends.
    """
    task = get_task(problem.task)
    messages = first_turn_messages(task, problem)
    turns: list[Turn] = []
    for index in range(1, max_turns + 1):
        (completion,) = yield [messages]
        check = parse_self_check(completion.text)
        turn = Turn(index=index, completion=completion, check=check)
        turns.append(turn)
        if on_turn is not None:
            on_turn(turn)
        if stop is not None and stop(turn):
            break
        messages = refinement_messages(
            task,
            problem,
            previous=completion.text,
            verdict=check.verdict,
            confidence=check.confidence,
            truncated=completion.truncated,
            turn=index + 1,
        )
    return Trajectory(problem=problem, sample=sample, turns=tuple(turns))
