"""The chat-completions protocol on plain values: what is sent, and what an answer means."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

from svr_lightning.core.types import Decoding, FinishReason, Message, RemoteCompletion
from svr_lightning.errors import one_line

LONGEST_WAIT = 60.0
"""Longest wait between two tries, in seconds, whatever the server asks for."""
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


class ChatError(ValueError):
    """A request without a chat completion; its message is one line without the key."""

    temporary = False
    """Whether the request is worth sending again."""
    tries = 1
    """How often it was sent."""
    status = 0
    """HTTP status of the answer, if that is the error."""
    retry_after: str | None = None
    """The server's header."""


class GoneError(ChatError):
    """No answer."""

    temporary = True


class MalformedError(ChatError):
    """An answer that is not a chat completion."""

    temporary = True


class UnusableError(ChatError):
    """A chat completion that cannot be counted."""


class StatusError(ChatError):
    """An HTTP error."""

    def __init__(self, status: int, message: str, retry_after: str | None) -> None:
        super().__init__(f"HTTP {status}, {message}")
        self.status, self.retry_after = status, retry_after
        self.temporary = is_temporary(status)


def request_body(
    model: str,
    messages: Sequence[Message],
    sampling: Decoding,
    seed: int,
    *,
    chat_template_kwargs: Mapping[str, Any],
    logprobs: bool = False,
) -> dict[str, Any]:
    """The body of a request. Fields that only some servers know are sent only if they are set."""
    body: dict[str, Any] = {
        "model": model,
        "messages": list(messages),
        "max_tokens": sampling.max_completion_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": seed,
    }
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if chat_template_kwargs:
        body["chat_template_kwargs"] = dict(chat_template_kwargs)
    if logprobs:
        body["logprobs"] = True
    return body


def request_key(body: Mapping[str, Any]) -> str:
    """A key of a request with all its content: model, messages, sampling and seed."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode("ascii")).hexdigest()


Count = Annotated[int, Meta(ge=0, lt=2**53)]


class _Message(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(Struct):
    message: _Message
    finish_reason: Any
    logprobs: Any = None


class _Answer(Struct):
    choices: Annotated[list[_Choice], Meta(min_length=1)]
    usage: Any = None


class _Usage(Struct):
    prompt_tokens: Count
    completion_tokens: Count


class _Token(Struct):
    token: str
    logprob: Annotated[float, Meta(gt=-(2.0**1000), le=0)]


class _Logprobs(Struct):
    content: list[_Token]


def read_answer(body: bytes) -> RemoteCompletion:
    """Read a server's answer; see :func:`read_completion`."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedError("the answer is no chat completion") from error
    return read_completion(answer)


def read_completion(answer: Any) -> RemoteCompletion:
    """The completion in a server's answer, which may be any JSON value.

    Raises:
        MalformedError: if it is no chat completion.
        UnusableError: if it does not say how it ended, or how long it is.
    """
    try:
        found = convert(answer, _Answer)
    except ValidationError as error:
        raise MalformedError("the answer is no chat completion") from error
    choice = found.choices[0]
    reason = choice.finish_reason
    if reason not in tuple(FinishReason):
        shown = one_line(reason) if isinstance(reason, str) else "none"
        raise UnusableError(f"the server ended it with {shown!r}, neither 'stop' nor 'length'")
    try:
        usage = convert(found.usage, _Usage)
    except ValidationError as error:
        raise UnusableError(
            "the server's answer has no usage, so its tokens cannot be counted"
        ) from error
    return RemoteCompletion(
        text=_text(choice.message, reason),
        finish_reason=FinishReason(reason),
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        tokens=_tokens(choice.logprobs),
    )


def _tokens(logprobs: Any) -> tuple[tuple[str, float], ...]:
    """Each token's text and log-probability; none if one of them is anything else."""
    try:
        return tuple((one.token, one.logprob) for one in convert(logprobs, _Logprobs).content)
    except ValidationError:
        return ()


def _text(message: _Message, reason: str) -> str:
    """The completion as the policy wrote it, with reasoning that the server separated.

    SPEC rule 1: a ``<think>`` that the template opened belongs to the text.
    """
    content, reasoning = message.content or "", message.reasoning_content or message.reasoning
    if not reasoning:
        opens, closes = content.find(_THINK_OPEN), content.find(_THINK_CLOSE)
        left_open = closes >= 0 and not 0 <= opens < closes
        return f"{_THINK_OPEN}\n{content}" if left_open else content
    thought = f"{_THINK_OPEN}\n" + reasoning.removeprefix("\n")
    if not content and reason == FinishReason.LENGTH:
        return thought  # cut off in mid-thought
    return f"{thought}{_THINK_CLOSE}\n" + content.removeprefix("\n")


def is_temporary(status: int) -> bool:
    """Whether a request with this HTTP status is worth sending again."""
    return status in (408, 409, 429) or status >= 500


def retry_delay(tries: int, first_delay: float, draw: float, retry_after: str | None) -> float:
    """Seconds to wait before the next try: exponential, jittered, at least what the server asks.

    Args:
        tries: how many have failed, from 1.
        first_delay: seconds after the first failure.
        draw: uniform in [0, 1); takes away up to half of the wait.
        retry_after: the header, in seconds; a date is ignored.

    Returns:
        At most :data:`LONGEST_WAIT`.

    Examples:
        >>> retry_delay(3, 1.0, 0.5, None), retry_delay(1, 1.0, 0.0, "7")
        (3.0, 7.0)
    """
    backoff: float = first_delay * 2 ** (tries - 1) * (1 - draw / 2)
    header = retry_after or ""
    seconds = float(header[:9]) if header.isascii() and header.isdigit() else 0.0
    return min(max(backoff, seconds), LONGEST_WAIT)


def server_message(body: bytes, key: str | None = None) -> str:
    """The message of an error answer, or its beginning, in one short line without the key."""
    text = body[:4000].decode("utf-8", errors="replace")
    try:
        answer = json.loads(text)
        error = answer.get("error", answer)
        text = error if isinstance(error, str) else str(error["message"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    # The key goes first: what is left of one that the line cuts could not be found.
    return one_line(text.replace(key, "[key]") if key else text) or "no message"
