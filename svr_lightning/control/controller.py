"""Adaptive inference over any chat client: ask, read the self-check, then refine or stop.

The turns are those of :func:`~svr_lightning.recipes.dialogues.chain`, the loop of training and
evaluation. This file adds limits, synchronous and asynchronous clients, and a second model for
what stays unsure. It needs neither torch nor an HTTP library.
"""

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, NamedTuple

from svr_lightning.analysis.operating_point import Certificate
from svr_lightning.clients.chat_answers import (
    OF_ONE_REQUEST,
    ServerError,
    error_in,
    read_answer,
    read_chat_completion,
    whole,
)
from svr_lightning.core.evidence import scores_of_reply
from svr_lightning.core.parsing import THINK_OPEN, final_part
from svr_lightning.core.prompts import in_context
from svr_lightning.core.ranges import Count, Positive, check_fields
from svr_lightning.core.stopping import DEFAULT_TURNS, Confident, StopRule
from svr_lightning.core.types import (
    AnyCompletion,
    Completion,
    FinishReason,
    Message,
    RemoteCompletion,
    Turn,
)
from svr_lightning.errors import as_config_error, format_exception, one_line, require
from svr_lightning.recipes.dialogues import (
    Dialogue,
    FreshTurns,
    PromptRequest,
    RolloutGenerator,
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
text, which counts as complete; a chat completion as a mapping or as an object with
``model_dump`` (OpenAI SDK, LiteLLM); or an httpx response."""
Otherwise = Literal["answer", "give_up"]


def read_reply(reply: Any) -> AnyCompletion:
    """What a client returned, as a completion of at most :data:`LONGEST_TEXT` characters.

    Raises:
        ServerError: if it is not one of the forms that :data:`Client` lists, or the model refused.
    """
    kind = type(reply).__name__
    if isinstance(reply, str):
        reply = RemoteCompletion(text=whole("", reply))
    if hasattr(reply, "raise_for_status"):
        reply.raise_for_status()
        reply = read_answer(reply.content)
    if not isinstance(reply, Completion | RemoteCompletion):
        try:
            reply = read_chat_completion(
                reply.model_dump() if hasattr(reply, "model_dump") else reply
            )
        except ServerError as error:
            if error.status == 200 and error.temporary:
                error.args = (
                    f"the client returned {kind}: {error}. Return text, a chat completion of the "
                    "OpenAI SDK, of LiteLLM or as a mapping, or an httpx response",
                )
            raise
    completion: AnyCompletion = reply
    if len(completion.text) > LONGEST_TEXT:
        shortened = completion.text[:LONGEST_TEXT]
        return replace(completion, text=shortened, finish_reason=FinishReason.LENGTH)
    return completion


def refused(error: object) -> str | None:
    """Why this one request was refused, by the model or, as an HTTP status says, by its server.

    Another one may be answered: its prompt may be shorter, or pass a filter of content.
    """
    if getattr(error, "refusal", None) is not None:
        return str(error)
    response = getattr(error, "response", None)
    named = ((error, "status"), (error, "status_code"), (response, "status_code"))
    if not any(getattr(one, name, None) in OF_ONE_REQUEST for one, name in named):
        return None
    message, _, _ = error_in(getattr(response, "content", b"") or str(error).encode())
    return message or one_line(error)


class Unused(NamedTuple):
    """Calls without a turn: refused by the model, or cancelled.

    They are cancelled once another sample is accepted, and at the limit of time.
    """

    calls: int
    prompt_tokens: int
    completion_tokens: int
    """Those of cancelled calls are estimated from the time that they ran: no server counts them."""


class Escalation(NamedTuple):
    """What came of asking the second model."""

    completion: AnyCompletion | None
    """What it said; None if it said nothing."""
    error: str = ""
    """Why this is no answer."""

    @property
    def answer(self) -> AnyCompletion | None:
        """Its answer; None if it gave none."""
        return None if self.error else self.completion


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a question ended."""

    accepted: bool
    """Whether the stopping rule accepts the answer. It never judges the second model's."""
    answer: str | None
    """As the task extracts it; None if there is none."""
    returned: Turn | None
    """The turn that gave the answer; None if it was given up, or is the second model's."""
    turns: tuple[Turn, ...]
    """All generated turns."""
    reason: str
    """Why it ended, in a few words."""
    certificate: Certificate | None
    """The certificate that covers the answer; None if none does."""
    uncertified: tuple[str, ...]
    """Why the controller's certificate does not."""
    refusal: str | None
    """What the model said instead of another turn, if it refused."""
    unused: Unused
    escalation: Escalation | None = None
    """The call of the second model; None if it was not asked."""

    @property
    def confidence(self) -> float | None:
        """What the returned turn states, in [0, 1]; None without a turn or its self-check."""
        check = None if self.returned is None else self.returned.check
        return None if check is None else check.confidence

    @property
    def completion(self) -> AnyCompletion | None:
        """The completion that holds the answer; None if it was given up."""
        if self.returned is not None:
            return self.returned.completion
        return self.escalation and self.escalation.answer

    @property
    def outcome(self) -> Literal["answered", "gave_up"]:
        """Whether there is an answer."""
        return "gave_up" if self.completion is None else "answered"

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all calls, also of those that gave no turn; 0 if some are not known."""
        return self._spent("prompt_tokens")

    @property
    def completion_tokens(self) -> int:
        """Completion tokens of the same calls; 0 if some are not known."""
        return self._spent("completion_tokens")

    def _spent(self, kind: str) -> int:
        if any(said.text and not getattr(said, kind) for said in self.completions):
            return 0
        return sum(getattr(one, kind) for one in (self.unused, *self.completions))

    @property
    def completions(self) -> list[AnyCompletion]:
        """The completions of all turns, then what the second model said."""
        completions = [turn.completion for turn in self.turns]
        if self.escalation is not None and self.escalation.completion is not None:
            completions.append(self.escalation.completion)
        return completions


@dataclass(frozen=True)
class Controller:
    """Adaptive inference over a chat client: ``Controller(client, task, ...)``.

    A client's error, and a cancellation, are raised as they are. The exception has the turns so far
    as its attribute ``turns``. Where a server refuses a turn after the first (HTTP 400, 413, 422),
    or the model itself refuses, the trajectory ends there instead.

    Raises:
        ConfigError: if an option is out of range, or the certificate is for other settings.

    Examples:
        >>> text = "<answer>2+2</answer> VERDICT: CORRECT; CONFIDENCE: 0.9"
        >>> result = Controller(lambda messages, max_tokens: text, "countdown").solve("2 2 = 4")
        >>> result.outcome, result.answer, result.reason
        ('answered', '2+2', 'CORRECT at confidence 0.9 >= 0.85')
    """

    client: Client | None
    """None for a server, which gives each request a client of its own."""
    task: str | Task
    """Extracts answers, decides which are equal and, with the dialogue, writes the prompts."""
    _: KW_ONLY
    rule: StopRule = field(default_factory=Confident)
    max_turns: Count = DEFAULT_TURNS
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
    escalate: Client | None = None
    """A second, stronger model. If no turn is accepted it gets the question once, as the user put
    it, and its answer is returned. If it fails, the first model's unsure answer is."""

    def __post_init__(self) -> None:
        check_fields(self)
        with as_config_error():
            _ = self.named_task
        require(
            self.at_once == 1 or isinstance(self.dialogue, FreshTurns),
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
        unsure = self.otherwise if self.escalate is None else "escalate"
        departures = certificate.departures(self.rule, self.max_turns, drawing, unsure)
        if self.at_once > 1:  # short completions come first
            departures.append(f"at_once={self.at_once}")
        return departures

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

    # --- two ways to call a client ---------------------------------------------------------------

    def solve(self, question: str, *, context: Sequence[Message] = ()) -> Result:
        """Answer a question, one call after another.

        Args:
            question: as the policy sees it.
            context: messages before the question: of the system, or of an earlier conversation.
        """
        work = self._solve(question, context, _CallsNow)
        try:
            work.send(None)  # a synchronous client never suspends it
        except StopIteration as end:
            result: Result = end.value
            return result
        raise AssertionError

    async def solve_async(self, question: str, *, context: Sequence[Message] = ()) -> Result:
        """Answer a question with an asynchronous or synchronous client; see :meth:`solve`."""
        return await self._solve(question, context, _Calls)

    # --- what both share -------------------------------------------------------------------------

    async def _solve(
        self,
        question: str,
        context: Sequence[Message],
        kind: type["_Calls"],
    ) -> Result:
        assert self.client is not None, "a controller without a client asks nobody"
        turns: list[Turn] = []
        problem = self.named_task.from_question(question)
        scores = self.scores_of if self.rule.needs_tokens else None
        rollout = chain(self.dialogue, problem, 0, self.max_turns, self.rule, turns.append, scores)
        deadline = math.inf if self.seconds is None else time.monotonic() + self.seconds
        calls = kind(self.client, self.at_once)
        escalation = None
        try:
            try:
                accepted, limit = await self._turns(rollout, turns, context, calls, deadline)
            finally:
                unused = await calls.close(turns)
            if not accepted and self.escalate is not None:
                escalation = await self._escalate(kind(self.escalate), question, context, deadline)
        except BaseException as error:
            vars(error)["turns"] = tuple(turns)
            raise
        signals = [turn.signals for turn in turns]
        reason = limit or f"no turn was accepted by: {self.rule}"
        answer = returned = None
        second = escalation and escalation.answer
        if second is not None:
            answer = self.named_task.read(second.text, truncated=second.truncated).answer
        elif turns and (accepted or self.otherwise == "answer"):
            returned = turns[self.rule.answer_turn(signals, self.max_turns) - 1]
            answer = returned.answer
        certificate = self.certificate
        uncertified: tuple[str, ...] = ()
        if certificate is not None:
            uncertified = certificate.unrecorded
            if limit or not (accepted or certificate.of_all):
                whose = "the answer is the second model's" if second else "it is not accepted"
                uncertified = (*uncertified, limit or whose)
        return Result(
            accepted=accepted,
            answer=answer,
            returned=returned,
            turns=tuple(turns),
            reason=self.rule.reason(signals) if accepted else reason,
            certificate=None if uncertified else certificate,
            uncertified=uncertified,
            refusal=None if calls.refusal is None else calls.refusal.text,
            unused=unused,
            escalation=escalation,
        )

    async def _turns(
        self,
        rollout: RolloutGenerator,
        turns: Sequence[Turn],
        context: Sequence[Message],
        calls: "_Calls",
        deadline: float,
    ) -> tuple[bool, str]:
        """Complete a rollout's prompts.

        Returns:
            Whether the rule accepts the last turn, and what ended the turns before the rule did.
        """
        (prompt,) = next(rollout)
        while True:
            request = limited(prompt, self.completion_limit)
            request = request._replace(messages=in_context(request.messages, context))
            try:
                completion = await calls.next(request, deadline, self.max_turns - len(turns))
            except Exception as error:
                reason = refused(error)
                calls.refusal = getattr(error, "refusal", None)
                if reason is None or not (turns or calls.refusal):
                    raise
                of_server = f"turn {len(turns) + 1} was refused: {reason}"
                return False, reason if calls.refusal else of_server
            if completion is None:
                return False, f"limit of {self.seconds:g} seconds"
            prompts, accepted = await calls.read(rollout, completion)
            if not prompts:
                return accepted, ""
            (prompt,) = prompts

    async def _escalate(
        self,
        calls: "_Calls",
        question: str,
        context: Sequence[Message],
        deadline: float,
    ) -> Escalation:
        """Ask the second model once; it fails without an exception."""
        messages: list[Message] = [*context, {"role": "user", "content": question}]
        try:
            prompt = PromptRequest(messages, self.completion_limit)
            completion = await calls.next(prompt, deadline, 1)
        except ServerError as error:
            return Escalation(error.refusal, str(error))
        except Exception as error:
            return Escalation(None, format_exception(error))
        finally:
            await calls.close(())
        if completion is None:
            return Escalation(None, f"limit of {self.seconds:g} seconds")
        said = final_part(completion.text).partition(THINK_OPEN)[0]  # not its reasoning
        read = self.named_task.read(completion.text, truncated=completion.truncated)
        return Escalation(
            completion, "" if said.strip() or read.answer else "an answer without text"
        )


def _advance(rollout: RolloutGenerator, completion: AnyCompletion) -> tuple[Any, bool]:
    """The next prompts, or none and whether the rule accepts the last turn."""
    try:
        return rollout.send([completion]), False
    except StopIteration as end:
        return None, end.value.ending.accepted


class _Calls:
    """Calls of an asynchronous client, up to ``at_once`` at the same time."""

    long_text: float = 2**14
    """A longer text is read in a thread, since other questions share the event loop."""

    def __init__(self, client: Client, at_once: int = 1) -> None:
        self._client = client
        self._at_once = at_once
        self._running: dict[asyncio.Task[AnyCompletion], float] = {}
        """Each running call, with the time of its start in seconds."""
        self._taken = 0.0
        """Seconds of calls that were completed."""
        self._limit = 0
        """Completion tokens that no call exceeds."""
        self.refusal: RemoteCompletion | None = None
        """What the model said in the call that it refused."""
        self._refusals: list[RemoteCompletion | None] = []
        """What it said in other calls that were refused while further ones ran."""

    async def next(self, prompt: PromptRequest, deadline: float, most: int) -> AnyCompletion | None:
        """The completion that is there first; None if none is before the deadline, or it is over.

        A refusal counts if no other call runs.

        Args:
            prompt: the same for all that run at the same time.
            deadline: of the clock ``time.monotonic``.
            most: completions that may still be needed.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        self._limit = prompt.max_completion_tokens
        while len(self._running) < min(self._at_once, most):
            self._running[asyncio.ensure_future(self._call(prompt))] = time.monotonic()
        limit = None if left == math.inf else left
        await asyncio.wait(self._running, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        for task, started in self._running.items():
            if task.done():
                del self._running[task]
                self._taken += time.monotonic() - started
                error = task.exception()
                if self._running and refused(error):
                    self._refusals.append(getattr(error, "refusal", None))
                    return await self.next(prompt, deadline, len(self._running))
                return task.result()
        return None

    async def _call(self, prompt: PromptRequest) -> AnyCompletion:
        reply = self._client(*prompt)
        return read_reply(await reply if inspect.isawaitable(reply) else reply)

    async def read(self, rollout: RolloutGenerator, completion: AnyCompletion) -> tuple[Any, bool]:
        """Give a rollout its completion; see :func:`_advance`."""
        if len(completion.text) <= self.long_text:
            return _advance(rollout, completion)
        return await asyncio.to_thread(_advance, rollout, completion)

    async def close(self, turns: Sequence[Turn]) -> Unused:
        """Cancel what runs; ``turns`` tell how fast it was."""
        now = time.monotonic()
        prompt = turns[0].completion.prompt_tokens if turns else 0
        written = sum(turn.completion.completion_tokens for turn in turns)
        speed = written / self._taken if self._taken else 0.0
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        unused = [
            (prompt, min((now - started) * speed, self._limit))
            if task.cancelled() or task.exception()
            else (prompt, task.result().completion_tokens)
            for task, started in self._running.items()
        ]
        refusals = filter(None, (*self._refusals, self.refusal))
        unused += ((said.prompt_tokens, said.completion_tokens) for said in refusals)
        return Unused(len(unused), sum(p for p, _ in unused), round(sum(c for _, c in unused)))


class _CallsNow(_Calls):
    """Calls of a synchronous client, one after another."""

    long_text = math.inf

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
