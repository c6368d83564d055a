"""Connections of clients: not too many, none of them silent for long, headers of bounded size.

uvicorn alone waits forever for the first request of a connection, and takes connections until the
process has no file descriptor left. Its parser h11 bounds headers; another one would not.
"""

import asyncio
import contextlib
import fcntl
import resource
import socket
import sys
import termios
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from svr_lightning.control.server import ChatServer
from svr_lightning.errors import ConfigError, one_line

GRACE = 10
"""Seconds for running requests after SIGTERM."""
_OTHER_FILES = 64
"""File descriptors besides those of connections."""
_LINGER = 1.0
"""Seconds for a client to read why its request was refused before it was sent."""
_QUEUE = 1024
"""Connections that the system holds until this process takes them."""


class Listener(uvicorn.Server):
    """Serves on a socket that is bound, within limits on connections, headers and waits.

    Args:
        server: what is served, and its limits.
        options: further ones of uvicorn.
    """

    def __init__(self, server: ChatServer, **options: Any) -> None:
        self.limits = limits = server.limits
        self.most = most_connections(limits.connections)
        self.waiting: dict[_Connection, None] = {}
        """Connections without a request in progress, those that have waited longest first."""
        settings: dict[str, Any] = {
            "http": partial(_Connection, self),
            "ws": "none",
            "access_log": False,
            "proxy_headers": False,
            "server_header": False,
            "h11_max_incomplete_event_size": limits.head,
            "timeout_graceful_shutdown": GRACE,
            # Clients close idle connections first (httpx after 5 seconds): a request that was on
            # its way to a closed one would fail.
            "timeout_keep_alive": limits.idle_seconds,
            "backlog": min(self.most, 128),  # taken in one go, before one of them can be closed
            **options,
        }
        super().__init__(uvicorn.Config(server.app(), **settings))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, with a longer queue than is taken in one go."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_QUEUE)


class _Connection(H11Protocol):
    """A connection that is closed if it waits too long for a request, or is in the way of one."""

    def __init__(self, listener: Listener, **options: Any) -> None:
        super().__init__(**options)
        self._listener = listener
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        """Bytes of an answer that the client had not taken when the present wait began."""

    @property
    def _untaken(self) -> int:
        """Bytes of an answer that the client has not taken: here, and those the system has."""
        held: int = self.transport.get_write_buffer_size()
        with contextlib.suppress(OSError, ValueError):  # a connection that is gone
            connection = self.transport.get_extra_info("socket")
            queued = fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))
            held += int.from_bytes(queued, sys.byteorder)
        return held

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        listener = self._listener
        if len(self.connections) > listener.most:
            oldest = next(iter(listener.waiting), self)
            listener.waiting.pop(oldest, None)
            oldest.transport.abort()
        self._wait(listener.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._busy:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._busy:  # the next request may have come before the answer
            unread = self.conn.their_state is h11.SEND_BODY
            if unread:  # of a refused request: no more of it is read, and the client reads why
                self.flow.pause_reading()
            self._wait(_LINGER if unread else self._listener.limits.idle_seconds)

    def send_400_response(self, msg: str) -> None:
        if self._busy:
            super().send_400_response(msg)  # which closes
            return
        head = f"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: {len(msg)}"
        self.transport.write(f"{head}\r\n\r\n{msg}".encode("ascii"))
        self.flow.pause_reading()  # a flood of headers costs no more than one of each connection
        self._wait(_LINGER)

    def _wait(self, seconds: float) -> None:
        """Wait for a request, however slowly its header arrives."""
        self._stop_waiting()
        if not self.transport.is_closing():
            self._listener.waiting[self] = None
        self._unsent = self._untaken
        self._timer = self.loop.call_later(seconds, self._end_of_wait, seconds)

    def _end_of_wait(self, seconds: float) -> None:
        """Close, unless the client is slow and has taken more of its answer meanwhile."""
        if 0 < self._untaken < self._unsent:
            self._wait(seconds)
        else:
            self.transport.abort()

    def _stop_waiting(self) -> None:
        self._listener.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()


def bound(host: str, port: int) -> socket.socket:
    """A socket at the address, which does not accept connections yet.

    Raises:
        ConfigError: if there can be none.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Its connections inherit this: clients that vanished without a word are noticed in the end.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise ConfigError(f"--host {host} --port {port}: {one_line(error)}") from error
    return listening


def most_connections(asked_for: int) -> int:
    """As many as wanted, or as the process has file descriptors for."""
    # Each may need another one upstream, and as many may be taken before one is closed.
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(min(asked_for, (files - _OTHER_FILES) // 3), 1)
