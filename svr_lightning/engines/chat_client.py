"""One client for every chat server, with one way to retry."""

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx

from svr_lightning.core.types import RemoteCompletion
from svr_lightning.engines.chat_protocol import (
    ChatError,
    GoneError,
    StatusError,
    read_answer,
    retry_delay,
    server_message,
)
from svr_lightning.engines.connections import Connections
from svr_lightning.errors import typed_line

_CONNECT_SECONDS = 10.0


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
        self._tries: dict[object, int] = {}

    @property
    def highest_try(self) -> int:
        """Of the requests in progress, the number of the latest try."""
        return max(list(self._tries.values()), default=1)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def complete(self, body: Mapping[str, Any]) -> RemoteCompletion:
        """Send a request until it is answered.

        Raises:
            ChatError: of the last try.
        """
        data, jitter = json.dumps(body).encode("ascii"), random.Random(body["seed"])  # noqa: S311
        clock = asyncio.get_running_loop().time
        task = asyncio.current_task()
        async with self._slots:
            deadline = clock() + self._retries.patience
            try:
                for tries in count(1):
                    self._tries[task] = tries
                    try:
                        return await self._try(data)
                    except ChatError as error:
                        error.tries = tries
                        first, draw = self._retries.first_delay, jitter.random()
                        delay = retry_delay(tries, first, draw, error.retry_after)
                        last = tries >= self._retries.tries or clock() + delay > deadline
                        if last or not error.temporary:
                            raise
                    await asyncio.sleep(delay)
            finally:
                self._tries.pop(task, None)
        raise AssertionError

    async def _try(self, data: bytes) -> RemoteCompletion:
        limit = self._retries.timeout
        try:
            async with asyncio.timeout(limit):
                response, answer = await self._http.exchange(self._url, data)
        except TimeoutError as error:
            raise GoneError(f"no answer within {limit:.4g} seconds") from error
        except httpx.RequestError as error:
            raise GoneError(typed_line(error)) from error
        if response.status_code == 200:
            return read_answer(answer)
        header = response.headers.get("retry-after", "")
        readable = header and header.isascii() and header.isprintable()
        message = server_message(answer, self._key)
        raise StatusError(response.status_code, message, header if readable else None)
