"""A model behind a server that speaks the OpenAI chat-completions protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from svr_lightning.clients.connections import Connections
from svr_lightning.core.types import Decoding, Message, RemoteCompletion
from svr_lightning.errors import require

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
        names = {name: self.fields.get(name, name) for name in body}
        return {sent_as: body[name] for name, sent_as in names.items() if sent_as is not None}

    async def complete(
        self, http: Connections, messages: Sequence[Message], sampling: Decoding, seed: int
    ) -> RemoteCompletion:
        """Complete a prompt, asking again after temporary failures.

        Raises:
            ServerError: of the last try.
        """
        url = self.base_url.rstrip("/") + "/chat/completions"
        return await http.exchange(url, self.body(messages, sampling, seed), seed)


def check_fields(fields: Any, option: str) -> Fields:
    """Refuse what renames no field of a request.

    Raises:
        ConfigError: naming the option.
    """
    valid = isinstance(fields, Mapping) and all(
        name in _SENT and (sent_as is None or isinstance(sent_as, str))
        for name, sent_as in fields.items()
    )
    require(valid, f"{option} must map some of {', '.join(_SENT)} to other names, or to null")
    return dict(fields)
