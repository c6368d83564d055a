"""A server that speaks the OpenAI chat-completions protocol: its requests, and an engine."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from svr_lightning.core.types import Decoding, Message, RemoteCompletion
from svr_lightning.engines.base import Refusal, Request, TextOutput
from svr_lightning.engines.chat_answers import ServerError, read_answer
from svr_lightning.engines.connections import Connections, Retries, check_url, read_key
from svr_lightning.engines.in_flight import RemoteEngine
from svr_lightning.errors import ConfigError, require

DEFAULT_KEY = "OPENAI_API_KEY"
REFUSALS = 8
"""Number of refused requests before the first answer that stops the run."""
Fields = Mapping[str, str | None]
"""What a server calls fields of a request; None leaves a field out."""
_SENT = ("max_tokens", "temperature", "top_p", "seed", "top_k", "chat_template_kwargs", "logprobs")


@dataclass(kw_only=True)
class ChatModel:
    """A model behind a server that speaks the protocol, and how it is asked."""

    base_url: str
    """Address up to the version, such as ``http://127.0.0.1:8000/v1``."""
    name: str
    """What the server calls it."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """For its chat template."""
    logprobs: bool = False
    """Whether the log-probabilities of sampled tokens are asked for."""
    fields: Fields = field(default_factory=dict)
    """Renames fields of a request, or leaves them out."""

    def body(self, messages: Sequence[Message], sampling: Decoding, seed: int) -> dict[str, Any]:
        """The body of a request. Fields that only some servers know are sent only if set."""
        body: dict[str, Any] = {
            "model": self.name,
            "messages": list(messages),
            "max_tokens": sampling.max_completion_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed % 2**31,  # some servers take 32 bits with a sign
        }
        more = {
            "top_k": sampling.top_k,
            "chat_template_kwargs": self.chat_template_kwargs,
            "logprobs": self.logprobs,
        }
        body |= {name: value for name, value in more.items() if value}
        named = {name: self.fields.get(name, name) for name in body}
        return {own: body[name] for name, own in named.items() if own is not None}

    async def complete(
        self, http: Connections, messages: Sequence[Message], sampling: Decoding, seed: int
    ) -> RemoteCompletion:
        """Complete a prompt, asking again after temporary failures.

        Raises:
            ServerError: of the last try.
        """
        url = self.base_url.rstrip("/") + "/chat/completions"
        body = self.body(messages, sampling, seed)
        return await http.exchange(url, body, partial(read_answer, key=http.key), seed)


def check_fields(fields: Any, option: str) -> Fields:
    """Refuse what renames no field of a request.

    Raises:
        ConfigError: naming the option.
    """
    valid = isinstance(fields, Mapping) and all(
        name in _SENT and (own is None or isinstance(own, str)) for name, own in fields.items()
    )
    require(valid, f"{option} must map some of {', '.join(_SENT)} to other names, or to null")
    return dict(fields)


class OpenAIEngine(RemoteEngine):
    """Asks a server for completions. For evaluation only: it returns no token ids.

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
        logprobs: bool = False,
        fields: dict[str, str | None] | None = None,
    ) -> None:
        super().__init__()
        check_url(base_url, "model.engine.base_url")
        limits = {"concurrency": concurrency, "timeout": timeout, "tries": tries}
        for name, value in limits.items():
            require(value >= 1, f"model.engine.{name}={value} must be at least 1")
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
        self.api_key_env, self.max_batch = api_key_env, concurrency
        self.retries = Retries(tries=tries, timeout=timeout)
        self.api_key()  # a variable that is not set is reported before any data is read
        self._answered = self._refused = 0

    def api_key(self) -> str | None:
        """The key, read where it is used; see :func:`read_key`."""
        named = self.api_key_env is not None
        return read_key(self.api_key_env or DEFAULT_KEY, "model.engine.api_key_env", needed=named)

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """The server has the model."""

    def sync(self, model: Any, version: int) -> None:
        """The server has its own weights."""

    def connect(self) -> Connections:
        """Connections with the key."""
        return Connections(self.max_batch, self.retries, key=self.api_key())

    async def complete(self, request: Request) -> TextOutput | Refusal:
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
                f"{reason}; change what it objects to",
            )
            return Refusal(id=request.id, reason=reason)
        self._answered += 1
        if completion.text and not completion.completion_tokens:
            warnings.warn(
                f"{self.model.base_url} does not count tokens, so records have 0 of them",
                stacklevel=2,
            )
        return TextOutput(id=request.id, completion=completion)

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
        elif 400 <= error.status < 500 and error.status not in (401, 403, 404):
            return f"the server refuses it: {error}"
        else:
            fault = (
                f"answers with {error}; check model.engine.base_url, model.engine.model_name="
                f"{self.model.name!r}, and the key in {self.api_key_env or DEFAULT_KEY}, whose "
                "name model.engine.api_key_env sets"
            )
        raise ConfigError(f"{self.model.base_url} {fault}") from error
