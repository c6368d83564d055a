"""The chain of refinement turns that SVR trains on and infers with."""

from collections.abc import Callable, Generator, Sequence

from svr_lightning.core.parsing import SelfCheckFields, parse_self_check
from svr_lightning.core.stopping import StopRule, StopSignals, stops
from svr_lightning.core.types import AnyCompletion, Message, Problem, Trajectory, Turn
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import Task
from svr_lightning.tasks.messages import first_turn_messages, refinement_messages

ProbabilityOf = Callable[[AnyCompletion], float | None]
"""Reads a completion's verdict probability, as :meth:`Renderer.verdict_probability` does."""


def refinement_chain(
    problem: Problem,
    sample: int,
    max_turns: int,
    rule: StopRule | None = None,
    on_turn: Callable[[Turn], None] | None = None,
    probability_of: ProbabilityOf | None = None,
    interface: SelfCheckFields = "joint",
) -> Generator[list[list[Message]], Sequence[AnyCompletion], Trajectory]:
    """One trajectory of solve, self-check, refine.

    Args:
        problem: only its question reaches a prompt.
        sample: number of the trajectory within its group.
        max_turns: the horizon in training (T_tr), the budget at inference (T_max).
        rule: ends the trajectory; None runs every turn, as training does.
        on_turn: told of each turn as it ends.
        probability_of: fills in :attr:`Turn.verdict_probability`, which training does not need.
        interface: what prompts ask for and the parser reads.
    """
    task = get_task(problem.task)
    messages = first_turn_messages(task, problem, interface)
    turns: list[Turn] = []
    said: list[StopSignals] = []
    for index in range(1, max_turns + 1):
        (completion,) = yield [messages]
        check = parse_self_check(completion.text, interface)
        turn = Turn(
            index=index,
            completion=completion,
            check=check,
            verdict_probability=probability_of(completion) if probability_of else None,
        )
        turns.append(turn)
        if on_turn is not None:
            on_turn(turn)
        if rule is not None:
            said.append(signals_of(task, turn))
            if stops(rule, said):
                break
        messages = refinement_messages(
            task,
            problem,
            previous=completion.text,
            verdict=check.verdict,
            confidence=check.confidence,
            truncated=completion.truncated,
            turn=index + 1,
            interface=interface,
        )
    return Trajectory(problem=problem, sample=sample, turns=tuple(turns))


def signals_of(task: Task, turn: Turn) -> StopSignals:
    """What a stopping rule reads of a turn.

    Raises:
        ValueError: if the turn has no self-check, since then no rule applies to it.
    """
    if turn.check is None:
        raise ValueError("a turn without a self-check cannot end its trajectory early")
    return StopSignals(
        verdict=turn.check.verdict,
        confidence=turn.check.confidence,
        truncated=turn.completion.truncated,
        answer=task.extract_answer(turn.completion.text),
        verdict_probability=turn.verdict_probability,
    )
