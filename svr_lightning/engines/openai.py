"""A server that speaks the OpenAI chat-completions protocol, as an engine.

Answers are kept in a journal, if there is one, before they are used, so that an interrupted
evaluation does not ask for them again.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import numpy as np

from svr_lightning.core.types import RemoteCompletion
from svr_lightning.engines.answers import AnswerJournal
from svr_lightning.engines.base import Engine, Refusal, Request, TextOutput
from svr_lightning.engines.chat_protocol import (
    MalformedError,
    UnusableError,
    is_retried,
    read_answer,
    request_body,
    request_key,
    retry_delay,
    server_message,
)
from svr_lightning.engines.connections import Connections
from svr_lightning.engines.in_flight import InFlight
from svr_lightning.errors import ConfigError, one_line, require

DEFAULT_KEY = "OPENAI_API_KEY"
REFUSALS = 8
"""Number of refused requests before the first answer that stops the run."""
_CONNECT_SECONDS = 30.0


class _Failure(NamedTuple):
    """A failed try that may be repeated."""

    reason: str
    retry_after: str | None = None
    answered: bool = False
    """The server answered, but not with a chat completion."""


class OpenAIEngine(Engine):
    """Asks a server for completions. For evaluation only: it returns no token ids.

    Args:
        base_url: address up to the version, such as ``http://127.0.0.1:8000/v1``.
        model_name: what the server calls the policy.
        api_key_env: environment variable that holds the key; None reads ``OPENAI_API_KEY`` if it
            is set. The key itself is not stored.
        concurrency: maximum number of requests in flight.
        timeout: seconds that one try may take, waiting in the server's queue included.
        tries: how often one request is sent before the run stops.
        patience: seconds that one request may take with all its tries and the waits between them.
        first_delay: seconds before the second try; each further wait is twice as long.
        logprobs: ask for the log-probabilities of sampled tokens, which some stopping rules read.

    Raises:
        ConfigError: if an argument is out of range, or the key cannot be sent.
    """

    reads_tokens = False
    version = -1
    dtype = None

    def __init__(
        self,
        base_url: str,
        model_name: str,
        api_key_env: str | None = None,
        concurrency: int = 64,
        timeout: float = 600.0,
        tries: int = 6,
        patience: float = 1800.0,
        first_delay: float = 1.0,
        logprobs: bool = False,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        check_url(self.base_url, "model.engine.base_url")
        limits = {"concurrency": concurrency, "timeout": timeout, "tries": tries}
        for name, value in {**limits, "patience": patience}.items():
            require(value >= 1, f"model.engine.{name}={value} must be at least 1")
        require(
            bool(model_name.strip()),
            "model.engine.model_name is empty; give the name that the server lists",
        )
        self.model_name = model_name
        self.api_key_env = api_key_env
        self.max_batch = concurrency
        self.timeout, self.tries = timeout, tries
        self.patience, self.first_delay = patience, first_delay
        self.logprobs = logprobs
        self.journal: AnswerJournal | None = None
        self.chat_template_kwargs: Mapping[str, Any] = {}
        self.api_key()  # a variable that is not set is reported before any data is read
        self._asked = InFlight[RemoteCompletion | str]()
        self._http: Connections
        self._slots: asyncio.Semaphore
        self._recalled: list[TextOutput] = []
        self._tries: dict[int, int] = {}
        self._answered = self._refused = 0

    @property
    def key_name(self) -> str:
        """The environment variable that is read."""
        return self.api_key_env or DEFAULT_KEY

    def api_key(self) -> str | None:
        """The key, read where it is used.

        Raises:
            ConfigError: if a variable was named that is not set, or the key is no plain text.
        """
        key = os.environ.get(self.key_name, "").strip()
        require(
            bool(key) or self.api_key_env is None,
            f"model.engine.api_key_env={self.api_key_env}: this variable is not set",
        )
        require(
            key.isascii() and key.isprintable(),
            f"the key in {self.key_name} holds characters that a header cannot; set it anew",
        )
        return key or None

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """The server has the model."""

    def sync(self, model: Any, version: int) -> None:
        """The server has its own weights."""

    def submit(self, request: Request) -> None:
        """Send a request as soon as fewer than ``concurrency`` are in flight."""
        body = request_body(
            self.model_name,
            request.messages,
            request.sampling,
            chat_template_kwargs=self.chat_template_kwargs,
            logprobs=self.logprobs,
        )
        key = request_key(body)
        known = None if self.journal is None else self.journal.entries.get(key)
        if known is not None:
            self._recalled.append(TextOutput(id=request.id, completion=known, recalled=True))
            return
        if not self._asked.is_open:
            self._slots = asyncio.Semaphore(self.max_batch)
            connect = min(_CONNECT_SECONDS, self.timeout)
            self._http = Connections(self.max_batch, connect, key=self.api_key())
            self._asked.open()
        self._asked.start(request.id, self._answer, request.id, body, key)

    def step(self) -> list[TextOutput | Refusal]:
        """Wait until at least one request has ended.

        Raises:
            ConfigError: if the server is gone, rejects the key, or refuses every request.
        """
        ended: list[TextOutput | Refusal] = [*self._recalled]
        self._recalled.clear()
        answers = self._asked.take(wait=not ended)
        return ended + [self._result(number, answer) for number, answer in answers]

    def cancel(self) -> None:
        """Cancel all requests and close the connections."""
        self._recalled.clear()
        self._tries.clear()
        self.sleep()

    def sleep(self) -> None:
        """Close the connections; the next submit opens new ones."""
        self._asked.close(lambda: self._http.close())  # opened by the first submit

    def describe_wait(self) -> str:
        """The highest try among the requests in flight, such as ``try 2 of 6``."""
        return f"try {max([1, *list(self._tries.values())])} of {self.tries}"

    def _result(self, number: int, answer: RemoteCompletion | str) -> TextOutput | Refusal:
        if isinstance(answer, RemoteCompletion):
            self._answered += 1
            return TextOutput(id=number, completion=answer)
        self._refused += 1
        # One prompt may be too long. If all are refused, the requests are wrong.
        answered = self._answered + (0 if self.journal is None else len(self.journal.entries))
        if self._refused >= REFUSALS and not answered:
            raise ConfigError(
                f"{self.base_url} completed none of the first {self._refused} prompts: "
                f"{answer}; change what it objects to"
            )
        return Refusal(id=number, reason=answer)

    async def _answer(
        self, number: int, body: Mapping[str, Any], key: str
    ) -> RemoteCompletion | str:
        answer = await self._complete(number, body)
        if self.journal is not None and isinstance(answer, RemoteCompletion):
            self.journal.add(key, answer)
        return answer

    async def _complete(self, number: int, body: Mapping[str, Any]) -> RemoteCompletion | str:
        """Send a request until it is answered; a string is the reason why it cannot be.

        Raises:
            ConfigError: if the server does not answer in all tries, or rejects every request.
        """
        data = json.dumps(body).encode("ascii")
        jitter = np.random.default_rng(body["seed"])
        failure, tries = _Failure(""), 0
        async with self._slots:
            clock = asyncio.get_running_loop().time
            deadline = clock() + self.patience
            try:
                while tries < self.tries and clock() < deadline:
                    tries += 1
                    self._tries[number] = tries
                    outcome = await self._attempt(data, deadline - clock())
                    if not isinstance(outcome, _Failure):
                        return outcome
                    failure = outcome
                    if tries < self.tries:
                        draw, asked = float(jitter.random()), failure.retry_after
                        wait = retry_delay(tries, self.first_delay, draw, asked)
                        await asyncio.sleep(min(wait, max(deadline - clock(), 0.0)))
            finally:
                self._tries.pop(number, None)
        said = f"in {tries} tries, the last time: {failure.reason}"
        if failure.answered:
            return f"no chat completion {said}"
        kept = ""
        if self.journal is not None:
            answers = f"the {len(self.journal.entries)} answers in {self.journal.path}"
            kept = f": {answers} are not asked again"
        raise ConfigError(
            f"{self.base_url} did not answer {said}. Start the server again and repeat the "
            f"command{kept}"
        )

    async def _attempt(self, data: bytes, seconds: float) -> RemoteCompletion | str | _Failure:
        limit = min(self.timeout, seconds)
        try:
            async with asyncio.timeout(limit):
                return await self._exchange(data)
        except TimeoutError:
            return _Failure(f"no answer within {limit:.4g} seconds")
        except httpx.RequestError as error:
            return _Failure(one_line(f"{type(error).__name__} {error}"))
        except MalformedError as error:
            return _Failure(str(error), answered=True)
        except UnusableError as error:
            return str(error)

    async def _exchange(self, data: bytes) -> RemoteCompletion | str | _Failure:
        response, body = await self._http.exchange(f"{self.base_url}/chat/completions", data)
        status = response.status_code
        if status == 200:
            return read_answer(body)
        said = f"HTTP {status}, {server_message(body, self.api_key())}"
        if is_retried(status):
            return _Failure(said, response.headers.get("retry-after"))
        if status in (401, 403):
            raise ConfigError(
                f"{self.base_url} rejects the key of the environment variable {self.key_name} "
                f"({said}); set it, or name another variable with model.engine.api_key_env"
            )
        if status == 404:
            raise ConfigError(
                f"{self.base_url} has no model {self.model_name!r}, or is not the right address "
                f"({said}); model.engine.model_name must be one that {self.base_url}/models lists"
            )
        if not 400 <= status < 500:
            raise ConfigError(
                f"{self.base_url} answers with {said}; model.engine.base_url must be the address "
                "of the server itself, usually ending in /v1"
            )
        return f"the server refuses it: {said}"


def check_url(url: str, option: str) -> None:
    """Refuse what is not a plain address. The message names the option and shows no password.

    Raises:
        ConfigError: if it is none, or ends in the place that requests go to.
    """
    try:
        parts = urlsplit(url)
        complete = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        complete = False
    if not complete or any(not c.isprintable() or c.isspace() for c in url):
        raise ConfigError(f"{option} is no address such as http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigError(
            f"{option} must be an address alone, without user, password or query; a key belongs "
            f"into an environment variable such as {DEFAULT_KEY}"
        )
    if url.endswith("/completions"):
        raise ConfigError(f"{option} ends before /chat/completions, usually in /v1")
