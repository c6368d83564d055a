"""The chat-completions API over a controller: every answer is refined until the rule accepts it."""

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

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
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from svr_lightning.control.backends import Backend
from svr_lightning.control.controller import Client, Controller, OnTurn, Result
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

    def heard(self, turn: Turn) -> None:
        """Count a turn."""
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
        refusals: Any = {ServingError: _refused}
        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=refusals)

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
        return JSONResponse({"object": "list", "data": [listed]})

    async def _health(self, request: Request) -> Response:
        fault = self._policy.fault()
        said = {"status": "ok"} if fault is None else {"status": "failing", "fault": fault}
        return JSONResponse(said, 200 if fault is None else 503)

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
        begun = time.monotonic()
        answer = _Answer(send)
        try:
            outcome = await self._take(request, answer)
            self._metrics.seconds.observe(time.monotonic() - begun)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # by uvicorn alone; the task has nothing else to do
            outcome = "error_503"
            await answer.refuse(ServingError(503, "the server is shutting down"))
        except ServingError as error:
            outcome = f"error_{error.status}"
            await answer.refuse(error)
        except Exception as error:  # an error in this program ends one request, not the server
            _log.exception("a request failed")
            outcome = "error_500"
            await answer.refuse(ServingError(500, typed_line(error)))
        finally:
            self._metrics.requests.labels(outcome).inc()

    async def _take(self, request: Request, answer: "_Answer") -> str:
        self._require_key(request)
        if self._running >= self._limits.requests:
            raise ServingError(429, "all places are taken; come again", "1")
        self._running += 1
        self._metrics.running.inc()
        try:
            body = await self._body(request)
            longest = self._controller.completion_limit
            asked = read_request(body, self._model, longest, self._temperature)
            job = self._job(asked)
            reply = self._stream(job, answer) if asked.stream else self._reply(job, answer)
            most = self._limits.seconds + self._limits.transfer_seconds
            return await _while_connected(request.receive, reply, most)
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

    def _job(self, asked: ChatRequest) -> "_Job":
        """A checked request with its controller."""
        number = next(self._numbers)
        controller = controlled(
            self._controller,
            asked,
            client=_client(self._policy, asked, number),
            second=self._second and _client(self._second, asked, number),
            seconds=self._limits.seconds,
        )
        other = uncertified(self._controller, controller, asked)
        if not other:
            controller = replace(controller, certificate=self._controller.certificate)
        if controller.rule.needs_tokens and not self._policy.scored:
            raise ServingError(400, "svr.rule: this server asks for no log-probabilities")
        if not self._policy.fits(controller.first_prompt(asked.question)):
            raise ServingError(400, "the question is too long for the policy's prompt")
        return _Job(asked, controller, other)

    async def _reply(self, job: "_Job", answer: "_Answer") -> str:
        """Solve, then answer in one piece."""
        result, svr = await job.solve(self._metrics.heard)
        message, finish = message_json(result)
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        found = self._head("chat.completion") | {"choices": [choice]}
        await answer.whole(found | {"usage": usage_json(result), "svr": svr})
        return result.outcome

    async def _stream(self, job: "_Job", answer: "_Answer") -> str:
        """A comment for each turn as it ends, which clients ignore; then the answer's text."""
        head = self._head("chat.completion.chunk")

        async def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> None:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            await answer.event(head | {"choices": [choice]} | more)

        await answer.begin_stream()
        await chunk({"role": "assistant", "content": ""})
        turns: asyncio.Queue[Turn | None] = asyncio.Queue()

        def heard(turn: Turn) -> None:
            self._metrics.heard(turn)
            turns.put_nowait(turn)

        solving = asyncio.ensure_future(job.solve(heard))
        solving.add_done_callback(lambda _: turns.put_nowait(None))
        try:
            while (turn := await turns.get()) is not None:
                await answer.comment(f"svr.turn {json.dumps(turn_json(turn))}")
            result, svr = await solving
        finally:
            solving.cancel()
        message, finish = message_json(result)
        await chunk({name: message[name] for name in ("content", "refusal") if message.get(name)})
        await chunk({}, finish, svr=svr)
        if job.asked.include_usage:
            await answer.event(head | {"choices": [], "usage": usage_json(result)})
        await answer.end_stream()
        return result.outcome

    def _head(self, kind: str) -> dict[str, Any]:
        number = secrets.token_hex(12)
        return {
            "id": f"chatcmpl-{number}",
            "object": kind,
            "created": int(time.time()),
            "model": self._model,
        }


def _refused(_: Request, error: ServingError) -> Response:
    return JSONResponse(error_json(error), error.status)


class _Job(NamedTuple):
    """An accepted request."""

    asked: ChatRequest
    controller: Controller
    uncertified: list[str]

    async def solve(self, on_turn: OnTurn) -> tuple[Result, dict[str, Any]]:
        """The result, and the ``svr`` field of its answer."""
        result = await self.controller.solve_async(self.asked.question, on_turn)
        if not result.turns:
            raise ServingError(504, f"no turn ended within the {result.reason}")
        return result, svr_json(result, self.uncertified, self.asked.ignored)


class _Answer:
    """Sends one answer, whole or as server-sent events."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False

    async def whole(
        self, content: dict[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        body = json.dumps(content).encode("ascii")
        told = {"content-type": "application/json", "content-length": str(len(body))}
        await self._begin(status, told | dict(headers or {}))
        await self._send({"type": "http.response.body", "body": body})

    async def begin_stream(self) -> None:
        kept = {"content-type": "text/event-stream", "cache-control": "no-store"}
        await self._begin(200, kept)

    async def event(self, content: dict[str, Any]) -> None:
        await self._line(f"data: {json.dumps(content)}")

    async def comment(self, text: str) -> None:
        await self._line(f": {text}")

    async def end_stream(self) -> None:
        await self._line("data: [DONE]", more=False)

    async def refuse(self, error: ServingError) -> None:
        """Answer with an error, in the stream if it has begun."""
        content = error_json(error)
        if self._begun:
            await self._line(f"data: {json.dumps(content)}", more=False)
        else:
            headers = {"retry-after": error.retry_after} if error.retry_after else None
            await self.whole(content, error.status, headers)

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self._begun = True
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _line(self, line: str, more: bool = True) -> None:
        body = f"{line}\n\n".encode("ascii")
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _client(backend: Backend, asked: ChatRequest, number: int) -> Client:
    """A backend as a controller's client."""
    turns = count(1)

    def ask(messages: list[Message], max_tokens: int) -> Awaitable[AnyCompletion]:
        seed = turn_seed(asked, number, next(turns))
        sampling = replace(asked.sampling, max_tokens=max_tokens, seed=seed)
        return backend.complete(messages, sampling)

    return ask


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, str], seconds: float) -> str:
    """Do ``work``, but drop it when the client goes, or takes the answer too slowly.

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
