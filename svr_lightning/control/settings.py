"""How questions are answered: the rule, its limits, the prompts and the certificate."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from svr_lightning.analysis.operating_point import Certificate
from svr_lightning.core.evidence import scores_of_reply
from svr_lightning.core.prompts import in_context
from svr_lightning.core.ranges import Count, Positive, check_fields
from svr_lightning.core.stopping import Confident, StopRule
from svr_lightning.core.types import Message
from svr_lightning.errors import as_config_error, require
from svr_lightning.recipes.dialogues import Dialogue, FreshTurns, ScoresOf, SelfVerifying
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import Task

Otherwise = Literal["answer", "give_up"]


@dataclass(frozen=True)
class Settings:
    """What a :class:`~svr_lightning.control.controller.Controller` does, whomever it asks.

    Raises:
        ConfigError: if an option is out of range, or the certificate is for other settings.
    """

    task: str | Task
    """Extracts answers, decides which are equal and, with the dialogue, writes the prompts."""
    _: KW_ONLY
    rule: StopRule = field(default_factory=Confident)
    max_turns: Count = 10
    """T_max, the most turns of a question."""
    max_completion_tokens: Count | None = None
    """Completion limit of a turn; None takes the task's."""
    seconds: Positive | None = None
    """For all turns. A synchronous client is not interrupted: time is checked between its calls."""
    otherwise: Otherwise = "answer"
    """If the rule accepts no turn: return the turn that the rule prefers, or none."""
    dialogue: Dialogue = field(default_factory=SelfVerifying)
    """The prompts; subclass :class:`~svr_lightning.recipes.dialogues.Dialogue` for your own."""
    at_once: Count = 1
    """Independent samples that an asynchronous client draws at the same time, instead of
    refinements. Turns are in the order of their ends; once one is accepted, the other calls are
    cancelled."""
    certificate: Certificate | None = None
    scores_of: ScoresOf = scores_of_reply
    """Computes token scores, which some rules read, from a completion and its answer."""

    def __post_init__(self) -> None:
        check_fields(self)
        with as_config_error():
            _ = self.named_task
        fresh = isinstance(self.dialogue, FreshTurns)
        require(
            self.at_once == 1 or fresh,
            f"at_once={self.at_once} needs the dialogue FreshTurns",
        )
        require(
            self.dialogue.applied_rule(self.rule) == self.rule,
            f"rule={self.rule} reads a self-check, which {self.dialogue} does not request",
        )
        if self.certificate is not None:
            other = self.departures(self.certificate)
            require(not other, f"the certificate promises nothing for {', '.join(other)}")

    def departures(self, certificate: Certificate, **drawn: Any) -> list[str]:
        """Where its settings, and the sampling in ``drawn``, differ from the certified ones."""
        drawing = {
            "task": self.named_task.name,
            "max_completion_tokens": self.completion_limit,
            "fresh_turns": isinstance(self.dialogue, FreshTurns),
            "greedy_check": False,
            **drawn,
        }
        departures = certificate.departures(
            self.rule, self.max_turns, drawing, self.without_accepted
        )
        if self.at_once > 1:  # short completions come first
            departures.append(f"at_once={self.at_once}")
        return departures

    @property
    def without_accepted(self) -> str:
        """What becomes of a question without an accepted answer."""
        return self.otherwise

    @property
    def named_task(self) -> Task:
        """The task itself."""
        return get_task(self.task) if isinstance(self.task, str) else self.task

    @property
    def completion_limit(self) -> int:
        """The most completion tokens of a turn."""
        return self.max_completion_tokens or self.named_task.max_completion_tokens

    def first_prompt(self, question: str, context: Sequence[Message] = ()) -> list[Message]:
        """The first prompt of a question."""
        problem = self.named_task.from_question(question)
        return in_context(self.dialogue.first(problem), context)
