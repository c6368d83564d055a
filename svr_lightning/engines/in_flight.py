"""Base class of HTTP-backed engines: requests on a background event loop."""

import contextlib
from abc import abstractmethod
from concurrent import futures
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal

from svr_lightning.clients.connections import Connections
from svr_lightning.engines.base import Engine, Request


class RemoteEngine(Engine):
    """Each request is a coroutine, whose result is taken as soon as it is there."""

    def __init__(self) -> None:
        self._portal: BlockingPortal | None = None
        self._thread = contextlib.ExitStack()
        self._running: dict[int, futures.Future[Any]] = {}
        self._http: Connections

    @abstractmethod
    async def complete(self, request: Request) -> Any:
        """The output of a request, in the event loop."""

    @abstractmethod
    def connect(self) -> Connections:
        """Open connections, which last until the engine sleeps."""

    def loop(self) -> BlockingPortal:
        """The event loop; it starts, with connections, if it does not run."""
        if self._portal is None:
            self._http = self.connect()
            self._portal = self._thread.enter_context(start_blocking_portal())
        return self._portal

    def submit(self, request: Request) -> None:
        """Start a request."""
        if self.reads_tokens and self.version < 0:
            raise RuntimeError("the engine has no weights; it has to be synced first")
        self._running[request.id] = self.loop().start_task_soon(self.complete, request)

    def step(self) -> list[Any]:
        """Outputs of finished requests; waits for the first one, if anything runs.

        Raises:
            ConfigError: if no request can be completed.
        """
        running = self._running.values()
        done, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
        ended = [number for number, future in self._running.items() if future in done]
        return [self._running.pop(number).result() for number in ended]

    def cancel(self) -> None:
        """Stop all requests."""
        self.sleep()

    def sleep(self) -> None:
        """Stop all requests and close the connections; the next submit opens new ones."""
        if self._portal is None:
            return
        for future in list(self._running.values()):  # else each would find its server gone
            future.cancel()
        with contextlib.suppress(httpx.HTTPError, OSError):
            self._portal.call(self._http.close)
        self._running.clear()
        self._portal.call(self._portal.stop, True)
        self._thread.close()
        self._portal = None
