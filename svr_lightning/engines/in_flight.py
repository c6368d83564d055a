"""Requests to servers, in an event loop in a separate thread."""

import contextlib
from collections.abc import Awaitable, Callable
from concurrent import futures
from typing import Any, Generic, TypeVar

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal

T = TypeVar("T")


class InFlight(Generic[T]):
    """Numbered coroutines; each result is taken as soon as it is there."""

    def __init__(self) -> None:
        self._portal: BlockingPortal | None = None
        self._thread = contextlib.ExitStack()
        self._running: dict[int, futures.Future[T]] = {}

    def __len__(self) -> int:
        return len(self._running)

    @property
    def is_open(self) -> bool:
        """Whether the thread runs."""
        return self._portal is not None

    def open(self) -> None:
        """Start the thread."""
        self._portal = self._thread.enter_context(start_blocking_portal())

    def start(self, number: int, function: Callable[..., Awaitable[T]], *arguments: Any) -> None:
        """Run ``function(*arguments)`` under this number."""
        assert self._portal is not None
        self._running[number] = self._portal.start_task_soon(function, *arguments)

    def take(self, *, wait: bool) -> list[tuple[int, T]]:
        """Finished results; ``wait`` for the first one, if anything runs."""
        running = self._running.values()
        done, _ = futures.wait(running, None if wait else 0, futures.FIRST_COMPLETED)
        ended = [number for number, future in self._running.items() if future in done]
        return [(number, self._running.pop(number).result()) for number in ended]

    def drop(self, number: int) -> None:
        """Stop one of them, whose result is not taken."""
        if future := self._running.pop(number, None):
            future.cancel()

    def call(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Run a function in the thread and wait for its result."""
        assert self._portal is not None
        return self._portal.call(function, *arguments)

    def close(self, disconnect: Callable[[], Awaitable[Any]]) -> None:
        """Close the connections by ``disconnect``, and stop all coroutines and the thread."""
        if self._portal is None:
            return
        for future in list(self._running.values()):  # else each would find its server gone
            future.cancel()
        with contextlib.suppress(httpx.HTTPError, OSError):
            self._portal.call(disconnect)
        self._running.clear()
        self._portal.call(self._portal.stop, True)
        self._thread.close()
        self._portal = None
