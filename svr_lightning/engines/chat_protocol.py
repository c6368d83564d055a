"""The chat-completions protocol on plain values: what is sent, and what an answer means."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, TypeGuard

from svr_lightning.core.types import FinishReason, Message, RemoteCompletion
from svr_lightning.engines.base import SamplingParams
from svr_lightning.errors import one_line

RETRIED = frozenset({408, 409, 429})
"""Statuses below 500 that are temporary."""
LONGEST_WAIT = 60.0
"""Longest wait between two tries, in seconds, whatever the server asks for."""
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


class MalformedError(ValueError):
    """An answer that is not a chat completion; a retry may help."""


class UnusableError(ValueError):
    """A chat completion that cannot be counted; a retry would give it again."""


def request_body(
    model: str,
    messages: Sequence[Message],
    sampling: SamplingParams,
    *,
    chat_template_kwargs: Mapping[str, Any],
    logprobs: bool = False,
) -> dict[str, Any]:
    """The body of a request. Fields that only some servers know are sent only if they are set."""
    body: dict[str, Any] = {
        "model": model,
        "messages": list(messages),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
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
        choice = answer["choices"][0]
        text = _text(choice["message"], choice["finish_reason"])
        ended = choice["finish_reason"]
        usage = answer.get("usage")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise MalformedError("the answer is no chat completion") from error
    if ended not in tuple(FinishReason):
        said = one_line(ended) if isinstance(ended, str) else "none"
        raise UnusableError(f"the server ended it with {said!r}, neither 'stop' nor 'length'")
    counts: dict[str, Any] = usage if isinstance(usage, dict) else {}
    prompt_tokens, completion_tokens = counts.get("prompt_tokens"), counts.get("completion_tokens")
    if not (_is_count(prompt_tokens) and _is_count(completion_tokens)):
        raise UnusableError("the server's answer has no usage, so its tokens cannot be counted")
    return RemoteCompletion(
        text=text,
        finish_reason=FinishReason(ended),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        tokens=_tokens(choice.get("logprobs")),
    )


def _tokens(logprobs: Any) -> tuple[tuple[str, float], ...]:
    """Each token's text and log-probability; none if one of them is anything else."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    tokens = []
    for one in content if isinstance(content, list) else ():
        told: dict[str, Any] = one if isinstance(one, dict) else {}
        text, nats = told.get("token"), told.get("logprob")
        if not isinstance(text, str) or not isinstance(nats, int | float) or not -inf < nats <= 0:
            return ()
        tokens.append((text, float(nats)))
    return tuple(tokens)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _text(message: Mapping[str, Any], ended: Any) -> str:
    """The completion as the policy wrote it, with reasoning that the server separated.

    SPEC rule 1: a ``<think>`` that the template opened belongs to the text.
    """
    content = message.get("content")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(content, str | None) or not isinstance(reasoning, str | None):
        raise TypeError("content is no text")
    content = content or ""
    if not reasoning:
        opens, closes = content.find(_THINK_OPEN), content.find(_THINK_CLOSE)
        left_open = closes >= 0 and not 0 <= opens < closes
        return f"{_THINK_OPEN}\n{content}" if left_open else content
    thought = f"{_THINK_OPEN}\n" + reasoning.removeprefix("\n")
    if not content and ended == FinishReason.LENGTH:
        return thought  # cut off in mid-thought
    return f"{thought}{_THINK_CLOSE}\n" + content.removeprefix("\n")


def is_retried(status: int) -> bool:
    """Whether a request with this HTTP status is worth sending again."""
    return status in RETRIED or status >= 500


def retry_delay(tries: int, first_delay: float, draw: float, retry_after: str | None) -> float:
    """Seconds to wait before the next try: exponential, jittered, and at least what was asked.

    Args:
        tries: how many have failed, from 1.
        first_delay: seconds after the first failure.
        draw: uniform in [0, 1); takes away up to half of the wait.
        retry_after: the header, in seconds; a date is passed over.

    Returns:
        At most :data:`LONGEST_WAIT`.

    Examples:
        >>> retry_delay(3, 1.0, 0.5, None), retry_delay(1, 1.0, 0.0, "7")
        (3.0, 7.0)
    """
    own: float = first_delay * 2 ** (tries - 1) * (1 - draw / 2)
    asked = retry_after or ""
    seconds = float(asked[:9]) if asked.isascii() and asked.isdigit() else 0.0
    return min(max(own, seconds), LONGEST_WAIT)


def server_message(body: bytes, key: str | None = None) -> str:
    """The message of an error answer, or its beginning, in one short line without the key."""
    text = body[:4000].decode("utf-8", errors="replace")
    try:
        said = json.loads(text)
        error = said.get("error", said)
        text = error if isinstance(error, str) else str(error["message"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    # The key goes first: what is left of one that the line cuts could not be found.
    return one_line(text.replace(key, "[key]") if key else text) or "no message"
