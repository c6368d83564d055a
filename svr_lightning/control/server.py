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
from collections.abc import AsyncIterator, Awaitable, Collection, Coroutine
from itertools import count
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from svr_lightning.control.backends import Backend
from svr_lightning.control.controller import Client, Controller
from svr_lightning.control.protocol import (
    ChatRequest,
    answer_json,
    controlled,
    error_json,
    events,
    read_request,
    refusal,
    require_model,
    svr_json,
    turn_seed,
)
from svr_lightning.core.types import AnyCompletion, Message
from svr_lightning.engines.chat_answers import ServerError
from svr_lightning.errors import one_line, typed_line

_log = logging.getLogger(__name__)


Count = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0, le=10**9)]


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a server."""

    body: Count = 2**20
    """Most bytes of a request's body."""
    requests: Count = 256
    """Requests in progress; further ones get 429."""
    seconds: Seconds = 600.0
    """Time for a request with all its turns."""
    transfer_seconds: Seconds = 30.0
    """Time for a request's body to arrive."""
    comment_seconds: Seconds = 15.0
    """Time between two comments in a stream whose question is not answered yet."""
    connections: Count = 512
    """Open connections; for another one, that which has waited longest for a request is closed."""
    head: Count = 2**15
    """Most bytes of a request's header."""
    head_seconds: Seconds = 10.0
    """Time for a request's header to arrive on a new connection."""
    idle_seconds: Seconds = 75.0
    """Time between two requests of a connection."""


class ChatServer:
    """The server's state and its endpoints.

    Args:
        controller: rule, limits, prompts and certificate of a request that sets none of them. Its
            client is replaced.
        policy: completes the prompts.
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
        limits: Limits | None = None,
        key: str | None = None,
        origins: Collection[str] = (),
    ) -> None:
        self._origins = origins
        self._controller, self._policy = controller, policy
        self._model, self.limits, self._key = model, limits or Limits(), key
        self._numbers = count()
        self.running = 0
        """Requests in progress."""

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/chat/completions", self, methods=["POST"]),
            Route("/v1/models", self._list_models),
            Route("/v1/models/{name:path}", self._show_model),
            Route("/health", self._health),
        ]
        handlers: Any = {ServerError: _refusal, HTTPException: _no_such_path}
        own = list(self._origins)
        pages = Middleware(CORSMiddleware, own, ["GET", "POST"], allow_headers=["*"])
        return Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers=handlers,
            middleware=[pages] if own else [],
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._policy.start()
        try:
            yield
        finally:
            await self._policy.stop()

    # --- small endpoints -------------------------------------------------------------------------

    @property
    def _listed(self) -> dict[str, Any]:
        return {"id": self._model, "object": "model", "created": 0, "owned_by": "svr_lightning"}

    async def _list_models(self, request: Request) -> Response:
        self._authorize(request)
        return _json({"object": "list", "data": [self._listed]})

    async def _show_model(self, request: Request) -> Response:
        self._authorize(request)
        require_model(request.path_params["name"], self._model)
        return _json(self._listed)

    async def _health(self, request: Request) -> Response:
        fault = self._policy.fault
        state = {"status": "ok"} if fault is None else {"status": "failing", "fault": fault}
        return _json(state, 200 if fault is None else 503)

    def _authorize(self, request: Request) -> None:
        """Let in who has the key, or, if there is none, who is no web page of elsewhere."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if self._key:
            same = hmac.compare_digest(given.strip().encode(), self._key.encode())
            if not same or scheme.lower() != "bearer":
                raise refusal(401, "give the server's key as Authorization: Bearer KEY")
            return
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        name = re.sub(r":\d*$", "", host).strip("[]").lower()
        if not is_loopback(name):  # a page that calls itself by this name
            raise refusal(403, f"Host {one_line(host)!r} is not this machine; use a key")
        own = origin is None or origin in self._origins or origin.partition("://")[2] == host
        if not own:
            raise refusal(403, f"Origin {one_line(origin)!r} is not allowed; see --allow-origin")

    # --- chat ------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The endpoint of chat completions, from a request's body to the end of its answer.

        A separate ASGI application, since Starlette notices a disconnected client only when it
        sends something.
        """
        request, stream = Request(scope, receive), _Stream(send)
        try:
            response = await self._admit(request, stream)
        except ClientDisconnect:
            return
        except (Exception, asyncio.CancelledError) as error:
            response = _refusal(request, _as_refusal(error))
        if stream.started:
            await stream.end(response)
        else:
            await response(scope, receive, send)

    async def _admit(self, request: Request, stream: "_Stream") -> Response:
        """Answer a request if there is room for it."""
        self._authorize(request)
        if self.running >= self.limits.requests:
            raise refusal(429, "too many requests in progress; retry later", retry_after="1")
        self.running += 1
        try:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":  # which no page of elsewhere can send unasked
                raise refusal(415, "the header Content-Type must be application/json")
            chat, ignored = read_request(await self._body(request), self._model)
            work = self._answer(chat, ignored)
            return await self._while_connected(request, work, stream if chat.stream else None)
        finally:
            self.running -= 1

    async def _body(self, request: Request) -> bytes:
        """A request's body; if too long, it is read to its end, but not kept."""
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(self.limits.transfer_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= self.limits.body:
                        body += chunk
        except TimeoutError as error:
            raise refusal(408, "the body did not arrive in time") from error
        if size > self.limits.body:
            raise refusal(413, f"a body of {size} bytes; at most {self.limits.body} are read")
        return bytes(body)

    async def _answer(self, chat: ChatRequest, ignored: list[str]) -> Response:
        """Solve a question."""
        client = _client(self._policy, chat, next(self._numbers))
        controller, other = controlled(self._controller, chat, client, self.limits.seconds)
        if not self._policy.fits(controller.first_prompt(chat.question, chat.context)):
            raise refusal(400, "messages: too long for the policy's prompt")
        if controller.at_once > 1 and not chat.temperature:
            raise refusal(400, "temperature: must be above 0, or samples would all be the same")
        async with self._policy.room:
            result = await controller.solve_async(chat.question, context=chat.context)
        if not (result.turns or result.refusal):
            raise refusal(504, f"no turn ended within the {result.reason}")
        head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time())}
        head["model"] = self._model
        answer = answer_json(head, result, svr_json(result, other, ignored))
        if not chat.stream:
            return _json(answer)
        usage = chat.stream_options is not None and bool(chat.stream_options.include_usage)
        content = events(answer, include_usage=usage)
        return Response(content, headers=_STREAMED, media_type=_EVENTS)

    async def _while_connected(
        self, request: Request, work: Coroutine[Any, Any, Response], stream: "_Stream | None"
    ) -> Response:
        """Do ``work``, but drop it, and raise ClientDisconnect, when the client disconnects.

        Until then a stream gets comments.
        """

        async def disconnected() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
        pause = self.limits.comment_seconds if stream else None
        first = asyncio.FIRST_COMPLETED
        try:
            while not (task.done() or gone.done()):
                ended, _ = await asyncio.wait({task, gone}, timeout=pause, return_when=first)
                if stream and not ended:
                    await stream.comment()
            if not task.done():
                raise ClientDisconnect
            return task.result()
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)


_EVENTS = "text/event-stream"
_STREAMED = {"cache-control": "no-store", "x-accel-buffering": "no"}


class _Stream:
    """An answer that begins before it is known, since some hops close a connection that is idle."""

    def __init__(self, send: Send) -> None:
        self._send, self.started = send, False

    async def comment(self) -> None:
        """Send what clients skip. From the first on, an error has no status of its own."""
        if not self.started:
            self.started = True
            headers = {"content-type": f"{_EVENTS}; charset=utf-8", **_STREAMED}
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
        await self._send_body(b": working\n\n", more=True)

    async def end(self, response: Response) -> None:
        """Send the events of an answer, or an error as an event."""
        body = bytes(response.body)
        if response.media_type != _EVENTS:
            body = b"data: " + body + b"\n\n"
        await self._send_body(body, more=False)

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _as_refusal(error: BaseException) -> ServerError:
    if isinstance(error, ServerError):
        return error
    if isinstance(error, asyncio.CancelledError):  # by uvicorn alone; the task does nothing else
        return refusal(503, "the server is shutting down")
    _log.exception("a request failed")  # an error in this program ends one request
    return refusal(500, typed_line(error))


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """ASCII, so that no text of a model is lost in its encoding."""
    body = json.dumps(content).encode("ascii")
    return Response(body, status, headers, media_type="application/json")


def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServerError)
    headers = {"retry-after": error.retry_after} if error.retry_after else None
    return _json(error_json(error), error.status, headers)


def _no_such_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}; the API is under /v1"
    found = _refusal(request, refusal(error.status_code, one_line(message)))
    found.headers.update(error.headers or {})
    return found


def is_loopback(host: str) -> bool:
    """Whether an address or a name leads to this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _client(backend: Backend, chat: ChatRequest, number: int) -> Client:
    """A backend as a controller's client."""
    turns = count(1)

    def complete(messages: list[Message], max_tokens: int) -> Awaitable[AnyCompletion]:
        seed = turn_seed(chat, number, next(turns))
        return backend.complete(messages, chat.sampling(max_tokens), seed)

    return complete
