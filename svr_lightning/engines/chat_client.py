"""One client for every chat server: what is sent, and when it is sent again."""

import asyncio
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from svr_lightning.core.types import Decoding, Message, RemoteCompletion
from svr_lightning.engines.chat_answers import read_answer
from svr_lightning.engines.connections import Connections
from svr_lightning.engines.server_error import ServerError
from svr_lightning.errors import require

_CONNECT_SECONDS = 10.0
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
    """Seconds to wait after ``tries`` failures: exponential, and at least what the server asks.

    Args:
        tries: from 1.
        first_delay: seconds after the first failure.
        draw: uniform in [0, 1); takes away up to half of the wait.
        retry_after: the header, in seconds; a date is ignored.

    Examples:
        >>> retry_delay(3, 1.0, 0.5, None), retry_delay(1, 1.0, 0.0, "7")
        (3.0, 7.0)
    """
    backoff: float = first_delay * 2 ** (tries - 1) * (1 - draw / 2)
    header = retry_after or ""
    seconds = float(header[:9]) if header.isascii() and header.isdigit() else 0.0
    return min(max(backoff, seconds), LONGEST_WAIT)


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How often a request is sent, and for how long. All times are in seconds."""

    tries: int = 6
    first_delay: float = 1.0
    """Before the second try; each further delay is twice as long."""
    timeout: float | None = 600.0
    """Limit of one try, waiting in the server's queue included."""
    patience: float = 1800.0
    """No try begins later than this after the first one."""


class ChatClient:
    """Sends requests to one server, and sends them again after temporary failures.

    Args:
        base_url: address up to the version, such as ``http://127.0.0.1:8000/v1``.
        key: sent as bearer token, and kept out of messages.
        concurrency: requests at the server at the same time; further ones wait.
        retries: see :class:`Retries`.
    """

    def __init__(
        self, base_url: str, *, key: str | None, concurrency: int, retries: Retries
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._key, self._retries = key, retries
        self._http = Connections(concurrency, _CONNECT_SECONDS, key=key)
        self._slots = asyncio.Semaphore(concurrency)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def complete(self, body: Mapping[str, Any], seed: int = 0) -> RemoteCompletion:
        """Send a request until it is answered.

        Args:
            body: of the request.
            seed: of the waits between tries.

        Raises:
            ServerError: of the last try.
        """
        data, jitter = json.dumps(body).encode("ascii"), random.Random(seed)  # noqa: S311
        clock = asyncio.get_running_loop().time
        async with self._slots:
            deadline = clock() + self._retries.patience
            for tries in count(1):
                try:
                    answer = await self._http.exchange(self._url, data, self._retries.timeout)
                    return read_answer(answer, self._key)
                except ServerError as error:
                    error.tries = tries
                    first, draw = self._retries.first_delay, jitter.random()
                    delay = retry_delay(tries, first, draw, error.retry_after)
                    last = tries >= self._retries.tries or clock() + delay > deadline
                    if last or not error.temporary:
                        raise
                await asyncio.sleep(delay)
        raise AssertionError
