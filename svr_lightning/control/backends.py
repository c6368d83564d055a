"""Where the server gets completions from: another server, or an engine beside this process.

A backend completes one prompt at a time for each of many callers. Cancelling a call drops its
request there.
"""

import asyncio
import contextlib
import json
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import httpx

from svr_lightning.control.protocol import ServingError
from svr_lightning.core.types import AnyCompletion, Message, TokenScores
from svr_lightning.engines.base import Engine, Output, Request, SamplingParams
from svr_lightning.engines.chat_protocol import (
    MalformedError,
    UnusableError,
    is_retried,
    read_answer,
    request_body,
    retry_delay,
    server_message,
)
from svr_lightning.engines.connections import Connections
from svr_lightning.errors import typed_line
from svr_lightning.rollout.driver import completion_of
from svr_lightning.rollout.rendering import Renderer

TRIES = 3
"""Attempts of a request to another server. A server's ``Retry-After`` is passed on instead."""
_CONNECT_SECONDS = 5.0
_FIRST_DELAY = 0.2


class Upstream:
    """A server that speaks the chat-completions protocol.

    Args:
        base_url: address up to the version, such as ``http://127.0.0.1:8000/v1``.
        model: the policy's name there.
        key: sent as bearer token.
        chat_template_kwargs: for its chat template.
        logprobs: ask for the log-probabilities of sampled tokens.
        concurrency: connections at most.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        key: str | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        logprobs: bool = False,
        concurrency: int = 256,
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model, self._key = model, key
        self._template, self.scored = chat_template_kwargs or {}, logprobs
        self._concurrency = concurrency
        self._http: Connections

    def start(self) -> None:
        """Open the connection pool."""
        self._http = Connections(self._concurrency, _CONNECT_SECONDS, key=self._key)

    async def stop(self) -> None:
        """Close the connections."""
        await self._http.close()

    def fault(self) -> str | None:
        """Not known before it is asked."""
        return None

    def fits(self, messages: Sequence[Message]) -> bool:
        """The server decides."""
        return True

    async def complete(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> AnyCompletion:
        """Send a request, and retry temporary failures."""
        body = request_body(
            self._model,
            messages,
            sampling,
            chat_template_kwargs=self._template,
            logprobs=self.scored,
        )
        data, jitter = json.dumps(body).encode("ascii"), random.Random(sampling.seed)  # noqa: S311
        for tries in count(1):
            try:
                return await self._once(data)
            except ServingError as error:
                again = error.status in (429, 502) and error.retry_after is None
                if tries == TRIES or not again:
                    raise
                await asyncio.sleep(retry_delay(tries, _FIRST_DELAY, jitter.random(), None))
        raise AssertionError

    async def _once(self, data: bytes) -> AnyCompletion:
        try:
            response, body = await self._http.exchange(self._url, data)
            if response.status_code == 200:
                return read_answer(body)
        except httpx.RequestError as error:
            raise ServingError(502, f"the model's server is gone: {typed_line(error)}") from error
        except (MalformedError, UnusableError) as error:
            status = 502 if isinstance(error, MalformedError) else 500
            raise ServingError(status, f"the model's server: {error}") from error
        status = response.status_code
        message = f"the model's server answers HTTP {status}, {server_message(body, self._key)}"
        if status == 429:
            asked = response.headers.get("retry-after", "")
            sent = asked if asked.isascii() and asked.isprintable() else ""
            raise ServingError(429, message, sent or None)
        # It may refuse only this request, for example because its prompt is too long.
        told = 502 if is_retried(status) else 400 if status in (400, 413, 422) else 500
        raise ServingError(told, message)


class Failure(NamedTuple):
    """A failed step of the engine, with the requests of its batch."""

    ids: set[int]
    why: str


class EngineBackend:
    """An engine in a separate process. One batch holds the requests of all callers.

    Reading requests and writing answers takes as long as sampling from a small policy. In a thread
    beside the engine they would share its interpreter and halve its speed.

    Args:
        engine: leads to :func:`serve_engine`.
        renderer: for prompts and completion texts.
    """

    scored = True
    """Whether completions have the log-probabilities that some rules read."""

    def __init__(self, engine: Connection, renderer: Renderer) -> None:
        self._engine, self._renderer = engine, renderer
        # A connection may block during a long step; the event loop must not wait for it.
        self._sending = ThreadPoolExecutor(1, "to the engine")
        self._hearing = threading.Thread(target=self._listen, name="from the engine", daemon=True)
        self._running: dict[int, asyncio.Future[Output]] = {}
        self._numbers = count()
        self._fault: str | None = None
        self._ended = False

    def start(self) -> None:
        """Start receiving from the engine."""
        self._loop = asyncio.get_running_loop()
        self._hearing.start()

    async def stop(self) -> None:
        """Stop the engine; running requests fail."""
        self._end("the server is shutting down")
        self._sending.submit(self._engine.send, None)
        await asyncio.to_thread(self._hearing.join, 10.0)

    def fault(self) -> str | None:
        """The error of the last step, or of the end of the process."""
        return self._fault

    def fits(self, messages: Sequence[Message]) -> bool:
        """Whether it fits without cutting."""
        return self._renderer.fits(messages)

    def scores_of(self, completion: Any, answer: str | None) -> TokenScores:
        """The scores that some stopping rules read."""
        return self._renderer.token_scores(completion, answer)

    async def complete(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> AnyCompletion:
        """Add a request to the batch and wait for its completion."""
        if self._ended:
            raise ServingError(503, f"the engine is gone: {self._fault}")
        ids = self._renderer.prompt_ids(messages)
        room = self._renderer.max_model_len - len(ids)
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        request = Request(id=next(self._numbers), prompt_ids=ids, sampling=sampling)
        future = self._running[request.id] = self._loop.create_future()
        self._sending.submit(self._engine.send, request)
        try:
            return completion_of(self._renderer, ids, await future)
        finally:
            if self._running.pop(request.id, None) is not None:  # cancelled
                self._sending.submit(self._engine.send, request.id)

    def _listen(self) -> None:
        """Deliver the results of a step, with one wake-up of the event loop for all of them."""
        tell = self._loop.call_soon_threadsafe
        try:
            while True:
                said: list[Output] | Failure = self._engine.recv()
                if isinstance(said, Failure):
                    tell(self._fail, said)
                else:
                    tell(self._settle, said)
        except (EOFError, OSError):
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                tell(self._end, "its process has ended")

    def _settle(self, outputs: list[Output]) -> None:
        self._fault = None
        for output in outputs:
            future = self._running.pop(output.id, None)
            if future is not None and not future.done():
                future.set_result(output)

    def _fail(self, failure: Failure) -> None:
        self._fault = failure.why
        for number in failure.ids & self._running.keys():
            future = self._running.pop(number)
            if not future.done():  # one error each, since its turns so far are added to it
                future.set_exception(ServingError(503, f"the engine failed: {failure.why}"))

    def _end(self, why: str) -> None:
        if not self._ended:
            self._ended = True
            self._fail(Failure(set(self._running), why))


def serve_engine(server: Connection, engine: Engine, sampling: AbstractContextManager[Any]) -> None:
    """Complete what an :class:`EngineBackend` asks for, until it ends.

    Args:
        server: leads to it. A request joins the batch at the next step, its number drops it, and
            None is the end.
        engine: started, and synced within ``sampling``.
        sampling: the context in which the engine serves the policy.
    """
    running: set[int] = set()
    gone = contextlib.suppress(EOFError, ConnectionError)  # the server was killed
    with server, sampling, gone:
        while True:
            while not running or server.poll():
                order: Request | int | None = server.recv()
                if order is None:
                    return
                if isinstance(order, Request):
                    try:
                        engine.submit(order)
                    except Exception as error:  # the others go on
                        server.send(Failure({order.id}, typed_line(error)))
                    else:
                        running.add(order.id)
                elif order in running:
                    running.remove(order)
                    engine.drop(order)
            try:
                ended = [output for output in engine.step() if output.id in running]
            except Exception as error:  # out of memory, say: other requests may fit
                engine.cancel()
                server.send(Failure(running.copy(), typed_line(error)))
                running.clear()
                continue
            if ended:
                running -= {output.id for output in ended}
                server.send(ended)


Backend = Upstream | EngineBackend
