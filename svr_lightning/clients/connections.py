"""HTTP requests to servers of models: bounded in size and time, and repeated where it may help."""

import asyncio
import json
import math
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx

from svr_lightning.clients.chat_answers import (
    TIMED_OUT,
    ServerError,
    error_in,
    is_temporary,
    read_answer,
)
from svr_lightning.clients.masking import Mask
from svr_lightning.core.types import RemoteCompletion
from svr_lightning.errors import ConfigError, format_exception, one_line, require

LARGEST_ANSWER = 8 * 2**20
"""Bytes of one answer; a longer one is not read."""
LONGEST_WAIT = 60.0
"""Longest wait between two tries, in seconds, whatever the server asks for."""
_CONNECT_SECONDS = 10.0
_TOGETHER = 4
"""Connections of a pool, about. Before and after each request, a pool looks at all that it has, and
at all again for each that is idle: in one pool of 200 a request costs six times as much."""
_OF_ITS_AUTHORITY = (
    "; if you trust the authority that signed it, let SSL_CERT_FILE name a file (PEM) that holds "
    "the authority's certificate"
)
_HEADER_NAME = re.compile(
    r"(?!(?i:content-\w+|accept-encoding|transfer-encoding|connection)$)[\w!#$%&'*+.^`|~-]+",
    re.ASCII,
)
"""Those that describe a body are set here."""


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How often a request is sent, and for how long. All times are in seconds."""

    tries: int
    first_delay: float = 1.0
    """Before the second try; each further delay is twice as long."""
    timeout: float | None
    """Limit of one try, waiting in the server's queue included."""
    patience: float = 1800.0
    """No try begins later than this after the first one."""


def retry_delay(tries: int, first_delay: float, draw: float, retry_after: str | None) -> float:
    """Seconds to wait after ``tries`` failures: exponential, and at least what the server asks.

    Args:
        tries: from 1.
        first_delay: seconds after the first failure.
        draw: uniform in [0, 1); takes away up to half of the wait.
        retry_after: the header, in seconds; a date is ignored.

    Examples:
        >>> retry_delay(3, 1.0, 0.5, None), retry_delay(1, 1.0, 0.0, "7")
        (3.0, 7.0)
    """
    backoff: float = first_delay * 2 ** (tries - 1) * (1 - draw / 2)
    header = retry_after or ""
    seconds = float(header[:9]) if header.isascii() and header.isdigit() else 0.0
    return min(max(backoff, seconds), LONGEST_WAIT)


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a server asks for beside its address."""

    key: str | None = None
    """Sent as bearer token, and kept out of messages."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of each request, such as ``api-key``."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Of each address, such as ``api-version``."""
    secrets: Sequence[str] = ()
    """Values of ``headers`` and ``query`` that are kept out of messages, as the key is."""


class Connections:
    """Connections that check certificates, follow no redirect and send the key.

    Args:
        most: requests at the same time; further ones wait.
        retries: of each request.
        access: what the server asks for.

    Raises:
        ConfigError: if the environment names a proxy or certificates that cannot be used.
    """

    on_error: Callable[[ServerError], None] | None = None
    """Called with the error of each try."""

    def __init__(self, most: int, retries: Retries, *, access: Access) -> None:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if access.key:
            headers["Authorization"] = f"Bearer {access.key}"
        self.mask = Mask([access.key, *access.secrets])
        self._retries = retries
        self._slots = asyncio.Semaphore(most)
        try:
            context = httpx.create_ssl_context()  # once, since it reads all certificates
            self._pools = [
                httpx.AsyncClient(
                    headers={**headers, **access.headers},
                    params=dict(access.query),
                    timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
                    limits=httpx.Limits(max_keepalive_connections=None),
                    verify=context,
                )
                for _ in range(math.ceil(most / _TOGETHER))
            ]
        except (httpx.InvalidURL, ImportError, ValueError, OSError) as error:
            raise ConfigError(
                f"the environment's proxies or certificates cannot be used ({one_line(error)}); "
                "correct or unset the wrong one of ALL_PROXY, HTTP_PROXY, HTTPS_PROXY, NO_PROXY "
                "and SSL_CERT_FILE"
            ) from error
        self._next = cycle(self._pools)

    async def exchange(self, url: str, body: Mapping[str, Any], seed: int) -> RemoteCompletion:
        """Post a request for a completion until it is answered.

        Args:
            url: where to.
            body: sent as JSON.
            seed: of the waits between tries.

        Raises:
            ServerError: of the last try.
        """
        data = json.dumps(body).encode("ascii")
        jitter = random.Random(seed)  # noqa: S311
        clock = asyncio.get_running_loop().time
        async with self._slots:
            deadline = clock() + self._retries.patience
            for tries in count(1):
                try:
                    return read_answer(await self._try(url, data), self.mask)
                except ServerError as error:
                    error.tries = tries
                    if self.on_error is not None:
                        self.on_error(error)
                    first_delay = self._retries.first_delay
                    delay = retry_delay(tries, first_delay, jitter.random(), error.retry_after)
                    last = tries >= self._retries.tries or clock() + delay > deadline
                    if last or not error.temporary:
                        raise
                await asyncio.sleep(delay)
        raise AssertionError

    async def _try(self, url: str, data: bytes) -> bytes:
        """The whole answer, if its status is 200."""
        timeout = self._retries.timeout
        try:
            async with asyncio.timeout(timeout):
                response, answer = await self._send(url, data)
        except TimeoutError as error:
            limit = f"no answer within {timeout:.4g} seconds"
            raise ServerError(limit, temporary=True, status=TIMED_OUT) from error
        except httpx.RequestError as error:
            message = self.mask.line(f"{url}: {format_exception(error)}")
            if "CERTIFICATE_VERIFY_FAILED" in message:
                message += _OF_ITS_AUTHORITY
            raise ServerError(message + _through(url), temporary=True) from error
        status = response.status_code
        if status == 200:
            return answer
        message, code, _ = error_in(answer, self.mask)
        message = message or "no message"
        if response.has_redirect_location:
            target = self.mask.line(response.headers["location"])
            message = f"a redirect to {target}; give that address"
        if status == 404:
            message += version_hint(url)
        retry_after = response.headers.get("retry-after", "")
        readable = retry_after and retry_after.isascii() and retry_after.isprintable()
        raise ServerError(
            f"HTTP {status}, {message}{_through(url)}",
            status=status,
            code=code,
            temporary=is_temporary(status),
            retry_after=self.mask.line(retry_after) if readable else None,
        )

    async def _send(self, url: str, data: bytes) -> tuple[httpx.Response, bytes]:
        body = bytearray()
        async with next(self._next).stream("POST", url, content=data) as response:
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
    target = httpx.URL(url)
    proxies = getproxies()
    address = proxies.get(target.scheme) or proxies.get("all") or ""
    proxy = httpx.URL(address if "://" in address else f"http://{address}")
    if not proxy.host or proxy_bypass(target.host):
        return ""
    name = one_line(f"{proxy.scheme}://{proxy.host}:{proxy.port or ''}").rstrip(":")
    return f" (through the proxy {name} of the environment; NO_PROXY={target.host} avoids it)"


def read_key(variable: str | None, option: str, *, needed: bool = True) -> str | None:
    """The key in an environment variable, if one is named; None if it is not set.

    Raises:
        ConfigError: naming the option, if it is not set and ``needed``, or is no plain text.
    """
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    require(bool(key) or not needed, f"{option} {variable}: this variable is not set")
    require(
        key.isascii() and key.isprintable(),
        f"{option} {variable}: the key has characters that a header cannot hold",
    )
    return key or None


def read_access(
    key: str | None,
    headers: Mapping[str, str],
    query: Mapping[str, str],
    option: str,
) -> Access:
    """Access with the values of the environment: ``$NAME`` stands for that of a variable.

    Args:
        key: the bearer token.
        headers: by name. Values of variables are secrets.
        query: the same.
        option: what messages call the options, as in ``--upstream-{}``.

    Raises:
        ConfigError: naming the option, if a value is no text, a variable is not set, or a header
            cannot be sent.
    """
    read: dict[str, dict[str, str]] = {}
    secrets = []
    for name, values in (("headers", headers), ("query", query)):
        option_name = option.format(name)
        texts = isinstance(values, Mapping) and all(isinstance(v, str) for v in values.values())
        require(texts, f"{option_name} must map names to texts")
        read[name] = {}
        for field_name, value in values.items():
            if value.startswith("$"):
                value = read_key(value[1:], f"{option_name} {one_line(field_name)}") or ""
                secrets.append(value)
            fits = _HEADER_NAME.fullmatch(field_name) and value.isascii() and value == value.strip()
            require(
                f"{field_name}{value}".isprintable() and (name == "query" or bool(fits)),
                f"{option_name} {one_line(field_name)}: cannot be sent as a {name.rstrip('s')}",
            )
            read[name][field_name] = value
    return Access(key=key, secrets=secrets, **read)


def version_hint(url: str) -> str:
    """What to try if an address names no version, which few servers do without; else nothing."""
    return "" if "/v" in httpx.URL(url).path else "; the address usually ends in /v1"


def check_url(url: str, option: str, instead: str) -> None:
    """Refuse what is not a plain address. The message names the option and shows no password.

    Args:
        url: the address.
        option: what the message calls it.
        instead: where a query and a key belong, as ``: a query goes into ...``.

    Raises:
        ConfigError: if it is none, or ends in /completions.
    """
    fault = f"{option} is no address such as http://127.0.0.1:8000/v1"
    try:
        address = httpx.URL(url)
        complete = address.scheme in ("http", "https") and bool(address.host)
    except (httpx.InvalidURL, UnicodeError) as error:  # the latter of a host
        raise ConfigError(fault) from error
    require(complete and url.isprintable() and " " not in url, fault)
    require(
        not (address.userinfo or address.query or address.fragment),
        f"{option} must be an address alone, without user, password or query{instead}",
    )
    require(
        not url.rstrip("/").endswith("/completions"),
        f"{option} ends before /chat/completions, usually in /v1",
    )
