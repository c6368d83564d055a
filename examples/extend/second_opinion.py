"""Prompts of your own: later turns ask for a second, independent solution."""

from collections.abc import Sequence
from dataclasses import dataclass

from svr_lightning.core.prompts import chat, system_prompt
from svr_lightning.core.types import Message, Problem, Turn
from svr_lightning.recipes.dialogues import PlainRefinement
from svr_lightning.recipes.grpo_mt import GRPOMT
from svr_lightning.tasks import get_task


class SecondOpinion(PlainRefinement):
    """The question again, and the previous answer to compare with in the end."""

    def later(self, problem: Problem, turns: Sequence[Turn]) -> list[Message]:
        """The prompt after ``turns``; it may use what the policy wrote and no label."""
        task = get_task(problem.task)
        answer = task.extract_answer(turns[-1].completion.text) or "no answer"
        text = (
            f"{problem.question}\n\nAnother solver answered: {answer}\n"
            "Solve the problem in a different way. Keep that answer only if yours agrees."
        )
        return chat(system_prompt(task.style, None), text)


@dataclass(frozen=True, kw_only=True)
class SecondOpinionMT(GRPOMT):
    """GRPO-MT with these prompts."""

    @property
    def dialogue(self) -> SecondOpinion:
        """The prompts of training and evaluation."""
        return SecondOpinion()
