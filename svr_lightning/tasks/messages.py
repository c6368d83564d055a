"""The prompts of a problem, for users; :mod:`core.prompts` has the wording."""

from svr_lightning.core import prompts
from svr_lightning.core.parsing import SelfCheckFields
from svr_lightning.core.types import Message, PolicyState, Problem, Verdict
from svr_lightning.tasks.base import Task


def first_turn_messages(
    task: Task, problem: Problem, interface: SelfCheckFields = "joint"
) -> list[Message]:
    """The messages of turn 1: the system message and the question."""
    return prompts.first_turn(task.style, problem.question, interface)


def refinement_messages(
    task: Task,
    problem: Problem,
    *,
    previous: str,
    verdict: Verdict,
    confidence: float,
    truncated: bool,
    turn: int,
    interface: SelfCheckFields = "joint",
) -> list[Message]:
    """The messages of turn ``turn`` >= 2, from the policy's previous completion and self-check.

    Only the question of ``problem`` is read.
    """
    state = PolicyState(
        draft=previous, verdict=Verdict(verdict), confidence=confidence, truncated=truncated
    )
    return prompts.refine(task.style, problem.question, state, turn, interface)
