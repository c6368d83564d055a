"""HTTP connections to servers of models."""

import asyncio
import math
from itertools import cycle
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from svr_lightning.engines.server_error import (
    TIMED_OUT,
    ServerError,
    error_in,
    is_temporary,
)
from svr_lightning.errors import ConfigError, one_line, typed_line

LARGEST_ANSWER = 8 * 2**20
"""Bytes of one answer; a longer one is not read."""
_TOGETHER = 4
"""Connections of a pool, about. Before and after each request, a pool looks at all that it has, and
at all again for each that is idle: in one pool of 200 a request costs six times as much."""


class Connections:
    """Connections that check certificates, follow no redirect and send the key.

    Args:
        most: requests at the same time, about, which the caller sees to.
        connect_seconds: to connect within.
        key: sent as bearer token, and kept out of messages.
        kept: whether a connection serves several requests.

    Raises:
        ConfigError: if the environment names a proxy or certificates that cannot be used.
    """

    def __init__(
        self, most: int, connect_seconds: float, *, key: str | None = None, kept: bool = True
    ) -> None:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        self._key = key
        try:
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
        except (ImportError, ValueError, OSError) as error:
            raise ConfigError(
                f"the environment's proxies or certificates cannot be used ({one_line(error)}); "
                "unset ALL_PROXY, HTTP_PROXY, HTTPS_PROXY or SSL_CERT_FILE, whichever it is"
            ) from error
        self._next = cycle(self._pools)

    async def exchange(self, url: str, data: bytes | None, timeout: float | None) -> bytes:
        """Send a request, POST where it has data, and read the whole answer.

        Args:
            url: where to.
            data: the body; None for GET.
            timeout: seconds until the end of the answer.

        Raises:
            ServerError: if there is none, or its status is not 200.
        """
        try:
            async with asyncio.timeout(timeout):
                response, answer = await self._exchange(url, data)
        except TimeoutError as error:
            limit = f"no answer within {timeout:.4g} seconds"
            raise ServerError(limit, temporary=True, status=TIMED_OUT) from error
        except httpx.RequestError as error:
            raise ServerError(typed_line(error) + _through(url), temporary=True) from error
        status = response.status_code
        if status == 200:
            return answer
        message, code, _ = error_in(answer, self._key)
        message = message or "no message"
        if response.has_redirect_location:
            message = f"a redirect to {one_line(response.headers['location'])}; give that address"
        if status == 404 and url.endswith("/chat/completions") and "/v" not in urlsplit(url).path:
            message += "; the address usually ends in /v1"
        header = response.headers.get("retry-after", "")
        readable = header and header.isascii() and header.isprintable()
        raise ServerError(
            f"HTTP {status}, {message}{_through(url)}",
            status=status,
            code=code,
            temporary=is_temporary(status),
            retry_after=header if readable else None,
        )

    async def _exchange(self, url: str, data: bytes | None) -> tuple[httpx.Response, bytes]:
        body = bytearray()
        method = "GET" if data is None else "POST"
        async with next(self._next).stream(method, url, content=data) as response:
            # Unpacked, a small answer could be of any size.
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise ServerError("its answer is compressed, which was not allowed", status=200)
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > LARGEST_ANSWER:
                    message = f"an answer of more than {LARGEST_ANSWER} bytes"
                    raise ServerError(message, status=200, temporary=True)
        return response, bytes(body)

    async def close(self) -> None:
        """Close all."""
        for pool in self._pools:
            await pool.aclose()


def _through(url: str) -> str:
    """Names the proxy that requests to an address take, without its password."""
    parts = urlsplit(url)
    host, proxies = parts.hostname or "", getproxies()
    proxy = urlsplit(proxies.get(parts.scheme) or proxies.get("all") or "")
    if not proxy.hostname or proxy_bypass(host):
        return ""
    named = one_line(f"{proxy.scheme}://{proxy.hostname}:{proxy.port or ''}").rstrip(":")
    return f" (through the proxy {named} of the environment; NO_PROXY={host} avoids it)"
