"""A journal of a server's answers, so that an interrupted evaluation asks nothing twice."""

import json
from pathlib import Path
from typing import Any

from svr_lightning.core.types import FinishReason, RemoteCompletion
from svr_lightning.errors import ConfigError

ANSWERS = "answers.jsonl"


class AnswerJournal:
    """A file of answers by request key, one line each.

    Every line is handed to the system in one piece before its answer is used. A torn last line,
    which a kill leaves, is cut off; its request is sent again.

    Args:
        path: made with its folder if need be.

    Raises:
        ConfigError: naming a line that is no answer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._answers: dict[str, RemoteCompletion] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = self._read()
        self._stream = path.open("ab", buffering=0)
        self._stream.truncate(whole)

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str) -> RemoteCompletion | None:
        """The answer to a request, where it was asked before."""
        return self._answers.get(key)

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
        data = json.dumps(line).encode("ascii") + b"\n"
        if self._stream.write(data) != len(data):
            raise OSError(f"{self.path} could not be written to its end; is the disk full?")
        self._answers[key] = answer

    def discard(self) -> None:
        """Forget it: what was made of the answers is on disk."""
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Keep the file and let go of it."""
        self._stream.close()

    def _read(self) -> int:
        """Read the file; returns the number of bytes in whole lines."""
        if not self.path.exists():
            return 0
        whole = 0
        with self.path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.endswith(b"\n"):
                    break
                try:
                    key, answer = _entry(json.loads(line))
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    raise ConfigError(
                        f"{self.path}, line {number}: no answer of a server; remove the line, or "
                        "the file to ask everything anew"
                    ) from error
                self._answers[key] = answer
                whole += len(line)
        return whole


def _entry(line: dict[str, Any]) -> tuple[str, RemoteCompletion]:
    return str(line["key"]), RemoteCompletion(
        text=str(line["text"]),
        finish_reason=FinishReason(line["finish_reason"]),
        prompt_tokens=int(line["prompt_tokens"]),
        completion_tokens=int(line["completion_tokens"]),
        tokens=tuple((str(text), float(nats)) for text, nats in line.get("tokens", ())),
    )
