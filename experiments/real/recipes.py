"""SVR with a short dialogue: on a CPU most of a training step's time goes into reading prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

from svr_lightning.core.prompts import chat, shorten_draft
from svr_lightning.core.types import Message, Problem, Turn
from svr_lightning.recipes.dialogues import Dialogue, Prompt, SelfVerifying
from svr_lightning.recipes.svr import SVR
from svr_lightning.tasks import get_task

SYSTEM = "Answer, then check yourself."
AGAIN = "Check it and reply again."
CUT_OFF = "It was cut off. Reply again."


@dataclass(frozen=True)
class Brief(SelfVerifying):
    """The question, and later the last reply with its self-check, as the policy wrote them."""

    def first(self, problem: Problem) -> list[Message]:
        """The question under a system message of a few words."""
        return chat(SYSTEM, problem.question)

    def later(self, problem: Problem, turns: Sequence[Turn]) -> Prompt:
        """The question, the last reply and what to do with it."""
        last = turns[-1].completion
        return again(problem, last.text, last.truncated)


def again(problem: Problem, reply: str, truncated: bool = False) -> list[Message]:
    """The prompt of a refinement turn; the self-check is a part of ``reply``."""
    draft = shorten_draft(reply, get_task(problem.task).style.draft_limit)
    instruction = CUT_OFF if truncated else AGAIN
    return chat(SYSTEM, f"{problem.question}\nYour last reply:\n{draft}\n{instruction}")


@dataclass(frozen=True, kw_only=True)
class BriefSVR(SVR):
    """SVR, with these prompts."""

    @property
    def dialogue(self) -> Dialogue:
        """The short dialogue."""
        return Brief(self.interface)
