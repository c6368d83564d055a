"""One client for every chat server, with one way to retry."""

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from svr_lightning.core.types import RemoteCompletion
from svr_lightning.engines.chat_answers import read_answer
from svr_lightning.engines.chat_protocol import retry_delay
from svr_lightning.engines.connections import Connections
from svr_lightning.engines.server_error import ServerError

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
