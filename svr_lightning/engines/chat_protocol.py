"""The chat-completions protocol on plain values: what is sent, and when it is sent again."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from svr_lightning.core.types import Decoding, Message
from svr_lightning.errors import require

LONGEST_WAIT = 60.0
"""Longest wait between two tries, in seconds, whatever the server asks for."""
SEEDS = 2**31
"""Seeds are smaller: some servers take 32 bits with a sign."""
Fields = Mapping[str, str | None]
"""From fields of a request to what a server calls them; None leaves a field out."""
_SENT = ("max_tokens", "temperature", "top_p", "seed", "top_k", "chat_template_kwargs", "logprobs")


def request_body(
    model: str,
    messages: Sequence[Message],
    sampling: Decoding,
    seed: int,
    *,
    chat_template_kwargs: Mapping[str, Any],
    logprobs: bool = False,
    fields: Fields | None = None,
) -> dict[str, Any]:
    """The body of a request. Fields that only some servers know are sent only if they are set."""
    body: dict[str, Any] = {
        "model": model,
        "messages": list(messages),
        "max_tokens": sampling.max_completion_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": seed % SEEDS,
    }
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if chat_template_kwargs:
        body["chat_template_kwargs"] = dict(chat_template_kwargs)
    if logprobs:
        body["logprobs"] = True
    named = {name: (fields or {}).get(name, name) for name in body}
    return {own: body[name] for name, own in named.items() if own is not None}


def check_fields(fields: Any, option: str) -> Fields:
    """Refuse what renames no field of a request.

    Raises:
        ConfigError: naming the option.
    """
    valid = isinstance(fields, Mapping) and all(
        name in _SENT and (own is None or isinstance(own, str)) for name, own in fields.items()
    )
    require(valid, f"{option} must map some of {', '.join(_SENT)} to other names, or to null")
    return dict(fields)


def request_key(body: Mapping[str, Any], seed: int) -> str:
    """A key of a request with all its content and its seed, even if that is not sent."""
    content = json.dumps({**body, "seed": seed}, sort_keys=True)
    return hashlib.sha256(content.encode("ascii")).hexdigest()


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
