"""What chat servers answer: the one description, for Controller, serve and the engine alike.

Servers agree on the envelope and on little else. Content is text or a list of parts; reasoning has
a field or a part of its own; a completion ends with a dozen words; usage may lack; and an error may
come with status 200. docs/serving.md lists servers.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, Struct, convert

from svr_lightning.core.types import FinishReason, RemoteCompletion
from svr_lightning.errors import one_line

TIMED_OUT = 408
"""The status of an answer that did not come in time."""
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_OTHER_CLOSE = re.compile(
    r"</(?:\w+[:|])?(?:think\w*|thought|reasoning)(?::\w+)?\s*>|\[/THINK\]|\u25c1/think\u25b7"
    r"|<\|(?:\w+:)?end_think\w*(?::\w+)?\|>|<channel\|>"
    r"|<\|channel\|>final(?: ?<\|constrain\|>\w*)?<\|message\|>",
    re.IGNORECASE,
)
"""What ends the reasoning of other models, where a server leaves it in the content."""
_CUT = re.compile(r"length|limit|max.*token|context|incomplete|truncat")
"""Found in a finish reason, in small letters, if the completion reached a limit."""
_REFUSED = re.compile(
    r"filter|refus|safety|recitation|prohibited|blocklist|spii|guardrail|sensitive|toxic"
)
_FAILED = re.compile(r"error|abort|cancel|timeout|insufficient")
_SPOKEN = ("text", "content", "output_text", "value")
"""Fields of a part that hold text, or further parts."""
_THOUGHT = ("thinking", "thought", "reasoning", "reasoning_content", "reasoning_text", "summary")
"""Fields of a part, and types of parts, that hold reasoning."""


class _Message(Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    thinking: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(Struct):
    message: _Message
    finish_reason: Any = None
    stop_reason: Any = None
    logprobs: Any = None
    error: Any = None


class _Answer(Struct):
    choices: Annotated[list[_Choice], Meta(min_length=1)]
    usage: Any = None
    error: Any = None


class _Token(Struct):
    token: str
    logprob: Annotated[float, Meta(gt=-(2.0**1000), le=0)]


class _Logprobs(Struct):
    content: list[_Token]


def read_answer(body: bytes, key: str | None = None) -> RemoteCompletion:
    """Read a server's answer of status 200; see :func:`read_completion`."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        shown, _, _ = error_in(body, key)
        raise _unreadable(repr(shown) if shown else "nothing") from error
    return read_completion(answer, key)


def read_completion(answer: Any, key: str | None = None) -> RemoteCompletion:
    """The completion in a server's answer, which may be any JSON value.

    Args:
        answer: the value.
        key: kept out of messages.

    Raises:
        ServerError: if it is an error or no chat completion, or the model refused.
    """
    try:
        found = convert(answer, _Answer)
        choice, message = found.choices[0], found.choices[0].message
        pieces = list(_pieces(message.content))
        parts = message.content if isinstance(message.content, list) else []
        said = [message.refusal, *(part.get("refusal") for part in parts if isinstance(part, dict))]
        refusal = "".join(text for text in said if isinstance(text, str))
        aside = message.reasoning_content or message.reasoning or message.thinking
        thoughts = [(True, text) for _, text in _pieces(aside)]
    except (ValueError, RecursionError) as error:
        raise _no_completion(answer, key) from error
    reason = str(choice.finish_reason or choice.stop_reason).casefold()
    cut, refuses = bool(_CUT.search(reason)), bool(_REFUSED.search(reason))
    fault = choice.error or found.error
    if fault or (_FAILED.search(reason) and not (cut or refuses)):
        raise _no_completion({"error": fault or f"it ended with {reason}"}, key)
    called = message.tool_calls or message.function_call
    if message.content and not (pieces or refusal or called):
        raise _no_completion(answer, key)
    content = "".join(text for thought, text in pieces if not thought)
    completion = RemoteCompletion(
        text=whole("".join(t for thought, t in [*thoughts, *pieces] if thought), content, cut),
        finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
        prompt_tokens=_count(found.usage, "prompt_tokens", "input_tokens"),
        completion_tokens=_count(found.usage, "completion_tokens", "output_tokens"),
        tokens=_tokens(choice.logprobs),
    )
    if refuses or (refusal and not content.strip()):
        words = refusal or content or f"the server ended it with {reason!r}"
        refused = replace(completion, text=words)
        raise ServerError(f"the model refuses: {one_line(words)}", status=200, refusal=refused)
    if called and not completion.text:
        raise ServerError("the model calls a tool, and none was offered", status=200)
    return completion


def _pieces(content: Any, thought: bool = False) -> Iterator[tuple[bool, str]]:
    """The texts of a content, and whether each is reasoning; a part of another kind has none.

    Raises:
        ValueError: if something stands where text should.
    """
    if isinstance(content, str):
        yield thought, content
    elif isinstance(content, list):
        for part in content:
            yield from _pieces(part, thought)
    elif isinstance(content, dict):
        marked = content.get("thought") is True  # Gemini
        thinks = thought or marked or any(word in str(content.get("type")) for word in _THOUGHT)
        for name in (*_THOUGHT, *_SPOKEN):
            if not isinstance(content.get(name), bool):
                yield from _pieces(content.get(name), thinks or name in _THOUGHT)
    elif content is not None:
        raise ValueError(f"a {type(content).__name__} instead of text")


def _count(usage: Any, *names: str) -> int:
    """A count of tokens under one of these names; 0 if it is not known."""
    fields = usage if isinstance(usage, dict) else {}
    counts: list[Any] = [fields.get(name) for name in names]
    valid = (int(one) for one in counts if type(one) in (int, float) and 0 < one < 2**31)
    return next(valid, 0)


def _tokens(logprobs: Any) -> tuple[tuple[str, float], ...]:
    """Each token's text and log-probability; none if one of them is anything else."""
    try:
        return tuple((one.token, one.logprob) for one in convert(logprobs, _Logprobs).content)
    except ValueError:
        return ()


def whole(reasoning: str, content: str, cut: bool = False) -> str:
    """The completion as the policy wrote it, with reasoning that the server separated.

    SPEC rule 1: a ``<think>`` that the template opened belongs to the text.
    """
    if not reasoning and _THINK_CLOSE not in content:
        end = max((found.end() for found in _OTHER_CLOSE.finditer(content)), default=0)
        reasoning, content = content[:end], content[end:]
    if not reasoning:
        opens, closes = content.find(_THINK_OPEN), content.find(_THINK_CLOSE)
        left_open = closes >= 0 and not 0 <= opens < closes
        return f"{_THINK_OPEN}\n{content}" if left_open else content
    thought = f"{_THINK_OPEN}\n" + reasoning.removeprefix("\n")
    if not content and cut:
        return thought  # cut off in mid-thought
    return f"{thought}{_THINK_CLOSE}\n" + content.removeprefix("\n")


# --- errors -------------------------------------------------------------------------------------


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
        status: int = 0,
        *,
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
    return status in (TIMED_OUT, 409, 429) or status >= 500


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
    error = fields.get("error")
    if not error or isinstance(error, bool):
        error = {} if "choices" in fields else fields
    code = None
    if isinstance(error, dict):
        code = error.get("code") or error.get("type")
        found = error.get("message") or error.get("detail")
        is_error = error is not fields or fields.get("object") == "error" or "detail" in fields
        if not isinstance(found, str):
            found = json.dumps(found or error, default=str) if is_error and error else text
    else:
        found = error if isinstance(error, str) else json.dumps(error, default=str)
    # The key goes first: what is left of one that the line cuts could not be found.
    message = one_line(found.replace(key, "[key]") if key else found)
    status = int(str(code)) if re.fullmatch(r"[45]\d\d", str(code)) else 0
    return message, None if code is None else one_line(code), status


def _no_completion(answer: Any, key: str | None) -> ServerError:
    """The error in an answer of status 200; if there is none, what it is instead of a completion.

    An error that gives no status may pass.
    """
    message, code, status = error_in(answer, key)
    if message:
        named = f"{message} ({code})" if code and code not in message else message
        temporary = not status or is_temporary(status)
        return ServerError(named, status=status or 200, code=code, temporary=temporary)
    kind = {dict: "an object", list: "a list", str: "text", type(None): "null"}
    found = kind.get(type(answer), type(answer).__name__)
    if isinstance(answer, dict) and answer:
        found += " with " + ", ".join(map(str, answer))
        if not answer.get("choices"):  # its own words may tell
            found += f": {error_in({'error': answer}, key)[0]}"
    return _unreadable(found)


def _unreadable(found: str) -> ServerError:
    message = f"no chat completion but {one_line(found)}"
    return ServerError(message, status=200, temporary=True)
