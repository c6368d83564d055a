"""The chat-completions API over a controller: every answer is refined until the rule accepts it."""

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from svr_lightning.clients.chat_answers import ServerError
from svr_lightning.control.backends import Backend
from svr_lightning.control.controller import Client, Controller, Result
from svr_lightning.control.monitoring import Monitor
from svr_lightning.control.protocol import (
    ChatRequest,
    Content,
    answer_json,
    controlled,
    error_json,
    events,
    read_request,
    require_model,
)
from svr_lightning.core.ranges import Count, Positive
from svr_lightning.core.seeds import START
from svr_lightning.core.types import AnyCompletion, Message
from svr_lightning.errors import format_exception, one_line

_log = logging.getLogger(__name__)


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a server."""

    body: Count = 2**20
    """Most bytes of a request's body."""
    requests: Count = 256
    """Requests in progress; further ones get 429."""
    seconds: Positive = 600.0
    """Time for a request with all its turns."""
    transfer_seconds: Positive = 30.0
    """Time for a request's body to arrive."""
    comment_seconds: Positive = 15.0
    """Time between two comments in a stream whose question is not answered yet."""
    connections: Count = 512
    """Open connections; for another one, that which has waited longest for a request is closed."""
    head: Count = 2**15
    """Most bytes of a request's header."""
    head_seconds: Positive = 10.0
    """Time for a request's header to arrive on a new connection."""
    idle_seconds: Positive = 75.0
    """Time between two requests of a connection."""


class ChatServer:
    """The server's state and its endpoints.

    Args:
        controller: answers a request that sets nothing itself. Its clients, its limit of seconds
            and how scores are computed are replaced.
        policy: completes the prompts.
        stronger: the second model, which gets the questions without an accepted turn.
        content: what the message of an answer holds.
        model: the policy's name for clients.
        limits: of requests.
        key: clients have to send it. None asks for none: then only programs of this machine, and
            pages of ``origins``, may ask.
        origins: web pages that may ask, such as ``https://example.org``.
    """

    def __init__(
        self,
        controller: Controller,
        policy: Backend,
        *,
        model: str,
        stronger: Backend | None = None,
        content: Content = "answer",
        limits: Limits | None = None,
        key: str | None = None,
        origins: Collection[str] = (),
    ) -> None:
        self.limits = limits or Limits()
        self.controller = replace(
            controller, scores_of=policy.scores_of, seconds=self.limits.seconds
        )
        self._policy = policy
        self._stronger = stronger
        self._model = model
        self._content = content
        self._key = key
        self._origins = [origin.rstrip("/").lower() for origin in origins]  # as browsers write them
        self._listed = {"id": model, "object": "model", "created": 0, "owned_by": "svr_lightning"}
        self._numbers = count()
        self.running = 0
        """Requests in progress."""
        self._monitor = Monitor(lambda: self.running)
        policy.on_error = partial(self._monitor.upstream_error, "first")
        if stronger is not None:
            stronger.on_error = partial(self._monitor.upstream_error, "second")

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/chat/completions", self, methods=["POST"]),
            Route("/v1/models", self._list_models),
            Route("/v1/models/{name:path}", self._show_model),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
        ]
        handlers: Any = {ServerError: _refusal, HTTPException: _no_such_path}
        pages = Middleware(CORSMiddleware, self._origins, ["GET", "POST"], allow_headers=["*"])
        return Starlette(
            routes=routes,
            middleware=[Middleware(_slash_ignored), pages],
            exception_handlers=handlers,
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._policy.lifespan())
            if self._stronger is not None:
                await stack.enter_async_context(self._stronger.lifespan())
            yield

    # --- small endpoints -------------------------------------------------------------------------

    async def _list_models(self, request: Request) -> Response:
        self._authorize(request)
        return _json({"object": "list", "data": [self._listed]})

    async def _show_model(self, request: Request) -> Response:
        self._authorize(request)
        require_model(request.path_params["name"], self._model)
        return _json(self._listed)

    async def _health(self, request: Request) -> Response:
        if self._policy.fault is None:
            return _json({"status": "ok"})
        return _json({"status": "failing", "fault": self._policy.fault}, 503)

    async def _metrics(self, request: Request) -> Response:
        self._authorize(request)
        return Response(self._monitor.page(), media_type=CONTENT_TYPE_LATEST)

    def _authorize(self, request: Request) -> None:
        """Accept requests with the key; without a key, only local clients and allowed origins."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if self._key:
            same = hmac.compare_digest(given.strip().encode(), self._key.encode())
            if not same or scheme.lower() != "bearer":
                message = "give the server's key as Authorization: Bearer KEY"
                raise ServerError(message, 401, code="invalid_api_key")
            return
        host = request.headers.get("host", "")
        origin = request.headers.get("origin")
        name = re.sub(r":\d*$", "", host).strip("[]").lower()
        if not is_loopback(name):  # a page that calls itself by this name
            raise ServerError(f"Host {one_line(host)!r} is not this machine; use a key", 403)
        allowed = origin is None or origin in self._origins or origin.partition("://")[2] == host
        if not allowed:
            raise ServerError(f"Origin {one_line(origin)!r} is refused; see --allow-origin", 403)

    # --- chat ------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The endpoint of chat completions, from a request's body to the end of its answer.

        A separate ASGI application, since Starlette notices a disconnected client only when it
        sends something.
        """
        request = Request(scope, receive)
        stream = _Stream(send)
        started = time.monotonic()
        end: Result | ServerError
        try:
            response, end = await self._admit(request, stream)
        except (Exception, asyncio.CancelledError) as error:
            end = _as_refusal(error)
            response = _refusal(request, end)
        self._monitor.request(response.status_code, time.monotonic() - started, end)
        if stream.started:
            await stream.end(response)
        else:
            await response(scope, receive, send)

    async def _admit(self, request: Request, stream: "_Stream") -> tuple[Response, Result]:
        """Answer a request if there is room for it, and for as long as the client is connected."""
        self._authorize(request)
        if self.running >= self.limits.requests:
            raise ServerError(
                "too many requests in progress; retry later",
                429,
                code="rate_limit_exceeded",
                retry_after="1",
            )
        self.running += 1
        try:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":  # which no page of elsewhere can send unasked
                raise ServerError("the header Content-Type must be application/json", 415)
            chat, ignored = read_request(await self._body(request), self._model)
            ignored += (
                name for name in self._policy.unsent if getattr(chat, name, None) is not None
            )
            async with self._attended(request, stream if chat.stream else None):
                return await self._answer(chat, ignored)
        finally:
            self.running -= 1

    async def _body(self, request: Request) -> bytes:
        """A request's body; if too long, it is read to its end, but not kept."""
        body = bytearray()
        size = 0
        try:
            async with asyncio.timeout(self.limits.transfer_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= self.limits.body:
                        body += chunk
        except TimeoutError as error:
            raise ServerError("the body did not arrive in time", 408) from error
        if size > self.limits.body:
            raise ServerError(f"a body of {size} bytes; at most {self.limits.body} are read", 413)
        return bytes(body)

    @contextlib.asynccontextmanager
    async def _attended(self, request: Request, stream: "_Stream | None") -> AsyncIterator[None]:
        """Within it, a stream gets comments, and this task ends when the client disconnects."""
        task: Any = asyncio.current_task()

        async def attend() -> None:
            connected = True
            while connected:
                try:
                    async with asyncio.timeout(self.limits.comment_seconds):
                        connected = (await request.receive())["type"] != "http.disconnect"
                except TimeoutError:
                    try:
                        if stream is not None:
                            await stream.comment()
                    except OSError:  # how some servers say that the client is gone
                        connected = False
            task.cancel(_GONE)

        beside = asyncio.ensure_future(attend())
        try:
            yield
        finally:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)

    async def _answer(self, chat: ChatRequest, ignored: list[str]) -> tuple[Response, Result]:
        """Solve a question."""
        place = contextlib.AsyncExitStack()
        first = self._client(chat, self._policy)
        second = None if self._stronger is None else self._client(chat, self._stronger, place)
        controller, other = controlled(self.controller, chat, first, second)
        if not self._policy.fits(controller.first_prompt(chat.question, chat.context)):
            raise ServerError("messages: too long for the policy's prompt", 400)
        if controller.at_once > 1 and not chat.temperature:
            raise ServerError("temperature: must be above 0, else all samples are the same", 400)
        async with place:
            await place.enter_async_context(self._policy.admission)
            result = await controller.solve_async(chat.question, context=chat.context)
        if not (result.turns or result.refusal or result.completion):
            raise ServerError(f"no turn ended within the {result.reason}", 504)
        head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": self._model,
        }
        answer = answer_json(head, result, other, ignored, chat, self._content)
        if not chat.stream:
            return _json(answer), result
        usage = bool((chat.stream_options or {}).get("include_usage"))
        body = events(answer, include_usage=usage)
        return Response(body, headers=_STREAMED, media_type=_EVENTS), result

    def _client(
        self, chat: ChatRequest, model: Backend, place: contextlib.AsyncExitStack | None = None
    ) -> Client:
        """A model as a controller's client; each turn has a seed of its own.

        Its calls leave the question's ``place``, if they do not need it, to another question.
        """
        sample = next(self._numbers) if chat.seed is None else chat.seed
        seeds = (START.seed(chat.question, sample=sample, turn=turn) for turn in count(1))

        async def complete(messages: list[Message], max_tokens: int) -> AnyCompletion:
            if place is not None:
                await place.aclose()
            return await model.complete(messages, chat.sampling(max_tokens), next(seeds))

        return complete


def _slash_ignored(app: ASGIApp) -> ASGIApp:
    """Takes ``/v1//models/`` for ``/v1/models``: a redirect would lose the body, and the https."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": re.sub("/+", "/", scope["path"]).rstrip("/") or "/"}
        await app(scope, receive, send)

    return call


_GONE = "the client has gone"
_EVENTS = "text/event-stream"
_STREAMED = {"cache-control": "no-store", "x-accel-buffering": "no"}


class _Stream:
    """An answer that begins before it is known, since some hops close a connection that is idle."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def comment(self) -> None:
        """Send what clients skip. From the first on, an error has no status of its own."""
        if not self.started:
            raw = StreamingResponse((), headers=_STREAMED, media_type=_EVENTS).raw_headers
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
            self.started = True
        body = b": working\n\n"
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, response: Response) -> None:
        """Send the events of an answer, or an error as an event."""
        body = bytes(response.body)
        if response.media_type != _EVENTS:
            body = b"data: " + body + b"\n\n"
        await self._send({"type": "http.response.body", "body": body})


def _as_refusal(error: BaseException) -> ServerError:
    if isinstance(error, ServerError):
        return error
    if isinstance(error, ClientDisconnect) or _GONE in error.args:
        refusal = ServerError(_GONE, 499)  # as nginx counts it; nobody reads it
    elif isinstance(error, asyncio.CancelledError):
        refusal = ServerError("the server is shutting down", 503)
    else:
        _log.exception("a request failed")  # an error in this program ends one request
        refusal = ServerError(format_exception(error), 500)
    refusal.turns = getattr(error, "turns", ())
    return refusal


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """ASCII, so that no text of a model is lost in its encoding."""
    body = json.dumps(content).encode("ascii")
    return Response(body, status, headers, media_type="application/json")


def _refusal(_: Request, error: ServerError) -> Response:
    headers = {"retry-after": error.retry_after} if error.retry_after else None
    return _json(error_json(error), error.status, headers)


def _no_such_path(request: Request, error: HTTPException) -> Response:
    message = (
        f"{error.detail}: {request.method} {request.url.path}; there are POST /v1/chat/completions "
        "and GET /v1/models, /health and /metrics"
    )
    response = _refusal(request, ServerError(one_line(message), error.status_code))
    response.headers.update(error.headers or {})
    return response


def is_loopback(host: str) -> bool:
    """Whether an address or a name leads to this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
