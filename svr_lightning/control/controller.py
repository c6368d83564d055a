"""Adaptive inference over any chat client: ask, read the self-check, then refine or stop.

The turns are those of :func:`~svr_lightning.recipes.dialogues.chain`, the loop of training and
evaluation. This file adds limits, the handling of answers that the rule does not accept, and
synchronous and asynchronous clients. It needs neither torch nor an HTTP library.
"""

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast

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
    Trajectory,
    Turn,
)
from svr_lightning.engines.chat_protocol import read_answer, read_completion
from svr_lightning.errors import require
from svr_lightning.recipes.dialogues import (
    Dialogue,
    FreshTurns,
    RolloutFn,
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
Outcome = Literal["answered", "gave_up", "escalated"]
Otherwise = Literal["answer", "give_up", "escalate"]
OTHERWISE: tuple[Otherwise, ...] = ("answer", "give_up", "escalate")


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


class Call(NamedTuple):
    """A completion that the controller wants next."""

    client: Client
    messages: list[Message]
    max_tokens: int
    deadline: float
    """In seconds of ``time.monotonic``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a question ended."""

    outcome: Outcome
    """``answered`` by the policy, ``escalated`` to the second client and answered there, or
    ``gave_up`` without an answer."""
    accepted: bool
    """Whether the stopping rule accepts the answer."""
    answer: str | None
    """As the task extracts it; None if there is none."""
    returned: Turn | None
    """The turn that gave the answer; None if it gave up."""
    turns: tuple[Turn, ...]
    """All generated turns; one of the second client is the last."""
    ending: Ending
    """How the rule, or a limit, ended the turns of the first client."""
    reason: str
    """Why it ended, in a few words."""
    certificate: Certificate | None = None
    """The certificate that applies; None without one, or if a limit ended the trajectory."""

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
    """Completion tokens of all turns together. The turn that reaches it is cut off. The second
    client has as many again."""
    seconds: float | None = None
    """For all turns. :meth:`solve` checks it between calls and does not interrupt a client."""
    otherwise: Otherwise = "answer"
    """If the rule accepts no turn: return the turn that the rule prefers, give up, or escalate."""
    second: Client | None = None
    """Asked once, with the first prompt, if a question is escalated."""
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
        require(self.otherwise in OTHERWISE, f"otherwise={self.otherwise!r}: give {OTHERWISE}")
        require(
            self.otherwise != "escalate" or self.second is not None,
            "otherwise='escalate' needs a second client",
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
        with _turns_kept(turns), closing(self._calls(question, turns, on_turn)) as calls:
            step = _advance(calls, None)
            while isinstance(step, Call):
                reply = step.client(step.messages, step.max_tokens)
                if inspect.isawaitable(reply):
                    if inspect.iscoroutine(reply):
                        reply.close()
                    raise TypeError("the client is asynchronous; use solve_async")
                step = _advance(calls, read_reply(reply))
            return step

    async def solve_async(self, question: str, on_turn: OnTurn | None = None) -> Result:
        """Answer a question with an asynchronous or synchronous client; see :meth:`solve`."""
        turns: list[Turn] = []
        with _turns_kept(turns), closing(self._calls(question, turns, on_turn)) as calls:
            step = _advance(calls, None)
            while isinstance(step, Call):
                left = step.deadline - time.monotonic()
                completion = None
                try:
                    async with asyncio.timeout(None if left == math.inf else left) as clock:
                        reply = step.client(step.messages, step.max_tokens)
                        completion = read_reply(
                            await reply if inspect.isawaitable(reply) else reply
                        )
                except TimeoutError:
                    if not clock.expired():
                        raise
                step = _advance(calls, completion)
            return step

    # --- what both share -------------------------------------------------------------------------

    def _calls(
        self, question: str, turns: list[Turn], on_turn: OnTurn | None
    ) -> Generator[Call, AnyCompletion | None, Result]:
        """Yields calls, receives completions, or None if one did not come in time."""
        task = self._task
        problem = task.from_question(question)
        deadline = math.inf if self.seconds is None else time.monotonic() + self.seconds

        def keep(turn: Turn) -> None:
            # The second client's turn is its first and the question's last.
            turns.append(replace(turn, index=len(turns) + 1))
            if on_turn is not None:
                on_turn(turns[-1])

        scores = self.scores_of if self.rule.needs_tokens else None
        program = chain(self.dialogue, problem, 0, self.max_turns, self.rule, keep, scores)
        done = yield from self._run(program, self.client, turns, deadline)
        limit = done if isinstance(done, str) else None
        signals = [turn.signals for turn in turns]
        end = Ending(0, 0, False) if isinstance(done, str) else done.ending
        if limit and turns:
            end = Ending(len(turns), self.rule.answer_turn(signals, self.max_turns), False)
        assert end is not None
        reason = limit or f"no turn was accepted by: {self.rule}"
        if end.accepted:
            reason = self.rule.reason(signals)
        returned: Turn | None = None
        outcome: Outcome = "gave_up"
        if turns and (end.accepted or self.otherwise == "answer"):
            returned, outcome = turns[end.returned - 1], "answered"
        elif self.otherwise == "escalate" and self.second is not None:
            once = chain(self.dialogue, problem, 0, 1, None, keep)
            late = yield from self._run(once, self.second, (), deadline)
            if isinstance(late, str):
                limit = reason = late
            else:
                returned, outcome = turns[-1], "escalated"
        return Result(
            outcome=outcome,
            accepted=end.accepted,
            answer=None if returned is None else returned.answer,
            returned=returned,
            turns=tuple(turns),
            ending=end,
            reason=reason,
            certificate=None if limit else self.certificate,
        )

    def _run(
        self, program: RolloutFn, client: Client, turns: Sequence[Turn], deadline: float
    ) -> Generator[Call, AnyCompletion | None, Trajectory | str]:
        """Run a chain; returns its trajectory, or the limit that ended it before.

        Args:
            program: adds to ``turns``.
            client: asked.
            turns: their completion tokens count towards ``max_tokens``.
            deadline: see :class:`Call`.
        """
        most = self.completion_limit
        (asked,) = next(program)
        while True:
            used = sum(turn.completion.completion_tokens for turn in turns)
            left = most if self.max_tokens is None else min(most, self.max_tokens - used)
            if left <= 0:
                return f"limit of {self.max_tokens} tokens"
            prompt = limited(asked, left)
            completion = None
            if time.monotonic() < deadline:
                completion = yield Call(client, prompt.messages, prompt[1], deadline)
            if completion is None:
                return f"limit of {self.seconds:g} seconds"
            if self.max_tokens is not None and completion.text and not completion.completion_tokens:
                raise ValueError("max_tokens needs a client whose replies count their tokens")
            try:
                (asked,) = program.send([completion])
            except StopIteration as end:
                return cast(Trajectory, end.value)


def _advance(
    calls: Generator[Call, AnyCompletion | None, Result], completion: AnyCompletion | None
) -> Call | Result:
    """Send a completion to the program; returns the next call, or the result."""
    try:
        return calls.send(completion)
    except StopIteration as end:
        return cast(Result, end.value)


@contextmanager
def _turns_kept(turns: list[Turn]) -> Iterator[None]:
    """Add the turns so far to every exception that passes, cancellations included."""
    try:
        yield
    except BaseException as error:
        vars(error)["turns"] = tuple(turns)
        raise
