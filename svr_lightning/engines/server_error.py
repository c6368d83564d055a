"""The one error of requests to servers of models, and how servers write errors."""

import json
from typing import Any

from svr_lightning.core.types import RemoteCompletion
from svr_lightning.errors import one_line

TIMED_OUT = 408
"""The status of an answer that did not come in time."""


class ServerError(ValueError):
    """A request without a usable answer; its message is one line without the key.

    Args:
        message: what is wrong.
        status: HTTP status, or the one that an error in an answer gives; 0 without an answer, 200
            for one that cannot be used.
        code: the server's own name of the error.
        temporary: whether the request is worth sending again.
        retry_after: the server's header.
        refusal: the completion, if the model refused to answer.
    """

    tries = 1
    """How often the request was sent."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str | None = None,
        temporary: bool = False,
        retry_after: str | None = None,
        refusal: RemoteCompletion | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.temporary = status, code, temporary
        self.retry_after, self.refusal = retry_after, refusal


def is_temporary(status: int) -> bool:
    """Whether a request with this HTTP status is worth sending again."""
    return status in (408, 409, 429) or status >= 500


def error_in(answer: Any, key: str | None = None) -> tuple[str, str | None, int]:
    """The error in an answer, in any of the forms that servers use.

    Args:
        answer: bytes, or a JSON value.
        key: taken out of the message.

    Returns:
        Its message in one short line, its code, and the HTTP status that it gives, or 0; an empty
        message if a JSON value is no error.
    """
    text = ""
    if isinstance(answer, bytes):
        text = answer[:4000].decode("utf-8", errors="replace")
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
    if isinstance(answer, list) and len(answer) == 1:  # Gemini
        answer = answer[0]
    fields = answer if isinstance(answer, dict) else {}
    error = fields.get("error") or ({} if "choices" in fields else fields)
    code = None
    if isinstance(error, dict):
        code = error.get("code") or error.get("type")
        found = error.get("message") or error.get("detail")
        is_error = error is not fields or fields.get("object") == "error" or "detail" in fields
        if not isinstance(found, str):
            found = json.dumps(found or error) if is_error and error else text
    else:
        found = error if isinstance(error, str) else json.dumps(error)
    # The key goes first: what is left of one that the line cuts could not be found.
    message = one_line(found.replace(key, "[key]") if key else found)
    status = code if type(code) is int and 400 <= code < 600 else 0
    return message, None if code is None else one_line(code), status
