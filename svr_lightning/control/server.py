"""The chat-completions API over a controller: every answer is refined until the rule accepts it."""

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from svr_lightning.control.backends import Backend
from svr_lightning.control.controller import Client, Controller
from svr_lightning.control.protocol import (
    ChatRequest,
    ServingError,
    answer_json,
    controlled,
    error_json,
    events,
    read_request,
    svr_json,
    turn_seed,
)
from svr_lightning.core.types import AnyCompletion, Message, Turn
from svr_lightning.errors import typed_line

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a server."""

    body: int = 2**20
    """Bytes of a request."""
    requests: int = 256
    """Requests in progress; further ones get 429."""
    seconds: float = 600.0
    """For a request with all its turns."""
    transfer_seconds: float = 30.0
    """For a request's body to arrive."""


class Metrics:
    """What ``/metrics`` shows."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter(
            "svr_requests", "Requests by how they ended", ["outcome"], registry=own
        )
        self.running = Gauge("svr_requests_running", "Requests in progress", registry=own)
        self.turns = Counter("svr_turns", "Turns generated", registry=own)
        self.tokens = Counter("svr_tokens", "Tokens of all turns", ["kind"], registry=own)
        self.seconds = Histogram("svr_request_seconds", "Time of answered requests", registry=own)

    def count_turn(self, turn: Turn) -> None:
        """Count a turn and its tokens."""
        self.turns.inc()
        self.tokens.labels("prompt").inc(turn.completion.prompt_tokens)
        self.tokens.labels("completion").inc(turn.completion.completion_tokens)


class ChatServer:
    """The server's state and its endpoints.

    Args:
        controller: rule, limits, prompts and certificate of a request that sets none of them. Its
            client is replaced.
        policy: completes the prompts.
        model: the policy's name for clients.
        limits: of requests.
        key: clients have to send it; None asks for none.
    """

    def __init__(
        self,
        controller: Controller,
        policy: Backend,
        *,
        model: str,
        limits: Limits | None = None,
        key: str | None = None,
    ) -> None:
        self._controller, self._policy = controller, policy
        self._model, self._limits, self._key = model, limits or Limits(), key
        self._metrics, self._numbers, self._running = Metrics(), count(), 0

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/chat/completions", self, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/health", self._health),
            Route("/metrics", self._show_metrics),
        ]
        handlers: Any = {ServingError: lambda _, error: _refusal(error)}
        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._policy.start()
        try:
            yield
        finally:
            await self._policy.stop()

    # --- small endpoints -------------------------------------------------------------------------

    async def _models(self, request: Request) -> Response:
        self._require_key(request)
        listed = {"id": self._model, "object": "model", "created": 0, "owned_by": "svr_lightning"}
        return _json({"object": "list", "data": [listed]})

    async def _health(self, request: Request) -> Response:
        fault = self._policy.fault()
        state = {"status": "ok"} if fault is None else {"status": "failing", "fault": fault}
        return _json(state, 200 if fault is None else 503)

    async def _show_metrics(self, request: Request) -> Response:
        self._require_key(request)
        shown = generate_latest(self._metrics.registry)
        return Response(shown, media_type=CONTENT_TYPE_LATEST)

    def _require_key(self, request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if self._key and not hmac.compare_digest(given, f"Bearer {self._key}".encode()):
            raise ServingError(401, "give the server's key as Authorization: Bearer KEY")

    # --- chat ------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The endpoint of chat completions, from a request's body to the end of its answer.

        A separate ASGI application, since Starlette notices a disconnected client only when it
        sends something.
        """
        outcome, started = "disconnected", time.monotonic()
        try:
            response, outcome = await self._admit(Request(scope, receive))
            self._metrics.seconds.observe(time.monotonic() - started)
        except ClientDisconnect:
            return
        except (Exception, asyncio.CancelledError) as error:
            refusal = _as_refusal(error)
            response, outcome = _refusal(refusal), f"error_{refusal.status}"
        finally:
            self._metrics.requests.labels(outcome).inc()
        await response(scope, receive, send)

    async def _admit(self, request: Request) -> tuple[Response, str]:
        """Answer a request if there is room for it; returns the answer and its outcome."""
        self._require_key(request)
        if self._running >= self._limits.requests:
            raise ServingError(429, "too many requests in progress; retry later", "1")
        self._running += 1
        self._metrics.running.inc()
        try:
            body = await self._body(request)
            chat = read_request(body, self._model, self._controller.completion_limit)
            return await _while_connected(request.receive, self._answer(chat))
        finally:
            self._running -= 1
            self._metrics.running.dec()

    async def _body(self, request: Request) -> bytes:
        """A request's body; if too long, it is read to its end, but not kept."""
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(self._limits.transfer_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= self._limits.body:
                        body += chunk
        except TimeoutError as error:
            raise ServingError(408, "the body did not arrive in time") from error
        if size > self._limits.body:
            raise ServingError(413, f"a body of {size} bytes; at most {self._limits.body} are read")
        return bytes(body)

    async def _answer(self, chat: ChatRequest) -> tuple[Response, str]:
        """Solve a question; returns the answer and its outcome."""
        client = _client(self._policy, chat, next(self._numbers))
        controller, other = controlled(self._controller, chat, client, self._limits.seconds)
        if not self._policy.fits(controller.first_prompt(chat.question)):
            raise ServingError(400, "the question is too long for the policy's prompt")
        result = await controller.solve_async(chat.question, self._metrics.count_turn)
        if not result.turns:
            raise ServingError(504, f"no turn ended within the {result.reason}")
        head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time())}
        head["model"] = self._model
        answer = answer_json(head, result, svr_json(result, other, chat.ignored))
        if not chat.stream:
            return _json(answer), result.outcome
        content = events(answer, include_usage=chat.include_usage)
        no_store = {"cache-control": "no-store"}
        return Response(content, headers=no_store, media_type="text/event-stream"), result.outcome


def _as_refusal(error: BaseException) -> ServingError:
    if isinstance(error, ServingError):
        return error
    if isinstance(error, asyncio.CancelledError):  # by uvicorn alone; the task does nothing else
        return ServingError(503, "the server is shutting down")
    _log.exception("a request failed")  # an error in this program ends one request
    return ServingError(500, typed_line(error))


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """ASCII, so that no text of a model is lost in its encoding."""
    body = json.dumps(content).encode("ascii")
    return Response(body, status, headers, media_type="application/json")


def _refusal(error: ServingError) -> Response:
    headers = {"retry-after": error.retry_after} if error.retry_after else None
    return _json(error_json(error), error.status, headers)


def _client(backend: Backend, chat: ChatRequest, number: int) -> Client:
    """A backend as a controller's client."""
    turns = count(1)

    def complete(messages: list[Message], max_tokens: int) -> Awaitable[AnyCompletion]:
        seed = turn_seed(chat, number, next(turns))
        sampling = replace(chat.sampling, max_completion_tokens=max_tokens)
        return backend.complete(messages, sampling, seed)

    return complete


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do ``work``, but drop it, and raise ClientDisconnect, when the client disconnects."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
