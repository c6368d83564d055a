"""Where the server gets completions from: another server, or an engine in a thread.

A backend completes one prompt at a time for each of many callers. Cancelling a call drops its
request there.
"""

import asyncio
import contextlib
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from itertools import count
from typing import Any

from svr_lightning.control.controller import scores_of_reply
from svr_lightning.core.parsing import Reading
from svr_lightning.core.types import AnyCompletion, Decoding, Message, TokenScores
from svr_lightning.engines.base import Engine, Output, Request
from svr_lightning.engines.chat_client import ChatClient, Fields, Retries, request_body
from svr_lightning.engines.server_error import ServerError
from svr_lightning.errors import typed_line
from svr_lightning.rollout.driver import completion_of
from svr_lightning.rollout.rendering import Renderer

RETRIES = Retries(tries=3, first_delay=0.2, timeout=None, patience=5.0)
"""Of requests to another server. A limit on one try is the request's own; if the server asks for a
longer wait than ``patience``, the client gets the error."""


class Backend(ABC):
    """Completes prompts."""

    room: AbstractAsyncContextManager[Any] = contextlib.nullcontext()
    """What each question enters with all its turns."""

    def start(self) -> None:
        """Get ready, in the event loop of the requests."""
        return

    @abstractmethod
    async def stop(self) -> None:
        """Release everything; running requests fail."""

    def fault(self) -> str | None:
        """What is wrong, if it is known before a request fails."""
        return None

    def fits(self, messages: Sequence[Message]) -> bool:
        """Whether a prompt fits without cutting, as far as it is known."""
        return True

    def scores_of(self, completion: Any, reading: Reading) -> TokenScores:
        """The scores that some stopping rules read."""
        return scores_of_reply(completion, reading)

    @abstractmethod
    async def complete(
        self, messages: Sequence[Message], sampling: Decoding, seed: int
    ) -> AnyCompletion:
        """Complete one prompt.

        Raises:
            ServerError: with the status for the client of this server.
        """


class Upstream(Backend):
    """A server that speaks the chat-completions protocol.

    Args:
        base_url: address up to the version, such as ``http://127.0.0.1:8000/v1``.
        model: the policy's name there.
        key: sent as bearer token.
        chat_template_kwargs: for its chat template.
        logprobs: ask for the log-probabilities of sampled tokens.
        fields: renames fields of a request, or leaves them out.
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
        fields: Fields | None = None,
        concurrency: int = 256,
    ) -> None:
        self._client = ChatClient(base_url, key=key, concurrency=concurrency, retries=RETRIES)
        self._model = model
        self._options: Any = {
            "chat_template_kwargs": chat_template_kwargs or {},
            "logprobs": logprobs,
            "fields": fields,
        }

    async def stop(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def complete(
        self, messages: Sequence[Message], sampling: Decoding, seed: int
    ) -> AnyCompletion:
        """Send a request, again after temporary failures."""
        try:
            body = request_body(self._model, messages, sampling, seed, **self._options)
            return await self._client.complete(body, seed)
        except ServerError as error:
            raise ServerError(
                f"the model's server: {error}",
                status=_status(error),
                code=error.code,
                retry_after=error.retry_after,
                refusal=error.refusal,
            ) from error


def _status(error: ServerError) -> int:
    """What a failed request to the model's server is for the client of this one."""
    passed_on = error.status == 429 or (400 <= error.status < 500 and not error.temporary)
    return error.status if passed_on else 502


class EngineBackend(Backend):
    """An engine in a thread of this process. One batch holds the requests of all callers.

    Args:
        engine: started.
        sampling: the context in which it serves the policy; the thread enters it.
        renderer: for prompts and completion texts.
    """

    def __init__(
        self, engine: Engine, sampling: AbstractContextManager[Any], renderer: Renderer
    ) -> None:
        self._engine, self._sampling, self._renderer = engine, sampling, renderer
        # A question that has begun ends before others begin: the prompts of a batch stay alike, and
        # while one batch runs, the next turns of another one are written.
        self.room = asyncio.Semaphore(2 * engine.max_batch)
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._orders = queue.SimpleQueue[Request | int | None]()
        """A request joins the batch at the next step, its number drops it, and None is the end."""
        self._running: dict[int, asyncio.Future[Output]] = {}
        self._numbers = count()
        self._fault: str | None = None

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its current step; running requests fail."""
        self._fail(set(self._running), "the server is shutting down")
        self._orders.put(None)
        await asyncio.to_thread(self._thread.join, 10.0)

    def fault(self) -> str | None:
        """The error of the last step, if it failed."""
        return self._fault

    def fits(self, messages: Sequence[Message]) -> bool:
        """Whether it fits without cutting."""
        return self._renderer.fits(messages)

    def scores_of(self, completion: Any, reading: Reading) -> TokenScores:
        """The scores that some stopping rules read."""
        return self._renderer.token_scores(completion, reading)

    async def complete(
        self, messages: Sequence[Message], sampling: Decoding, seed: int
    ) -> AnyCompletion:
        """Add a request to the batch and wait for its completion."""
        ids = self._renderer.prompt_ids(messages)
        room = self._renderer.max_model_len - len(ids)
        limit = min(sampling.max_completion_tokens, room)
        sampling = replace(sampling, max_completion_tokens=limit)
        request = Request(id=next(self._numbers), prompt_ids=ids, sampling=sampling, seed=seed)
        future = self._running[request.id] = self._loop.create_future()
        self._orders.put(request)
        try:
            return completion_of(self._renderer, ids, await future)
        finally:
            if self._running.pop(request.id, None) is not None:  # cancelled
                self._orders.put(request.id)

    def _deliver(self, outputs: list[Output]) -> None:
        self._fault = None
        for output in outputs:
            future = self._running.pop(output.id, None)
            if future is not None and not future.done():
                future.set_result(output)

    def _fail(self, ids: set[int], reason: str) -> None:
        self._fault = reason
        for number in ids & self._running.keys():
            future = self._running.pop(number)
            if not future.done():  # one error each, since its turns so far are added to it
                future.set_exception(ServerError(f"the engine failed: {reason}", status=503))

    # --- in the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        in_batch: set[int] = set()
        with self._sampling:
            while self._follow_orders(in_batch):
                try:
                    ended = [o for o in self._engine.step() if isinstance(o, Output)]
                except Exception as error:  # out of memory, say: other requests may fit
                    self._engine.cancel()
                    self._call(self._fail, in_batch.copy(), typed_line(error))
                    in_batch.clear()
                    continue
                if ended:
                    in_batch.difference_update(output.id for output in ended)
                    self._call(self._deliver, ended)

    def _follow_orders(self, in_batch: set[int]) -> bool:
        """Submit and drop what was ordered; False at the end."""
        while not in_batch or not self._orders.empty():
            order = self._orders.get()
            if order is None:
                return False
            if isinstance(order, Request):
                try:
                    self._engine.submit(order)
                except Exception as error:  # the others continue
                    self._call(self._fail, {order.id}, typed_line(error))
                else:
                    in_batch.add(order.id)
            elif order in in_batch:
                in_batch.remove(order)
                self._engine.drop(order)
        return True

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call it in the event loop, once for all results of a step."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)
