"""The chat-completions API over a controller: every answer is refined until the rule accepts it."""

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

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
    controlled,
    error_json,
    message_json,
    read_request,
    svr_json,
    turn_json,
    turn_seed,
    uncertified,
    usage_json,
)
from svr_lightning.core.types import AnyCompletion, Message, Turn
from svr_lightning.errors import typed_line

_log = logging.getLogger(__name__)


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
    """For a request's body to arrive, and for the client to take what is left of the answer."""


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
        second: answers escalated questions.
        limits: of requests.
        key: clients have to send it; None asks for none.
        temperature: of requests that name none.
    """

    def __init__(
        self,
        controller: Controller,
        policy: Backend,
        *,
        model: str,
        second: Backend | None = None,
        limits: Limits | None = None,
        key: str | None = None,
        temperature: float = 0.0,
    ) -> None:
        self._temperature = temperature
        self._controller, self._policy, self._second = controller, policy, second
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
        async with contextlib.AsyncExitStack() as stack:
            backends: list[Backend | None] = [self._policy, self._second]
            for backend in backends:
                if backend is not None:
                    backend.start()
                    stack.push_async_callback(backend.stop)
            yield

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
        request, outcome = Request(scope, receive), "disconnected"
        started, answer = time.monotonic(), _Answer(scope, receive, send)
        try:
            outcome = await self._admit(request, answer)
            self._metrics.seconds.observe(time.monotonic() - started)
        except ClientDisconnect:
            return
        except (Exception, asyncio.CancelledError) as error:
            refusal = _as_refusal(error)
            outcome = f"error_{refusal.status}"
            await answer.refuse(refusal)
        finally:
            self._metrics.requests.labels(outcome).inc()

    async def _admit(self, request: Request, answer: "_Answer") -> str:
        """Answer a request if there is room for it; returns its outcome."""
        self._require_key(request)
        if self._running >= self._limits.requests:
            raise ServingError(429, "too many requests in progress; retry later", "1")
        self._running += 1
        self._metrics.running.inc()
        try:
            body = await self._body(request)
            limit = self._controller.completion_limit
            chat = read_request(body, self._model, limit, self._temperature)
            seconds = self._limits.seconds + self._limits.transfer_seconds
            return await _while_connected(request.receive, self._answer(chat, answer), seconds)
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

    async def _answer(self, chat: ChatRequest, answer: "_Answer") -> str:
        """Solve a question and send the result, whole or as events; returns its outcome."""
        controller, other = self._controller_for(chat)
        turns = _Turns(self._metrics.count_turn)
        solving = asyncio.ensure_future(controller.solve_async(chat.question, turns.add))
        solving.add_done_callback(lambda _: turns.end())
        head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time())}
        head["model"] = self._model
        try:
            if chat.stream:
                await self._send_turns(turns, head, answer)
            result = await solving
        finally:
            solving.cancel()
        if not result.turns:
            raise ServingError(504, f"no turn ended within the {result.reason}")
        svr = svr_json(result, other, chat.ignored)
        (message, finish), usage = message_json(result), usage_json(result)
        if not chat.stream:
            choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
            whole = {**head, "object": "chat.completion", "choices": [choice]}
            await answer.whole(whole | {"usage": usage, "svr": svr})
            return result.outcome
        delta = {name: message[name] for name in ("content", "refusal") if message.get(name)}
        await answer.event(_chunk(head, delta))
        await answer.event(_chunk(head, {}, finish) | {"svr": svr})
        if chat.include_usage:
            await answer.event(_chunk(head, {}) | {"choices": [], "usage": usage})
        await answer.end()
        return result.outcome

    async def _send_turns(self, turns: "_Turns", head: dict[str, Any], answer: "_Answer") -> None:
        """A comment for each turn as it ends, which clients ignore."""
        started = False
        while (turn := await turns.queue.get()) is not None:
            if not started:  # not before: an earlier failure still has a status of its own
                await answer.event(_chunk(head, {"role": "assistant", "content": ""}))
                started = True
            await answer.comment(f"svr.turn {json.dumps(turn_json(turn))}")

    def _controller_for(self, chat: ChatRequest) -> tuple[Controller, list[str]]:
        """A request's controller, and its settings that the certificate does not cover."""
        number = next(self._numbers)
        controller = controlled(
            self._controller,
            chat,
            client=_client(self._policy, chat, number),
            second=self._second and _client(self._second, chat, number),
            seconds=self._limits.seconds,
        )
        other = uncertified(self._controller, controller, chat)
        if not other:
            controller = replace(controller, certificate=self._controller.certificate)
        if not self._policy.fits(controller.first_prompt(chat.question)):
            raise ServingError(400, "the question is too long for the policy's prompt")
        return controller, other


class _Turns:
    """The turns of a request as they end, and None behind the last."""

    def __init__(self, count_turn: Callable[[Turn], None]) -> None:
        self.queue: asyncio.Queue[Turn | None] = asyncio.Queue()
        self._count = count_turn

    def add(self, turn: Turn) -> None:
        self._count(turn)
        self.queue.put_nowait(turn)

    def end(self) -> None:
        self.queue.put_nowait(None)


class _Answer:
    """Sends one answer, whole or as server-sent events."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._asgi, self._send = (scope, receive, send), send
        self._streaming = False

    async def whole(self, content: dict[str, Any]) -> None:
        await _json(content)(*self._asgi)

    async def refuse(self, error: ServingError) -> None:
        """Answer with an error, in the stream if it has started."""
        if self._streaming:
            await self._line(f"data: {json.dumps(error_json(error))}", more=False)
        else:
            await _refusal(error)(*self._asgi)

    async def event(self, content: dict[str, Any]) -> None:
        await self._line(f"data: {json.dumps(content)}")

    async def comment(self, text: str) -> None:
        await self._line(f": {text}")

    async def end(self) -> None:
        await self._line("data: [DONE]", more=False)

    async def _line(self, line: str, more: bool = True) -> None:
        if not self._streaming:
            self._streaming = True
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            start = {"type": "http.response.start", "status": 200, "headers": headers}
            await self._send(start)
        body = f"{line}\n\n".encode("ascii")
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _chunk(head: dict[str, Any], delta: dict[str, Any], finish: str | None = None) -> Any:
    """One event of a streamed completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    return head | {"object": "chat.completion.chunk", "choices": [choice]}


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
        sampling = replace(chat.sampling, max_tokens=max_tokens, seed=seed)
        return backend.complete(messages, sampling)

    return complete


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, str], seconds: float) -> str:
    """Do ``work``, but drop it when the client disconnects, or takes the answer too slowly.

    Raises ClientDisconnect then.
    """

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        both = {task, gone}
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
