"""One request to the server: sent, retried, read within bounds."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import httpx
import numpy as np

from svr_lightning.core.types import RemoteCompletion
from svr_lightning.endpoint.protocol import (
    MalformedError,
    UnusableError,
    excerpt,
    is_retried,
    read_answer,
    retry_delay,
    server_message,
)
from svr_lightning.endpoint.settings import EndpointSettings
from svr_lightning.errors import ConfigError
from svr_lightning.rollout.driver import RequestError

LARGEST_ANSWER = 8 * 2**20
"""Bytes of one answer; what is longer is not read."""
_CONNECT_SECONDS = 30.0


class ServerGoneError(ConfigError):
    """The server did not answer, however often it was asked."""


class _Failure(NamedTuple):
    """A try that may be worth repeating."""

    reason: str
    retry_after: str | None = None
    answered: bool = False
    """Whether it was a whole answer, only not one to be read."""


class ChatClient:
    """Asks for completions.

    Args:
        settings: which server, and how patiently.
        http: a client from :func:`open_http`.
        seed: of the jitter between tries.
    """

    def __init__(self, settings: EndpointSettings, http: httpx.AsyncClient, seed: int) -> None:
        self._settings = settings
        self._http = http
        self._url = f"{settings.base_url}/chat/completions"
        self._draws = np.random.default_rng(seed)

    async def complete(self, body: Mapping[str, Any]) -> RemoteCompletion | RequestError:
        """Send a request until it is answered.

        Returns:
            The completion; or why this request has none, where another try would end the same.

        Raises:
            ServerGoneError: if the server does not answer in all tries.
            ConfigError: if it answers that it is not to be asked like this by anyone.
        """
        data = json.dumps(body).encode("ascii")
        failure = _Failure("")
        for tries in range(1, self._settings.tries + 1):
            outcome = await self._attempt(data)
            if not isinstance(outcome, _Failure):
                return outcome
            failure = outcome
            if tries < self._settings.tries:
                await asyncio.sleep(
                    retry_delay(
                        tries,
                        self._settings.first_delay,
                        float(self._draws.random()),
                        failure.retry_after,
                        datetime.now(UTC),
                    )
                )
        said = f"in {self._settings.tries} tries, the last time: {failure.reason}"
        if failure.answered:
            return RequestError(f"no chat completion {said}")
        raise ServerGoneError(f"{self._settings.base_url} did not answer {said}")

    async def _attempt(self, data: bytes) -> RemoteCompletion | RequestError | _Failure:
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await self._exchange(data)
        except TimeoutError:
            return _Failure(f"no answer within --timeout {self._settings.timeout:g} seconds")
        except httpx.RequestError as error:
            return _Failure(excerpt(f"{type(error).__name__} {error}"))
        except MalformedError as error:
            return _Failure(str(error), answered=True)
        except UnusableError as error:
            return RequestError(str(error))

    async def _exchange(self, data: bytes) -> RemoteCompletion | RequestError | _Failure:
        async with self._http.stream("POST", self._url, content=data) as response:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > LARGEST_ANSWER:
                    raise MalformedError(f"an answer of more than {LARGEST_ANSWER} bytes")
            status, headers = response.status_code, response.headers
        if status == 200:
            return read_answer(bytes(body))
        said = f"HTTP {status}, {self._without_key(server_message(bytes(body)))}"
        if is_retried(status):
            return _Failure(said, headers.get("retry-after"))
        if status in (401, 403):
            raise ConfigError(
                f"{self._settings.base_url} lets nobody in with the key of the environment "
                f"variable {self._settings.key_name} ({said}); set it, or name another variable "
                "with --api-key-env"
            )
        if status == 404:
            raise ConfigError(
                f"{self._settings.base_url} has no model {self._settings.model_name!r}, or is not "
                f"the right address ({said}); --model-name must be one that "
                f"{self._settings.base_url}/models lists"
            )
        if not 400 <= status < 500:
            raise ConfigError(
                f"{self._settings.base_url} answers with {said}; --base-url must be the address "
                "of the server itself, usually ending in /v1"
            )
        return RequestError(f"the server refuses it: {said}")

    def _without_key(self, text: str) -> str:
        key = self._settings.api_key()
        return text.replace(key, "[key]") if key else text


def open_http(settings: EndpointSettings) -> httpx.AsyncClient:
    """A connection pool that checks certificates, follows no redirect and sends the key.

    Raises:
        ConfigError: see :meth:`EndpointSettings.api_key`.
    """
    key = settings.api_key()
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    return httpx.AsyncClient(
        headers=headers | ({"Authorization": f"Bearer {key}"} if key else {}),
        timeout=httpx.Timeout(None, connect=min(_CONNECT_SECONDS, settings.timeout)),
        limits=httpx.Limits(
            max_connections=settings.concurrency, max_keepalive_connections=settings.concurrency
        ),
    )
