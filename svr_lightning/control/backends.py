"""Where the server gets completions from: another server, or an engine in a thread.

A backend completes one prompt at a time for each of many callers. Cancelling a call drops its
request there.
"""

import asyncio
import contextlib
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from svr_lightning.clients.chat_answers import ServerError
from svr_lightning.clients.chat_model import ChatModel
from svr_lightning.clients.connections import Access, Connections, Retries
from svr_lightning.core.evidence import scores_of_reply
from svr_lightning.core.types import AnyCompletion, Decoding, Message, Reading, TokenScores
from svr_lightning.engines.base import Output, Request
from svr_lightning.errors import format_exception, one_line
from svr_lightning.rollout.driver import completion_of

if TYPE_CHECKING:
    from svr_lightning.policy.policy import Policy

RETRIES = Retries(tries=3, first_delay=0.2, timeout=None, patience=5.0)
"""How requests to another server are repeated. A limit on one try is the request's own; if the
server asks for a longer wait than ``patience``, the client gets the error."""
_CONNECTIONS = 256
"""Most connections to another server."""


class Backend(ABC):
    """Completes prompts."""

    admission: AbstractAsyncContextManager[Any] = contextlib.nullcontext()
    """Held while a question is answered; bounds concurrency."""
    on_error: Callable[[ServerError], None] | None = None
    """Called with the error of each failed try."""
    unsent: Sequence[str] = ()
    """Fields of a request that it does not hand on."""
    fault: str | None = None
    """What is wrong, if it is known before a request fails."""
    scores_of: Callable[[Any, Reading], TokenScores] = staticmethod(scores_of_reply)
    """Computes the scores that some stopping rules read."""

    @abstractmethod
    def lifespan(self) -> AbstractAsyncContextManager[None]:
        """Within it, it works, in the event loop of the requests; at its end they fail."""

    def fits(self, messages: Sequence[Message]) -> bool:
        """Whether a prompt fits without cutting, as far as it is known."""
        return True

    @abstractmethod
    async def complete(
        self, messages: Sequence[Message], sampling: Decoding, seed: int
    ) -> AnyCompletion:
        """Complete one prompt.

        Raises:
            ServerError: with the status for the client of this server.
        """


class Upstream(Backend):
    """A model behind another server.

    Args:
        model: completes the prompts.
        access: what the server asks for.
        name: what errors call the server.
    """

    def __init__(
        self,
        model: ChatModel,
        access: Access,
        name: str = "the model's server",
    ) -> None:
        self._model = model
        self._name = name
        self.unsent = [name for name, sent_as in model.fields.items() if sent_as is None]
        self._http = Connections(_CONNECTIONS, RETRIES, access=access)

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Close the connections at the end."""
        self._http.on_error = self.on_error
        try:
            yield
        finally:
            await self._http.close()

    async def complete(
        self, messages: Sequence[Message], sampling: Decoding, seed: int
    ) -> AnyCompletion:
        """Send a request, again after temporary failures."""
        try:
            return await self._model.complete(self._http, messages, sampling, seed)
        except ServerError as error:
            error.args = (f"{self._name}: {error}",)
            refuses = 400 <= error.status < 500 and not error.temporary
            if not refuses and error.status != 429:
                error.status = 502
            raise


class EngineBackend(Backend):
    """A policy whose engine works in a thread. One batch holds the requests of all callers."""

    def __init__(self, policy: "Policy") -> None:
        self._engine = policy.engine
        self._sampling = policy.sampling(0)
        self._renderer = policy.renderer
        self.scores_of = policy.scores_of
        # A question that has begun ends before others begin: the prompts of a batch stay alike, and
        # while one batch runs, the next turns of another one are written.
        self.admission = asyncio.Semaphore(2 * policy.engine.max_batch)
        self._orders = queue.SimpleQueue[tuple[Request, Future[Output]] | int | None]()
        """What joins the batch at the next step, or the number of what leaves it; None is the end.
        """
        self._numbers = count()

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Run the thread, which ends after its current step."""
        thread = threading.Thread(target=self._work, name="engine", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._orders.put(None)
            await asyncio.to_thread(thread.join, 10.0)

    def fits(self, messages: Sequence[Message]) -> bool:
        """Whether it fits without cutting."""
        try:
            return self._renderer.fits(messages)
        except Exception as error:  # a chat template may raise anything
            reason = f"messages: the policy's chat template refuses them ({one_line(error)})"
            raise ServerError(reason, status=400) from error

    async def complete(
        self, messages: Sequence[Message], sampling: Decoding, seed: int
    ) -> AnyCompletion:
        """Add a request to the batch and wait for its completion."""
        ids = self._renderer.prompt_ids(messages)
        room = self._renderer.max_model_len - len(ids)
        limit = min(sampling.max_completion_tokens, room)
        sampling = replace(sampling, max_completion_tokens=limit)
        request = Request(id=next(self._numbers), prompt_ids=ids, sampling=sampling, seed=seed)
        future = Future[Output]()
        self._orders.put((request, future))
        try:
            return completion_of(self._renderer, ids, await asyncio.wrap_future(future))
        except asyncio.CancelledError:
            self._orders.put(request.id)
            raise

    # --- in the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        running = dict[int, Future[Output]]()
        goes_on = True
        with self._sampling:
            while goes_on:
                try:
                    goes_on = self._follow_orders(running)
                    outputs = self._engine.step()
                except Exception as error:  # out of memory, say: other requests may fit
                    self._engine.cancel()
                    self._fail(running, format_exception(error))
                    continue
                for number, output in outputs.items():
                    if isinstance(output, Output) and number in running:
                        self.fault = None
                        running.pop(number).set_result(output)
        self._fail(running, "the server is shutting down")

    def _follow_orders(self, running: dict[int, Future[Output]]) -> bool:
        """Submit what was ordered and drop what was cancelled. False is the end."""
        while not (running and self._orders.empty()):
            order = self._orders.get()
            if order is None:
                return False
            if isinstance(order, int):
                if running.pop(order, None):
                    self._engine.drop(order)
            else:
                request, future = order
                if future.set_running_or_notify_cancel():  # from now on it cannot be cancelled
                    running[request.id] = future
                    self._engine.submit(request)
        return True

    def _fail(self, running: dict[int, Future[Output]], reason: str) -> None:
        self.fault = reason
        for future in running.values():  # one error each, since its turns so far are added to it
            error = ServerError(f"the engine failed: {reason}", 503)
            if self.on_error is not None:
                self.on_error(error)
            future.set_exception(error)
        running.clear()
