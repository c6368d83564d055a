"""Where the server gets completions from: another server, or an engine in this process.

A backend completes one prompt at a time for each of many callers. Cancelling a call drops its
request there.
"""

import asyncio
import json
import queue
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

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
from svr_lightning.engines.openai import exchange, open_http, without_key
from svr_lightning.errors import typed_line
from svr_lightning.rollout.driver import completion_of
from svr_lightning.rollout.rendering import Renderer

TRIES = 3
"""Of a request to another server. One that says when to come again is not asked in between."""
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
        self._template, self._logprobs = chat_template_kwargs or {}, logprobs
        self._concurrency = concurrency
        self._http: httpx.AsyncClient

    def start(self) -> None:
        """Open the connection pool."""
        self._http = open_http(self._key, self._concurrency, _CONNECT_SECONDS)

    async def stop(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def fault(self) -> str | None:
        """Not known before it is asked."""
        return None

    def fits(self, messages: Sequence[Message]) -> bool:
        """The server decides."""
        return True

    async def complete(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> AnyCompletion:
        """Ask, and again where it may help."""
        body = request_body(
            self._model,
            messages,
            sampling,
            chat_template_kwargs=self._template,
            logprobs=self._logprobs,
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
            response, body = await exchange(self._http, self._url, data)
            if response.status_code == 200:
                return read_answer(body)
        except httpx.RequestError as error:
            raise ServingError(502, f"the model's server is gone: {typed_line(error)}") from error
        except (MalformedError, UnusableError) as error:
            status = 502 if isinstance(error, MalformedError) else 500
            raise ServingError(status, f"the model's server: {error}") from error
        status = response.status_code
        said = without_key(server_message(body), self._key)
        message = f"the model's server answers HTTP {status}, {said}"
        if status == 429:
            raise ServingError(429, message, response.headers.get("retry-after"))
        # What it objects to may be this request alone: a prompt that is too long.
        told = 502 if is_retried(status) else 400 if status in (400, 413, 422) else 500
        raise ServingError(told, message)


class EngineBackend:
    """An engine in this process. One batch holds the requests of all callers.

    The engine steps in a thread of its own; a request joins the batch at the next step.

    Args:
        engine: started, and synced within ``sampling``.
        renderer: for prompts and completion texts.
        sampling: the context in which the engine serves the policy, entered in its thread.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        sampling: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._engine, self._renderer, self._sampling = engine, renderer, sampling
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running: dict[int, asyncio.Future[Output]] = {}
        self._numbers = count()
        self._fault: str | None = "the engine has not started"
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        """Start the engine's thread."""
        self._loop = asyncio.get_running_loop()
        self._fault = None
        self._thread.start()

    async def stop(self) -> None:
        """End the thread; what is still running fails."""
        self._orders.put(None)
        await asyncio.to_thread(self._thread.join, 10.0)

    def fault(self) -> str | None:
        """The error of the last step, or of the end of the thread."""
        return self._fault

    def fits(self, messages: Sequence[Message]) -> bool:
        """Whether the renderer would not cut it."""
        return self._renderer.fits(messages)

    def scores_of(self, completion: Any, answer: str | None) -> TokenScores:
        """What rules on log-probabilities read."""
        return self._renderer.token_scores(completion, answer)

    async def complete(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> AnyCompletion:
        """Join the batch and wait for the end of the completion."""
        if not self._thread.is_alive():
            raise ServingError(503, f"the engine is gone: {self._fault}")
        ids = self._renderer.prompt_ids(messages)
        room = self._renderer.max_model_len - len(ids)
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        request = Request(
            id=next(self._numbers), messages=messages, prompt_ids=ids, sampling=sampling
        )
        future: asyncio.Future[Output] = self._loop.create_future()
        self._orders.put(partial(self._submit, request, future))
        try:
            return completion_of(self._renderer, ids, await future)
        except asyncio.CancelledError:
            self._orders.put(partial(self._drop, request.id))
            raise

    # --- in the engine's thread ------------------------------------------------------------------

    def _work(self) -> None:
        try:
            with self._sampling():
                while self._take_orders():
                    self._step()
        except BaseException as error:
            self._fail(typed_line(error))
            raise
        self._fail("the server is shutting down")

    def _take_orders(self) -> bool:
        """Carry out what was ordered, waiting if nothing runs; False to end."""
        while not self._running or not self._orders.empty():
            order = self._orders.get()
            if order is None:
                return False
            order()
        return True

    def _submit(self, request: Request, future: asyncio.Future[Output]) -> None:
        if not future.cancelled():
            self._engine.submit(request)
            self._running[request.id] = future

    def _drop(self, number: int) -> None:
        if self._running.pop(number, None) is not None:
            self._engine.drop(number)

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except Exception as error:  # out of memory, say: other requests may fit
            self._engine.cancel()
            self._fail(typed_line(error))
            return
        self._fault = None
        ended = [output for output in outputs if output.id in self._running]
        self._tell([(self._running.pop(output.id), output) for output in ended])

    def _fail(self, why: str) -> None:
        self._fault = why
        failed = f"the engine failed: {why}"  # an error each, since it is told the turns so far
        self._tell([(one, ServingError(503, failed)) for one in self._running.values()])
        self._running.clear()

    def _tell(self, outcomes: list[tuple[asyncio.Future[Output], Any]]) -> None:
        """Hand over what a step brought, with one wake-up of the event loop for all of it."""
        if outcomes:
            self._loop.call_soon_threadsafe(_settle, outcomes)


Backend = Upstream | EngineBackend


def _settle(outcomes: list[tuple[asyncio.Future[Output], Any]]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, ServingError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
