"""A journal of a server's answers, so that an interrupted evaluation repeats no request."""

import json

from svr_lightning.core.types import FinishReason, RemoteCompletion
from svr_lightning.errors import ConfigError
from svr_lightning.files import LineJournal

ANSWERS = "answers.jsonl"


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
