"""The engine for a server that speaks the OpenAI chat-completions protocol."""

import contextlib
import warnings
from concurrent import futures
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal

from svr_lightning.clients.chat_answers import OF_ONE_REQUEST, ServerError
from svr_lightning.clients.chat_model import ChatModel, check_fields
from svr_lightning.clients.connections import (
    Access,
    Connections,
    Retries,
    check_url,
    read_access,
    read_key,
)
from svr_lightning.core.ranges import Count, Positive, check_arguments
from svr_lightning.core.types import RemoteCompletion
from svr_lightning.engines.base import Engine, Refusal, Request
from svr_lightning.errors import ConfigError, require

DEFAULT_KEY = "OPENAI_API_KEY"
_INSTEAD = (
    "; a query belongs in model.engine.query, and a key in an environment variable such as "
    "OPENAI_API_KEY, or in model.engine.headers"
)
REFUSALS = 8
"""Number of refused requests before the first answer that stops the run."""


class OpenAIEngine(Engine):
    """Asks a server for completions. For evaluation only: it returns no token ids.

    Each request is a coroutine of a background event loop, whose result is taken as soon as it is
    there.

    Args:
        base_url: address up to the version, such as ``http://127.0.0.1:8000/v1``.
        model_name: what the server calls the policy.
        api_key_env: environment variable that holds the key; None reads ``OPENAI_API_KEY`` if it
            is set. The key itself is not stored.
        concurrency: maximum number of requests in flight.
        timeout: seconds that one try may take, waiting in the server's queue included.
        tries: how often one request is sent before the run stops.
        logprobs: ask for the log-probabilities of sampled tokens, which some stopping rules read.
        fields: renames fields of a request, or leaves them out:
            ``{max_tokens: max_completion_tokens, temperature: null}``.
        headers: of each request; ``$NAME`` stands for the value of an environment variable.
        query: of each address, such as ``{api-version: "2024-10-21"}``; ``$NAME`` as well.

    Raises:
        ConfigError: if an argument is out of range, or the key cannot be sent.
    """

    reads_tokens = False

    @check_arguments
    def __init__(
        self,
        base_url: str,
        model_name: str,
        api_key_env: str | None = None,
        concurrency: Count = 64,
        timeout: Positive = 600.0,
        tries: Count = 6,
        logprobs: bool = False,
        fields: dict[str, str | None] | None = None,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
    ) -> None:
        check_url(base_url, "model.engine.base_url", _INSTEAD)
        require(
            bool(model_name.strip()),
            "model.engine.model_name is empty; give the name that the server lists",
        )
        self.model = ChatModel(
            base_url=base_url,
            name=model_name,
            logprobs=logprobs,
            fields=check_fields(fields or {}, "model.engine.fields"),
        )
        self.api_key_env = api_key_env
        self.max_batch = concurrency
        self.retries = Retries(tries=tries, timeout=timeout)
        self._headers = headers or {}
        self._query = query or {}
        self.access()  # a variable that is not set is reported before any data is read
        self._answered = 0
        self._refused = 0
        self._portal: BlockingPortal | None = None
        self._thread = contextlib.ExitStack()
        self._running: dict[int, futures.Future[RemoteCompletion | Refusal]] = {}
        self._http: Connections

    def access(self) -> Access:
        """The key, headers and query, read where they are used, so that no value is stored."""
        key = read_key(
            self.api_key_env or DEFAULT_KEY,
            "model.engine.api_key_env",
            needed=self.api_key_env is not None,
        )
        return read_access(key, self._headers, self._query, "model.engine.{}")

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """The server has the model."""

    def sync(self, model: Any, version: int) -> None:
        """The server has its own weights."""

    def submit(self, request: Request) -> None:
        """Start a request; the first one opens connections, which last until the engine sleeps."""
        if self._portal is None:
            self._http = Connections(self.max_batch, self.retries, access=self.access())
            self._portal = self._thread.enter_context(start_blocking_portal())
        self._running[request.id] = self._portal.start_task_soon(self._complete, request)

    def step(self) -> dict[int, RemoteCompletion | Refusal]:
        """Outputs of finished requests; waits for the first one, if anything runs.

        Raises:
            ConfigError: if no request can be completed.
        """
        running = self._running.values()
        done, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
        ended = [number for number, future in self._running.items() if future in done]
        return {number: self._running.pop(number).result() for number in ended}

    def cancel(self) -> None:
        """Stop all requests."""
        self.sleep()

    def sleep(self) -> bool:
        """Stop all requests and close the connections; the next submit opens new ones."""
        if self._portal is None:
            return False
        for future in list(self._running.values()):  # else each would find its server gone
            future.cancel()
        with contextlib.suppress(httpx.HTTPError, OSError):
            self._portal.call(self._http.close)
        self._running.clear()
        self._portal.call(self._portal.stop, True)
        self._thread.close()
        self._portal = None
        return False

    async def _complete(self, request: Request) -> RemoteCompletion | Refusal:
        """Ask as soon as fewer than ``concurrency`` requests are in flight.

        Raises:
            ConfigError: if the server is gone, rejects the key, or refuses every request.
        """
        asked = request.messages, request.sampling, request.seed
        try:
            completion = await self.model.complete(self._http, *asked)
        except ServerError as error:
            reason = self._reason(error)
            self._refused += 1
            # One prompt may be too long. If all are refused, the requests are wrong.
            require(
                self._answered > 0 or self._refused < REFUSALS,
                f"{self.model.base_url} completed none of the first {self._refused} prompts: "
                f"{reason}; fix the request",
            )
            return Refusal(reason)
        self._answered += 1
        if completion.text and not completion.completion_tokens:
            warnings.warn(
                f"{self.model.base_url} does not count tokens, so records have 0 of them",
                stacklevel=2,
            )
        return completion

    def _reason(self, error: ServerError) -> str:
        """Why one problem has no answer.

        Raises:
            ConfigError: if none can have one.
        """
        tries = f"in {error.tries} tries, the last time: {error}"
        if error.status == 200:
            return tries if error.temporary else str(error)
        if error.temporary:
            fault = (
                f"did not answer {tries}. Start the server again and repeat the command, which "
                "continues after the finished problems"
            )
        elif error.status in OF_ONE_REQUEST:
            return f"the server refuses it: {error}"
        else:
            fault = (
                f"answers with {error}; check model.engine.base_url, model.engine.model_name="
                f"{self.model.name!r}, and the key in {self.api_key_env or DEFAULT_KEY}, whose "
                "name model.engine.api_key_env sets"
            )
        raise ConfigError(f"{self.model.base_url} {fault}") from error
