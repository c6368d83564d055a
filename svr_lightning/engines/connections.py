"""HTTP connections to servers of models."""

import math
from itertools import cycle

import httpx

from svr_lightning.engines.chat_protocol import MalformedError

LARGEST_ANSWER = 8 * 2**20
"""Bytes of one answer; a longer one is not read."""
_TOGETHER = 4
"""Connections of a pool, about. Before and after each request, a pool looks at all that it has, and
at all again for each that is idle: in one pool of 200 a request costs six times as much."""


class Connections:
    """Connections that check certificates, follow no redirect and send the key.

    Args:
        most: requests at the same time, about, which the caller sees to.
        connect_seconds: to connect within; answers have no limit.
        key: sent as bearer token.
        kept: whether a connection serves several requests.
    """

    def __init__(
        self, most: int, connect_seconds: float, *, key: str | None = None, kept: bool = True
    ) -> None:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        context = httpx.create_ssl_context()  # once, since it reads all certificates
        self._pools = [
            httpx.AsyncClient(
                headers=headers | ({"Authorization": f"Bearer {key}"} if key else {}),
                timeout=httpx.Timeout(None, connect=connect_seconds),
                limits=httpx.Limits(max_keepalive_connections=None if kept else 0),
                verify=context,
            )
            for _ in range(math.ceil(most / _TOGETHER))
        ]
        self._next = cycle(self._pools)

    async def exchange(self, url: str, data: bytes | None) -> tuple[httpx.Response, bytes]:
        """Send a request, POST where it has data, and read the whole answer.

        Raises:
            MalformedError: if it is longer than :data:`LARGEST_ANSWER`.
        """
        body = bytearray()
        method = "GET" if data is None else "POST"
        async with next(self._next).stream(method, url, content=data) as response:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > LARGEST_ANSWER:
                    raise MalformedError(f"an answer of more than {LARGEST_ANSWER} bytes")
        return response, bytes(body)

    async def close(self) -> None:
        """Close all."""
        for pool in self._pools:
            await pool.aclose()
