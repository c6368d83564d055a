"""A server that speaks the OpenAI chat-completions protocol, as an engine.

Answers are kept in a journal, if there is one, before they are used, so that an interrupted
evaluation does not ask for them again.
"""

import json
import os
import warnings
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from svr_lightning.core.types import FinishReason, RemoteCompletion
from svr_lightning.engines.base import Engine, Refusal, Request, TextOutput
from svr_lightning.engines.chat_client import (
    ChatClient,
    Fields,
    Retries,
    check_fields,
    request_body,
    request_key,
)
from svr_lightning.engines.in_flight import InFlight
from svr_lightning.engines.server_error import ServerError
from svr_lightning.errors import ConfigError, require
from svr_lightning.files import LineJournal

ANSWERS = "answers.jsonl"
DEFAULT_KEY = "OPENAI_API_KEY"
REFUSALS = 8
"""Number of refused requests before the first answer that stops the run."""


class AnswerJournal(LineJournal[str, RemoteCompletion]):
    """Answers by request key; a line that is none is a :class:`ConfigError` that names it."""

    def add(self, key: str, answer: RemoteCompletion) -> None:
        """Keep an answer."""
        line = {
            "key": key,
            "text": answer.text,
            "finish_reason": answer.finish_reason.value,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "tokens": answer.tokens,
        }
        self.write(json.dumps(line).encode("ascii") + b"\n", key, answer)

    def read(self, line: bytes, number: int) -> tuple[str, RemoteCompletion]:
        """The answer of a line with its request key."""
        try:
            fields = json.loads(line)
            return str(fields["key"]), RemoteCompletion(
                text=str(fields["text"]),
                finish_reason=FinishReason(fields["finish_reason"]),
                prompt_tokens=int(fields["prompt_tokens"]),
                completion_tokens=int(fields["completion_tokens"]),
                tokens=tuple((str(text), float(nats)) for text, nats in fields.get("tokens", ())),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"{self.path}, line {number}: no answer of a server; remove the line, or the file "
                "to start over"
            ) from error


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
        first_delay: seconds before the second try; each further wait is twice as long.
        logprobs: ask for the log-probabilities of sampled tokens, which some stopping rules read.
        fields: renames fields of a request, or leaves them out:
            ``{max_tokens: max_completion_tokens, temperature: null}``.

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
        first_delay: float = 1.0,
        logprobs: bool = False,
        fields: dict[str, str | None] | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        check_url(self.base_url, "model.engine.base_url")
        limits = {"concurrency": concurrency, "timeout": timeout, "tries": tries}
        for name, value in limits.items():
            require(value >= 1, f"model.engine.{name}={value} must be at least 1")
        require(
            bool(model_name.strip()),
            "model.engine.model_name is empty; give the name that the server lists",
        )
        self.model_name = model_name
        self.api_key_env = api_key_env
        self.max_batch = concurrency
        self.retries = Retries(tries=tries, first_delay=first_delay, timeout=timeout)
        self.logprobs = logprobs
        self.fields: Fields = check_fields(fields or {}, "model.engine.fields")
        self.journal: AnswerJournal | None = None
        self.chat_template_kwargs: Mapping[str, Any] = {}
        self.api_key()  # a variable that is not set is reported before any data is read
        self._requests = InFlight[RemoteCompletion | str]()
        self._client: ChatClient
        self._recalled: list[TextOutput] = []
        self._answered = self._refused = 0

    @property
    def key_name(self) -> str:
        """The environment variable that is read."""
        return self.api_key_env or DEFAULT_KEY

    def api_key(self) -> str | None:
        """The key, read where it is used; see :func:`read_key`."""
        return read_key(self.key_name, "model.engine.api_key_env", needed=bool(self.api_key_env))

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
            request.seed,
            chat_template_kwargs=self.chat_template_kwargs,
            logprobs=self.logprobs,
            fields=self.fields,
        )
        key = request_key(body, request.seed)
        known = None if self.journal is None else self.journal.entries.get(key)
        if known is not None:
            self._recalled.append(TextOutput(id=request.id, completion=known, recalled=True))
            return
        if not self._requests.is_open:
            self._client = ChatClient(
                self.base_url,
                key=self.api_key(),
                concurrency=self.max_batch,
                retries=self.retries,
            )
            self._requests.open()
        self._requests.start(request.id, self._complete, body, request.seed, key)

    def step(self) -> list[TextOutput | Refusal]:
        """Wait until at least one request has ended.

        Raises:
            ConfigError: if the server is gone, rejects the key, or refuses every request.
        """
        ended: list[TextOutput | Refusal] = [*self._recalled]
        self._recalled.clear()
        answers = self._requests.take(wait=not ended)
        return ended + [self._result(number, answer) for number, answer in answers]

    def cancel(self) -> None:
        """Cancel all requests and close the connections."""
        self._recalled.clear()
        self.sleep()

    def sleep(self) -> None:
        """Close the connections; the next submit opens new ones."""
        self._requests.close(lambda: self._client.close())  # opened by the first submit

    def _result(self, number: int, answer: RemoteCompletion | str) -> TextOutput | Refusal:
        if isinstance(answer, RemoteCompletion):
            self._answered += 1
            if answer.text and not answer.completion_tokens:
                warnings.warn(
                    f"{self.base_url} does not count tokens, so records have 0 of them",
                    stacklevel=2,
                )
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

    async def _complete(
        self, body: Mapping[str, Any], seed: int, key: str
    ) -> RemoteCompletion | str:
        """The answer, kept in the journal, or the reason why this request cannot have one.

        Raises:
            ConfigError: if no request can have one.
        """
        try:
            answer = await self._client.complete(body, seed)
        except ServerError as error:
            return self._reason(error)
        if self.journal is not None:
            self.journal.add(key, answer)
        return answer

    def _reason(self, error: ServerError) -> str:
        """Why one problem has no answer.

        Raises:
            ConfigError: if none can have one.
        """
        tries, kept = f"in {error.tries} tries, the last time: {error}", ""
        if error.status == 200:
            return tries if error.temporary else str(error)
        if self.journal is not None:
            answers = f"the {len(self.journal.entries)} answers in {self.journal.path}"
            kept = f": {answers} are not asked again"
        if error.temporary:
            fault = f"did not answer {tries}. Start the server again and repeat the command{kept}"
        elif 400 <= error.status < 500 and error.status not in (401, 403, 404):
            return f"the server refuses it: {error}"
        else:
            fault = (
                f"answers with {error}; check model.engine.base_url, model.engine.model_name="
                f"{self.model_name!r}, and the key in {self.key_name}, whose name "
                "model.engine.api_key_env sets"
            )
        raise ConfigError(f"{self.base_url} {fault}") from error


def read_key(variable: str | None, option: str, *, needed: bool = True) -> str | None:
    """The key in an environment variable, if one is named; None if it is not set.

    Raises:
        ConfigError: naming the option, if it is not set and ``needed``, or is no plain text.
    """
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    require(bool(key) or not needed, f"{option} {variable}: this variable is not set")
    require(
        key.isascii() and key.isprintable(),
        f"{option} {variable}: the key has characters that a header cannot hold",
    )
    return key or None


def check_url(url: str, option: str) -> None:
    """Refuse what is not a plain address. The message names the option and shows no password.

    Raises:
        ConfigError: if it is none, or ends in /completions.
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
