"""The vLLM servers behind one engine: requests to them, and which of them are in use.

Coroutines, for one event loop. A server that dies, hangs or answers with other weights is left out
until weights are pushed again; its unfinished requests go to the others. Without any left, one that
is healthy again is tried once more.
"""

import asyncio
import json
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from svr_lightning.engines.base import Request
from svr_lightning.engines.chat_protocol import MalformedError, server_message
from svr_lightning.engines.connections import Connections
from svr_lightning.engines.generate_protocol import (
    Drawn,
    Facts,
    PassingError,
    ServerError,
    choose,
    generate_body,
    read_facts,
    read_generation,
)
from svr_lightning.errors import ConfigError, typed_line

GENERATE = "/inference/v1/generate"
PATIENCE = 20
"""Without a server left, one is waited for as many times ``health_seconds``."""


class ServerPool:
    """Talks to vLLM servers.

    Args:
        urls: their addresses, which are also their names.
        timeout: seconds that an answer may take.
        health_seconds: without an answer for so long, a server is asked for its health, and has as
            long to tell it. :data:`PATIENCE` times as long is waited for one, if none is left.
    """

    def __init__(self, urls: Sequence[str], timeout: float, health_seconds: float) -> None:
        self.urls = [*urls]
        self.facts: dict[str, Facts] = {}
        """Of servers that have told them."""
        self.down: dict[str, str] = {}
        """Servers that are not in use, with the reason."""
        self.max_model_len = 0
        self.vocabulary = 0
        """Tokens that the policy knows."""
        self.tied = False
        """The policy's output layer is its embedding."""
        self._timeout, self._health_seconds = timeout, health_seconds
        self._running: dict[str, int] = {}
        self._http: Connections
        self._room: asyncio.Semaphore
        self._returning: asyncio.Lock

    @property
    def in_use(self) -> list[str]:
        """The servers that requests go to."""
        return [url for url in self.urls if url not in self.down]

    def require_one(self) -> None:
        """Require a server in use.

        Raises:
            ConfigError: with the reason for each server.
        """
        if not self.in_use:
            why = "; ".join(f"{url}: {self.down[url]}" for url in self.urls)
            raise ConfigError(
                f"no server of model.engine.urls is left ({why}). Start them as docs/scaling.md "
                "says; a training then goes on with --ckpt_path last"
            )

    async def open(self, room: int) -> None:
        """Get ready, for at most ``room`` requests at the servers."""
        self._running = dict.fromkeys(self.urls, 0)
        self._room = asyncio.Semaphore(room)
        self._returning = asyncio.Lock()
        # None is kept open: a server may close an idle one just when it is used again.
        self._http = Connections(room, self._health_seconds, kept=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    # --- what they are --------------------------------------------------------------------------

    async def meet(self) -> None:
        """Ask all servers for their options. Those that do not answer may be used later.

        Raises:
            ConfigError: if one was started in a way that cannot train.
        """

        async def ask(url: str) -> bytes | str:
            try:
                return await self._ask(url, "/server_info?config_format=json")
            except ServerError as error:
                return str(error)

        answers = await asyncio.gather(*(ask(url) for url in self.urls))
        for url, answer in zip(self.urls, answers, strict=True):
            if isinstance(answer, str):
                self.down[url] = answer
                continue
            try:
                self._note(url, answer)
            except ServerError as error:
                raise ConfigError(f"{url}: {error}") from error

    def _note(self, url: str, answer: bytes) -> None:
        """Store a server's options.

        Raises:
            ServerError: if it cannot serve this policy beside the others.
        """
        facts = read_facts(answer, self.max_model_len)
        for other in (self.facts[url] for url in self.urls if url in self.facts):
            if (facts.dtype, facts.wrapped) != (other.dtype, other.wrapped):
                raise ServerError("its model is of another type or class than other servers'")
        if facts.on_cpu and self.tied:
            raise ServerError(
                "the policy's output layer is its embedding, of which vLLM on a CPU keeps a copy "
                "that no reload reaches; use a GPU, or a policy with an output layer of its own"
            )
        self.facts[url] = facts

    # --- weights --------------------------------------------------------------------------------

    async def push(self, folder: Path, weights: str) -> list[str]:
        """Make every server load a folder and use a name for these weights from then on.

        Returns:
            The servers that are in use again.
        """
        before = self.down
        await self._load_all(folder, weights)
        if not self.in_use and await self._wait_for_health():
            await self._load_all(folder, weights)
        return [url for url in self.in_use if url in before]

    async def _load_all(self, folder: Path, weights: str) -> None:
        found = await asyncio.gather(*(self._load(url, folder, weights) for url in self.urls))
        self.down = {u: why for u, why in zip(self.urls, found, strict=True) if why is not None}

    async def _load(self, url: str, folder: Path, weights: str) -> str | None:
        """Make a server load weights; a string is the reason why it has not."""
        load = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        try:
            await self._check_health(url)
            # It may have been restarted with other options since the last push.
            self._note(url, await self._ask(url, "/server_info?config_format=json"))
            try:
                await self._ask(url, "/collective_rpc", load)
            except ServerError as error:
                return f"it has not loaded {folder}, which has to be the same there: {error}"
            if json.loads(await self._ask(url, "/reset_prefix_cache", {})) != {"success": True}:
                return "it would not forget what the old weights cached"
            await self._ask(url, "/update_weight_version", {"new_version": weights})
        except (ServerError, ValueError) as error:
            return str(error)
        return None

    # --- requests -------------------------------------------------------------------------------

    async def complete(self, request: Request, stop_ids: Sequence[int], weights: str) -> Drawn:
        """Ask one server after the other, until one answers.

        Raises:
            ConfigError: if no server is left, for the second time or for too long.
        """
        body = generate_body(request, stop_ids)
        waited = False
        async with self._room:
            while True:
                if not (self.in_use or waited):
                    await self._return()
                    waited = True
                self.require_one()
                slots = {url: self.facts[url].slots for url in self.in_use}
                url = choose({url: self._running[url] for url in slots}, slots)
                self._running[url] += 1
                try:
                    said = await self._ask(url, GENERATE, body)
                    most = request.sampling.max_tokens
                    return read_generation(said, weights, most, self.vocabulary)
                except ServerError as error:
                    self.down.setdefault(url, str(error))
                finally:
                    self._running[url] -= 1

    async def _return(self) -> None:
        """If no server is in use, use those again that are healthy, as soon as one is.

        Their answers are still refused if they have other weights by now.
        """
        async with self._returning:  # once for all requests
            if not self.in_use:
                for url in await self._wait_for_health():
                    if url in self.facts:
                        self.down.pop(url, None)

    async def _wait_for_health(self) -> list[str]:
        """The servers that are healthy, as soon as one is; none after a while."""
        patience = PATIENCE * self._health_seconds
        warnings.warn(  # by each process: the first one may still have all of its servers
            f"no server of model.engine.urls is left; waiting {patience:g} s for one", stacklevel=2
        )
        end = time.monotonic() + patience
        while True:
            found = await asyncio.gather(
                *(self._check_health(url) for url in self.urls), return_exceptions=True
            )
            healthy = [url for url, fault in zip(self.urls, found, strict=True) if fault is None]
            if healthy or time.monotonic() > end:
                return healthy
            await asyncio.sleep(self._health_seconds / 10)

    async def _ask(self, url: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """What a server answers; after a passing fault it is asked again, if it is healthy."""
        try:
            return await self._watch(url, path, body)
        except PassingError:
            await self._check_health(url)
            return await self._watch(url, path, body)

    async def _watch(self, url: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        """One answer, or an error as soon as the server does not answer a health check."""
        answer = asyncio.ensure_future(self._exchange(url, path, body, self._timeout))
        try:
            while True:
                await asyncio.wait({answer}, timeout=self._health_seconds)
                if answer.done():
                    return answer.result()
                await self._check_health(url)
        finally:
            answer.cancel()

    async def _check_health(self, url: str) -> None:
        try:
            await self._exchange(url, "/health", None, self._health_seconds)
        except PassingError as error:  # not asked twice
            raise ServerError(str(error)) from error

    async def _exchange(
        self, url: str, path: str, body: Mapping[str, Any] | None, limit: float
    ) -> bytes:
        """One answer.

        Raises:
            PassingError: if the connection fails, or the server says that it does.
            ServerError: if there is no answer within ``limit`` seconds, or another fault.
        """
        data = None if body is None else json.dumps(body).encode("ascii")
        try:
            async with asyncio.timeout(limit):
                response, said = await self._http.exchange(url + path, data)
        except TimeoutError as error:
            raise ServerError(f"no answer from {path} within {limit:.4g} seconds") from error
        except httpx.RequestError as error:
            raise PassingError(typed_line(error)) from error
        except MalformedError as error:
            raise ServerError(str(error)) from error
        if response.status_code != 200:
            kind = PassingError if response.is_server_error else ServerError
            raise kind(f"HTTP {response.status_code} from {path}, {server_message(said)}")
        return said
