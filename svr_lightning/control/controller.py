"""Adaptive inference over any chat client: ask, read the self-check, then refine or stop.

The turns are those of :func:`~svr_lightning.recipes.dialogues.chain`, the loop of training and
evaluation. This file adds limits, and synchronous and asynchronous clients. It needs neither torch
nor an HTTP library.
"""

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, NamedTuple

from svr_lightning.analysis.operating_point import Certificate
from svr_lightning.clients.chat_answers import (
    ServerError,
    error_in,
    read_answer,
    read_completion,
    whole,
)
from svr_lightning.core.evidence import scores_of_reply
from svr_lightning.core.prompts import in_context
from svr_lightning.core.ranges import Count, Positive, check_fields
from svr_lightning.core.stopping import Confident, StopRule
from svr_lightning.core.types import (
    AnyCompletion,
    Completion,
    FinishReason,
    Message,
    RemoteCompletion,
    Turn,
)
from svr_lightning.errors import one_line, require
from svr_lightning.recipes.dialogues import (
    Dialogue,
    FreshTurns,
    PromptRequest,
    RolloutFn,
    ScoresOf,
    SelfVerifying,
    chain,
    limited,
)
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import Task

LONGEST_TEXT = 2**20
"""Characters of a completion that are read; a longer one counts as cut off."""

Client = Callable[[list[Message], int], Any]
"""Takes messages and a completion limit in tokens; returns a reply, or an awaitable of one. It is
text; text and whether it was cut off; a chat completion as a mapping or as an object with
``model_dump`` (OpenAI SDK, LiteLLM); or an httpx response."""
OnTurn = Callable[[Turn], None]
Otherwise = Literal["answer", "give_up"]


def read_reply(reply: Any) -> AnyCompletion:
    """What a client returned, as a completion of at most :data:`LONGEST_TEXT` characters.

    Raises:
        ServerError: if it is none of the forms that :data:`Client` lists, or the model refused.
    """
    kind = type(reply).__name__
    match (reply, False) if isinstance(reply, str) else reply:
        case str(text), bool(cut):
            reason = FinishReason.LENGTH if cut else FinishReason.STOP
            reply = RemoteCompletion(text=whole("", text), finish_reason=reason)
    if hasattr(reply, "raise_for_status"):
        reply.raise_for_status()
        reply = read_answer(reply.content)
    if not isinstance(reply, Completion | RemoteCompletion):
        try:
            reply = read_completion(reply.model_dump() if hasattr(reply, "model_dump") else reply)
        except ServerError as error:
            if error.status == 200 and error.temporary:
                error.args = (
                    f"the client returned {kind}: {error}. Return text, text and whether it was "
                    "cut off, a chat completion of the OpenAI SDK, of LiteLLM or as a mapping, or "
                    "an httpx response",
                )
            raise
    found: AnyCompletion = reply
    if len(found.text) > LONGEST_TEXT:
        return replace(found, text=found.text[:LONGEST_TEXT], finish_reason=FinishReason.LENGTH)
    return found


def refused(error: Exception) -> str | None:
    """Why this one request was refused, if an error of any client says so by its HTTP status.

    Another one may be answered: its prompt may be shorter, or pass a filter of content.
    """
    response = getattr(error, "response", None)
    named = (error, "status"), (error, "status_code"), (response, "status_code")
    if not any(getattr(one, name, None) in (400, 413, 422) for one, name in named):
        return None
    message, _, _ = error_in(getattr(response, "content", b"") or str(error).encode())
    return message or one_line(error)


class Unused(NamedTuple):
    """Calls that became no turn: cancelled once another one was accepted, or refused."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    """Those of cancelled calls are estimated from the time that they ran: no server counts them."""


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
    reason: str
    """Why it ended, in a few words."""
    certificate: Certificate | None
    """The certificate that applies; None without one, or if a limit ended the trajectory."""
    refusal: str | None
    """What the model said instead of another turn, if it refused."""
    unused: Unused

    @property
    def outcome(self) -> Literal["answered", "gave_up"]:
        """Whether there is an answer."""
        return "gave_up" if self.returned is None else "answered"

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all turns and of calls that gave no turn; 0 if they are not known."""
        return self.unused.prompt_tokens + sum(t.completion.prompt_tokens for t in self.turns)

    @property
    def completion_tokens(self) -> int:
        """Completion tokens of the same calls; 0 if they are not known."""
        return self.unused.completion_tokens + _completion_tokens(self.turns)


def _completion_tokens(turns: Iterable[Turn]) -> int:
    return sum(turn.completion.completion_tokens for turn in turns)


@dataclass(frozen=True)
class Controller:
    """Adaptive inference over a chat client.

    A client's error, and a cancellation, are raised as they are. The exception has the turns so
    far as its attribute ``turns``. Where a server refuses a turn after the first (HTTP 400, 413,
    422), or the model itself refuses, the trajectory ends there instead.

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
    max_turns: Count = 10
    """T_max, the most turns of a question."""
    max_completion_tokens: Count | None = None
    """Completion limit of a turn; None takes the task's."""
    max_tokens: Count | None = None
    """Completion tokens of all turns together. The turn that reaches it is cut off."""
    seconds: Positive | None = None
    """For all turns. :meth:`solve` checks it between calls and does not interrupt a client."""
    otherwise: Otherwise = "answer"
    """If the rule accepts no turn: return the turn that the rule prefers, or none."""
    dialogue: Dialogue = field(default_factory=SelfVerifying)
    """The prompts; subclass :class:`~svr_lightning.recipes.dialogues.Dialogue` for your own."""
    at_once: Count = 1
    """Calls that :meth:`solve_async` runs at the same time, of fresh turns alone. Turns are in the
    order of their ends; once one is accepted, the other calls are cancelled."""
    certificate: Certificate | None = None
    scores_of: ScoresOf = scores_of_reply
    """Computes token scores, which some rules read, from a completion and its answer."""

    def __post_init__(self) -> None:
        check_fields(self)
        fresh = isinstance(self.dialogue, FreshTurns)
        require(
            self.at_once == 1 or (fresh and self.max_tokens is None),
            f"at_once={self.at_once} needs the dialogue FreshTurns, and no max_tokens",
        )
        require(
            self.dialogue.applied_rule(self.rule) == self.rule,
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
        if self.at_once > 1:  # short completions come first
            limits.append(f"at_once={self.at_once}")
        return [*certificate.departures(*settings), *limits]

    @property
    def _task(self) -> Task:
        return get_task(self.task) if isinstance(self.task, str) else self.task

    @property
    def completion_limit(self) -> int:
        """The most completion tokens of a turn."""
        return self.max_completion_tokens or self._task.max_completion_tokens

    def first_prompt(self, question: str, context: Sequence[Message] = ()) -> list[Message]:
        """The first prompt of a question."""
        return in_context(self.dialogue.first(self._task.from_question(question)), context)

    # --- two ways to call a client ---------------------------------------------------------------

    def solve(
        self, question: str, on_turn: OnTurn | None = None, *, context: Sequence[Message] = ()
    ) -> Result:
        """Answer a question, one call after another.

        Args:
            question: as the policy sees it.
            on_turn: called with each turn as it ends.
            context: messages before the question: of the system, or of an earlier conversation.
        """
        work = self._solve(question, on_turn, context, _CallsNow(self.client))
        try:
            work.send(None)  # a synchronous client never suspends it
        except StopIteration as end:
            result: Result = end.value
            return result
        raise AssertionError

    async def solve_async(
        self, question: str, on_turn: OnTurn | None = None, *, context: Sequence[Message] = ()
    ) -> Result:
        """Answer a question with an asynchronous or synchronous client; see :meth:`solve`."""
        return await self._solve(question, on_turn, context, _Calls(self.client, self.at_once))

    # --- what both share -------------------------------------------------------------------------

    async def _solve(
        self, question: str, on_turn: OnTurn | None, context: Sequence[Message], calls: "_Calls"
    ) -> Result:
        turns: list[Turn] = []

        def keep(turn: Turn) -> None:
            turns.append(turn)
            if on_turn is not None:
                on_turn(turn)

        problem = self._task.from_question(question)
        scores = self.scores_of if self.rule.needs_tokens else None
        program = chain(self.dialogue, problem, 0, self.max_turns, self.rule, keep, scores)
        try:
            accepted, limit = await self._turns(program, turns, context, calls)
        except BaseException as error:
            vars(error)["turns"] = tuple(turns)
            raise
        finally:
            unused = await calls.close(turns)
        returned, signals = None, [turn.signals for turn in turns]
        if turns and (accepted or self.otherwise == "answer"):
            returned = turns[self.rule.answer_turn(signals, self.max_turns) - 1]
        reason = limit or f"no turn was accepted by: {self.rule}"
        return Result(
            accepted=accepted,
            answer=None if returned is None else returned.answer,
            returned=returned,
            turns=tuple(turns),
            reason=self.rule.reason(signals) if accepted else reason,
            certificate=None if limit else self.certificate,
            refusal=None if calls.refusal is None else calls.refusal.text,
            unused=unused,
        )

    async def _turns(
        self, program: RolloutFn, turns: Sequence[Turn], context: Sequence[Message], calls: "_Calls"
    ) -> tuple[bool, str]:
        """Complete a program's prompts.

        Returns:
            Whether the rule accepts the last turn, and what ended the turns before the rule did.
        """
        deadline = math.inf if self.seconds is None else time.monotonic() + self.seconds
        (prompt,) = next(program)
        while True:
            limit = self.completion_limit
            if self.max_tokens is not None:
                limit = min(limit, self.max_tokens - _completion_tokens(turns))
            if limit <= 0:
                return False, f"limit of {self.max_tokens} tokens"
            request = limited(prompt, limit)
            request = request._replace(messages=in_context(request.messages, context))
            try:
                completion = await calls.next(request, deadline, self.max_turns - len(turns))
                uncounted = completion and completion.text and not completion.completion_tokens
                if uncounted and self.max_tokens is not None:
                    message = "max_tokens needs a client whose replies count their tokens"
                    raise ServerError(message, 400)
            except Exception as error:
                if isinstance(error, ServerError) and error.refusal is not None:
                    calls.refusal = error.refusal
                    return False, str(error)
                reason = refused(error)
                if reason is None or not turns:
                    raise
                return False, f"turn {len(turns) + 1} was refused: {reason}"
            if completion is None:
                return False, f"limit of {self.seconds:g} seconds"
            try:
                (prompt,) = program.send([completion])
            except StopIteration as end:
                return end.value.ending.accepted, ""


class _Calls:
    """Calls of an asynchronous client, up to ``at_once`` at the same time."""

    def __init__(self, client: Client, at_once: int = 1) -> None:
        self._client, self._at_once = client, at_once
        self._running: dict[asyncio.Task[AnyCompletion], float] = {}
        """Each running call, with the time of its start in seconds."""
        self._taken = 0.0
        """Seconds of calls that were completed."""
        self.refusal: RemoteCompletion | None = None
        """What the model said in the call that it refused."""

    async def next(self, prompt: PromptRequest, deadline: float, most: int) -> AnyCompletion | None:
        """The completion that is there first; None if none is before the deadline.

        Args:
            prompt: the same for all that run at the same time.
            deadline: of the clock ``time.monotonic``.
            most: completions that may still be needed.
        """
        while len(self._running) < min(self._at_once, most):
            self._running[asyncio.ensure_future(self._call(prompt))] = time.monotonic()
        left = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait(self._running, timeout=left, return_when=first)
        for task, started in self._running.items():
            if task.done():
                del self._running[task]
                self._taken += time.monotonic() - started
                return task.result()
        return None

    async def _call(self, prompt: PromptRequest) -> AnyCompletion:
        reply = self._client(*prompt)
        return read_reply(await reply if inspect.isawaitable(reply) else reply)

    async def close(self, turns: Sequence[Turn]) -> Unused:
        """Cancel what runs; ``turns`` tell how fast it was."""
        now, prompt = time.monotonic(), turns[0].completion.prompt_tokens if turns else 0
        speed = _completion_tokens(turns) / self._taken if self._taken else 0.0
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        unused = [
            (prompt, (now - started) * speed)
            if task.cancelled() or task.exception()
            else (prompt, task.result().completion_tokens)
            for task, started in self._running.items()
        ]
        if self.refusal is not None:
            unused.append((self.refusal.prompt_tokens, self.refusal.completion_tokens))
        return Unused(len(unused), sum(p for p, _ in unused), round(sum(c for _, c in unused)))


class _CallsNow(_Calls):
    """Calls of a synchronous client, one after another."""

    async def next(self, prompt: PromptRequest, deadline: float, most: int) -> AnyCompletion | None:
        """The client's completion; None if there is no time for it."""
        if time.monotonic() >= deadline:
            return None
        reply = self._client(*prompt)
        if inspect.isawaitable(reply):
            if inspect.iscoroutine(reply):
                reply.close()
            raise TypeError("the client is asynchronous; use solve_async")
        return read_reply(reply)
