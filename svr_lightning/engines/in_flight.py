"""Requests to servers, in an event loop in a separate thread."""

import concurrent.futures
import contextlib
import queue
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal

T = TypeVar("T")


class InFlight(Generic[T]):
    """Numbered coroutines; each result is taken as soon as it is there."""

    def __init__(self) -> None:
        self._portal: BlockingPortal | None = None
        self._thread = contextlib.ExitStack()
        self._running: dict[int, concurrent.futures.Future[T]] = {}
        self._ended = queue.SimpleQueue[tuple[int, concurrent.futures.Future[T]]]()

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
        future = self._running[number] = self._portal.start_task_soon(function, *arguments)
        ended = self._ended
        future.add_done_callback(lambda done: ended.put((number, done)))

    def take(self, *, wait: bool) -> list[tuple[int, T]]:
        """Finished results; ``wait`` for the first one, if anything runs."""
        found: list[tuple[int, T]] = []
        while self._running and (not self._ended.empty() or (wait and not found)):
            number, future = self._ended.get()
            if self._running.get(number) is future:
                del self._running[number]
                found.append((number, future.result()))
        return found

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
        self._ended = queue.SimpleQueue()
        self._portal.call(self._portal.stop, True)
        self._thread.close()
        self._portal = None
