"""Adaptive inference over any chat client: ask, read the self-check, then refine or stop.

The turns are those of :func:`~svr_lightning.recipes.dialogues.chain`, the loop of training and
evaluation. This file adds limits, and synchronous and asynchronous clients. It needs neither torch
nor an HTTP library.
"""

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

from svr_lightning.analysis.operating_point import Certificate
from svr_lightning.core.evidence import scores_of_tokens
from svr_lightning.core.stopping import Confident, StopRule
from svr_lightning.core.types import (
    AnyCompletion,
    Completion,
    Ending,
    FinishReason,
    Message,
    RemoteCompletion,
    TokenScores,
    Turn,
)
from svr_lightning.engines.chat_protocol import read_answer, read_completion
from svr_lightning.errors import require
from svr_lightning.recipes.dialogues import (
    Dialogue,
    FreshTurns,
    PromptRequest,
    SelfVerifying,
    chain,
    limited,
)
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import Task

LONGEST_TEXT = 2**20
"""Characters of a completion that are read; a longer one counts as cut off."""

Client = Callable[[list[Message], int], Any]
"""From messages and a completion limit in tokens to a reply, or to an awaitable of one. A reply is
text; text and whether it was cut off; a chat completion as a mapping or as an object with
``model_dump`` (OpenAI SDK, LiteLLM); or an httpx response."""
OnTurn = Callable[[Turn], None]
Otherwise = Literal["answer", "give_up"]


def read_reply(reply: Any) -> AnyCompletion:
    """What a client returned, as a completion of at most :data:`LONGEST_TEXT` characters.

    Text alone has no token counts: they are 0.

    Raises:
        MalformedError: if it is none of the forms that :data:`Client` lists.
        UnusableError: if a chat completion does not say how it ended, or how long it is.
    """
    if isinstance(reply, str):
        reply = (reply, False)
    if isinstance(reply, tuple) and len(reply) == 2 and isinstance(reply[0], str):
        reason = FinishReason.LENGTH if reply[1] else FinishReason.STOP
        reply = RemoteCompletion(
            text=reply[0], finish_reason=reason, prompt_tokens=0, completion_tokens=0
        )
    if hasattr(reply, "raise_for_status"):
        reply.raise_for_status()
        reply = read_answer(reply.content)
    if hasattr(reply, "model_dump"):
        reply = reply.model_dump()
    if not isinstance(reply, Completion | RemoteCompletion):
        reply = read_completion(reply)
    found: AnyCompletion = reply
    if len(found.text) > LONGEST_TEXT:
        return replace(found, text=found.text[:LONGEST_TEXT], finish_reason=FinishReason.LENGTH)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a question ended."""

    accepted: bool
    """Whether the stopping rule accepts the answer."""
    answer: str | None
    """As the task extracts it; None if there is none."""
    returned: Turn | None
    """The turn that gave the answer; None if it was given up."""
    turns: tuple[Turn, ...]
    """All generated turns."""
    ending: Ending
    """How the rule, or a limit, ended the turns."""
    reason: str
    """Why it ended, in a few words."""
    certificate: Certificate | None = None
    """The certificate that applies; None without one, or if a limit ended the trajectory."""

    @property
    def outcome(self) -> Literal["answered", "gave_up"]:
        """Whether there is an answer."""
        return "gave_up" if self.returned is None else "answered"

    @property
    def prompt_tokens(self) -> int:
        """Of all turns."""
        return sum(turn.completion.prompt_tokens for turn in self.turns)

    @property
    def completion_tokens(self) -> int:
        """Of all turns."""
        return sum(turn.completion.completion_tokens for turn in self.turns)


def scores_of_reply(completion: AnyCompletion, answer: str | None) -> TokenScores:
    """The scores of a server's completion, if it has log-probabilities."""
    assert isinstance(completion, RemoteCompletion)
    return scores_of_tokens(completion.text, answer, completion.tokens)


@dataclass(frozen=True)
class Controller:
    """Adaptive inference over a chat client.

    A client's error, and a cancellation, are raised as they are. The exception has the turns so
    far as its attribute ``turns``.

    Raises:
        ConfigError: if an option is out of range, or the certificate is for other settings.

    Examples:
        >>> text = "<answer>2+2</answer> VERDICT: CORRECT; CONFIDENCE: 0.9"
        >>> result = Controller(lambda messages, max_tokens: text, "countdown").solve("2 2 = 4")
        >>> result.outcome, result.answer, result.reason
        ('answered', '2+2', 'CORRECT at confidence 0.9 >= 0.85')
    """

    client: Client
    task: str | Task
    """Extracts answers, decides which are equal and, with the dialogue, writes the prompts."""
    _: KW_ONLY
    rule: StopRule = field(default_factory=Confident)
    max_turns: int = 10
    """T_max."""
    max_completion_tokens: int | None = None
    """Completion limit of a turn; None takes the task's."""
    max_tokens: int | None = None
    """Completion tokens of all turns together. The turn that reaches it is cut off."""
    seconds: float | None = None
    """For all turns. :meth:`solve` checks it between calls and does not interrupt a client."""
    otherwise: Otherwise = "answer"
    """If the rule accepts no turn: return the turn that the rule prefers, or none."""
    dialogue: Dialogue = field(default_factory=SelfVerifying)
    """The prompts; subclass :class:`~svr_lightning.recipes.dialogues.Dialogue` for your own."""
    certificate: Certificate | None = None
    scores_of: Callable[[AnyCompletion, str | None], TokenScores] = scores_of_reply
    """Computes token scores, which some rules read, from a completion and its answer."""

    def __post_init__(self) -> None:
        positive = ("max_turns", "max_completion_tokens", "max_tokens", "seconds")
        for name in positive:
            value = getattr(self, name)
            require(value is None or value > 0, f"{name}={value} must be above 0")
        require(
            self.otherwise in ("answer", "give_up"),
            f"otherwise={self.otherwise!r} must be 'answer' or 'give_up'",
        )
        try:
            self.rule.check()
        except ValueError as error:
            raise type(error)(f"rule: {error}") from error
        applied = self.dialogue.stop_policy(self.max_turns, self.rule)
        require(
            applied == (self.max_turns, self.rule),
            f"rule={self.rule}: {self.dialogue} does not ask for what it reads",
        )
        if self.certificate is not None:
            other = self.departures(self.certificate)
            require(not other, f"the certificate promises nothing for {', '.join(other)}")

    def departures(self, certificate: Certificate, **drawn: Any) -> list[str]:
        """Where its settings, and the sampling in ``drawn``, differ from the certified ones."""
        drawing = {
            "task": self._task.name,
            "max_completion_tokens": self.completion_limit,
            "fresh_turns": isinstance(self.dialogue, FreshTurns),
            **drawn,
        }
        settings = (self.rule, self.max_turns, drawing, self.otherwise)
        limits = [] if self.max_tokens is None else [f"max_tokens={self.max_tokens}"]
        return [*certificate.departures(*settings), *limits]

    @property
    def _task(self) -> Task:
        return get_task(self.task) if isinstance(self.task, str) else self.task

    @property
    def completion_limit(self) -> int:
        """Of a turn, in tokens."""
        return self.max_completion_tokens or self._task.max_completion_tokens

    def first_prompt(self, question: str) -> list[Message]:
        """The first prompt of a question."""
        return self.dialogue.first(self._task.from_question(question))

    # --- two ways to call a client ---------------------------------------------------------------

    def solve(self, question: str, on_turn: OnTurn | None = None) -> Result:
        """Answer a question.

        Args:
            question: as the policy sees it.
            on_turn: called with each turn as it ends.
        """
        turns: list[Turn] = []
        with _turns_kept(turns):
            run = self._run(question, turns, on_turn, self._deadline())
            completion = None
            while True:
                try:
                    prompt = run.send(completion)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                reply = self.client(*prompt)
                if inspect.isawaitable(reply):
                    if inspect.iscoroutine(reply):
                        reply.close()
                    raise TypeError("the client is asynchronous; use solve_async")
                completion = read_reply(reply)

    async def solve_async(self, question: str, on_turn: OnTurn | None = None) -> Result:
        """Answer a question with an asynchronous or synchronous client; see :meth:`solve`."""
        turns: list[Turn] = []
        with _turns_kept(turns):
            deadline = self._deadline()
            run = self._run(question, turns, on_turn, deadline)
            completion = None
            while True:
                try:
                    prompt = run.send(completion)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                completion = await self._reply(prompt, deadline)

    async def _reply(self, prompt: PromptRequest, deadline: float) -> AnyCompletion | None:
        """A client's completion; None if there is none before the deadline."""
        left = None if deadline == math.inf else deadline - time.monotonic()
        try:
            async with asyncio.timeout(left) as clock:
                reply = self.client(*prompt)
                return read_reply(await reply if inspect.isawaitable(reply) else reply)
        except TimeoutError:
            if not clock.expired():
                raise
            return None

    # --- what both share -------------------------------------------------------------------------

    def _deadline(self) -> float:
        return math.inf if self.seconds is None else time.monotonic() + self.seconds

    def _run(
        self, question: str, turns: list[Turn], on_turn: OnTurn | None, deadline: float
    ) -> Generator[PromptRequest, AnyCompletion | None, Result]:
        """Adds to ``turns``; yields prompts, receives completions, or None if one was too late."""

        def keep(turn: Turn) -> None:
            turns.append(turn)
            if on_turn is not None:
                on_turn(turn)

        problem = self._task.from_question(question)
        scores = self.scores_of if self.rule.needs_tokens else None
        program = chain(self.dialogue, problem, 0, self.max_turns, self.rule, keep, scores)
        (prompt,) = next(program)
        while True:
            used = sum(turn.completion.completion_tokens for turn in turns)
            left = math.inf if self.max_tokens is None else self.max_tokens - used
            if left <= 0:
                return self._result(turns, limit=f"limit of {self.max_tokens} tokens")
            completion = None
            if time.monotonic() < deadline:
                completion = yield limited(prompt, int(min(self.completion_limit, left)))
            if completion is None:
                return self._result(turns, limit=f"limit of {self.seconds:g} seconds")
            if self.max_tokens is not None and completion.text and not completion.completion_tokens:
                raise ValueError("max_tokens needs a client whose replies count their tokens")
            try:
                (prompt,) = program.send([completion])
            except StopIteration as end:
                return self._result(turns, end.value.ending)

    def _result(self, turns: Sequence[Turn], end: Ending | None = None, limit: str = "") -> Result:
        """The result of turns that ended by themselves, or at a limit."""
        signals = [turn.signals for turn in turns]
        if end is None:
            returned = self.rule.answer_turn(signals, self.max_turns) if turns else 0
            end = Ending(observed=len(turns), returned=returned, stopped_early=False)
        reason = limit or f"no turn was accepted by: {self.rule}"
        if end.accepted:
            reason = self.rule.reason(signals)
        answers = turns and (end.accepted or self.otherwise == "answer")
        turn = turns[end.returned - 1] if answers else None
        return Result(
            accepted=end.accepted,
            answer=None if turn is None else turn.answer,
            returned=turn,
            turns=tuple(turns),
            ending=end,
            reason=reason,
            certificate=None if limit else self.certificate,
        )


@contextmanager
def _turns_kept(turns: list[Turn]) -> Iterator[None]:
    """Add the turns so far to every exception that passes, cancellations included."""
    try:
        yield
    except BaseException as error:
        vars(error)["turns"] = tuple(turns)
        raise
