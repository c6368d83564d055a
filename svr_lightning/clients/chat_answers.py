"""What chat servers answer: the one description, for Controller, serve and the engine alike.

Servers agree on the envelope and on little else. Content is text or a list of parts; reasoning has
a field or a part of its own; the reason for the end of a completion has a dozen names; usage may be
missing; and an error may come with status 200. docs/serving.md lists servers.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, Struct, convert

from svr_lightning.clients.masking import NOTHING_MASKED, Mask
from svr_lightning.core.parsing import ANSWER_CLOSE, CLOSE_TAG, THINK_CLOSE, THINK_OPEN
from svr_lightning.core.types import FinishReason, RemoteCompletion, Turn

TIMED_OUT = 408
"""The status of an answer that did not come in time."""
OF_ONE_REQUEST = (400, 413, 422)
"""Statuses that refuse one request: another one may be shorter, or pass a filter of content. With
others, such as 402 of an account without credit, every request fails."""
_THINK_TAG = re.compile(r"<(/?)think>", re.IGNORECASE)
_OTHER_CLOSE = re.compile(
    r"</(?:\w+[:|])?(?:think\w*|thought|reasoning)(?::\w+)?\s*>|\[/THINK\]|\u25c1/think\u25b7"
    r"|<\|(?:\w+:)?end_think\w*(?::\w+)?\|>|<channel\|>"
    r"|<\|channel\|>final(?: ?<\|constrain\|>\w*)?<\|message\|>"
    r"|</(?:scratchpad|reflection|analysis|inner_?monologue)>"
    r"|<\|end_of_thought\|>|<\|inner_suffix\|>|^Here is my response:",
    re.IGNORECASE | re.MULTILINE,
)
"""What ends the reasoning of other models, where a server leaves it in the content."""
_CUT = re.compile(r"length|limit|max.*token|context|incomplete|truncat")
"""Found in a finish reason, in small letters, if the completion reached a limit."""
_REFUSED = re.compile(
    r"filter|refus|safety|recitation|prohibited|blocklist|spii|guardrail|sensitive|toxic"
)
_FAILED = re.compile(r"error|abort|cancel|timeout|insufficient")
_ERROR_BYTES = 65536
"""Bytes of an error that are read."""
_CHOICES = 16
"""Choices of an answer that are looked at; one was asked for."""
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

    def __post_init__(self) -> None:
        """Take text, reasoning and refusal apart, in whatever form they came.

        Raises:
            ValueError: if the content is neither text nor parts.
        """
        spoken = list(_pieces(self.content))
        parts = self.content if isinstance(self.content, list) else []
        refusals = [self.refusal, *(p.get("refusal") for p in parts if isinstance(p, dict))]
        self.refusal = "".join(text for text in refusals if isinstance(text, str))
        if self.content and not (spoken or self.refusal or self.calls_a_tool):
            raise ValueError("a content without text")
        split = self.reasoning_content or self.reasoning or self.thinking
        pieces = [*_pieces(split, thought=True), *spoken]
        self.reasoning = "".join(text for is_thought, text in pieces if is_thought)
        self.content = "".join(text for is_thought, text in pieces if not is_thought)

    @property
    def calls_a_tool(self) -> bool:
        """Whether it calls one, which nobody offered."""
        return bool(self.tool_calls or self.function_call)


class _Choice(Struct):
    message: _Message
    finish_reason: Any = None
    stop_reason: Any = None
    logprobs: Any = None
    error: Any = None


class _Answer(Struct):
    choices: Annotated[list[Any], Meta(min_length=1)]
    usage: Any = None
    error: Any = None


class _Token(Struct):
    token: str
    logprob: Annotated[float, Meta(gt=-(2.0**1000), le=0)]


class _Logprobs(Struct):
    content: list[_Token]


def read_answer(body: bytes, mask: Mask = NOTHING_MASKED) -> RemoteCompletion:
    """Read a server's answer of status 200; see :func:`read_chat_completion`."""
    try:
        answer = mask.json(json.loads(body))
    except (ValueError, RecursionError) as error:
        shown, _, _ = error_in(body, mask)
        raise _unreadable(repr(shown) if shown else "nothing", mask) from error
    return read_chat_completion(answer, mask)


def read_chat_completion(answer: Any, mask: Mask = NOTHING_MASKED) -> RemoteCompletion:
    """The completion in a server's answer, which may be any JSON value.

    Args:
        answer: the value. Of several choices the first counts that says something.
        mask: keeps keys out of messages.

    Raises:
        ServerError: if it is an error or no chat completion, or the model refused.
    """
    try:
        envelope = convert(answer, _Answer)
        choice = _first_that_says_something(envelope.choices)
    except (ValueError, RecursionError) as error:
        raise _no_completion(answer, mask) from error
    said = choice.message
    reason = str(choice.finish_reason or choice.stop_reason).casefold()
    cut = bool(_CUT.search(reason))
    refuses = bool(_REFUSED.search(reason))
    fault = choice.error or envelope.error
    if fault or (_FAILED.search(reason) and not (cut or refuses)):
        raise _no_completion({"error": fault or f"it ended with {reason}"}, mask)
    completion = RemoteCompletion(
        text=whole(said.reasoning, said.content, cut),
        finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
        prompt_tokens=_count(envelope.usage, "prompt_tokens", "input_tokens"),
        completion_tokens=_count(envelope.usage, "completion_tokens", "output_tokens"),
        tokens=_tokens(choice.logprobs),
    )
    if refuses or (said.refusal and not said.content.strip()):
        words = said.refusal or said.content or f"the server ended it with {reason!r}"
        refused = replace(completion, text=words)
        raise ServerError(f"the model refuses: {mask.line(words)}", status=200, refusal=refused)
    if said.calls_a_tool and not completion.text:
        raise ServerError("the model calls a tool, and none was offered", status=200)
    return completion


def _first_that_says_something(choices: list[Any]) -> _Choice:
    """The first choice with text, a refusal or a tool call; if there is none, the first one.

    Raises:
        ValueError: if that one is no choice.
    """
    for value in choices[:_CHOICES]:
        with contextlib.suppress(ValueError):
            choice = convert(value, _Choice)
            said = choice.message
            if said.content.strip() or said.refusal or said.calls_a_tool:
                return choice
    return convert(choices[0], _Choice)


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
    valid = (
        int(number) for number in counts if type(number) in (int, float) and 0 < number < 2**31
    )
    return next(valid, 0)


def _tokens(logprobs: Any) -> tuple[tuple[str, float], ...]:
    """Each token's text and log-probability; none if one of them is anything else."""
    try:
        return tuple((token.token, token.logprob) for token in convert(logprobs, _Logprobs).content)
    except ValueError:
        return ()


def whole(reasoning: str, content: str, cut: bool = False) -> str:
    """The completion as the policy wrote it, with reasoning that the server separated.

    SPEC rule 1: a ``<think>`` that the template opened belongs to the text. The split of a server
    stays: a tag that its reasoning quotes is made none.
    """
    reasoning = _THINK_TAG.sub(r"<\1 think>", reasoning)
    replied = _reply_end(content)  # what follows a whole reply quotes a mark, and closes nothing
    if not reasoning and THINK_CLOSE not in content:
        ends = [mark.end() for mark in _OTHER_CLOSE.finditer(content, 0, replied)]
        end = ends[-1] if ends else 0
        reasoning = content[:end]
        content = content[end:]
    if not reasoning:
        opens = content.find(THINK_OPEN)
        closes = content.find(THINK_CLOSE, 0, replied)
        left_open = closes >= 0 and not 0 <= opens < closes
        return f"{THINK_OPEN}\n{content}" if left_open else content
    thought = f"{THINK_OPEN}\n" + reasoning.removeprefix("\n")
    if not content and cut:
        return thought  # cut off in mid-thought
    return f"{thought}{THINK_CLOSE}\n" + content.removeprefix("\n")


def _reply_end(content: str) -> int:
    """Where the first answer with a self-check behind it ends; the text's end without one."""
    answer = content.find(ANSWER_CLOSE)
    check = content.find(CLOSE_TAG, answer) if answer >= 0 else -1
    return len(content) if check < 0 else check


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
    turns: Sequence[Turn] = ()
    """Those before it, if a controller sent the request."""

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
        self.status = status
        self.code = code
        self.temporary = temporary
        self.retry_after = retry_after
        self.refusal = refusal


def is_temporary(status: int) -> bool:
    """Whether a request with this HTTP status is worth sending again."""
    return status in (TIMED_OUT, 409, 429) or status >= 500


def error_in(answer: Any, mask: Mask = NOTHING_MASKED) -> tuple[str, str | None, int]:
    """The error in an answer, in any of the forms that servers use.

    Args:
        answer: bytes, or a JSON value.
        mask: keeps keys out of message and code.

    Returns:
        Its message in one short line, its code, and the HTTP status that it gives, or 0; an empty
        message if a JSON value is no error.
    """
    text = ""
    if isinstance(answer, bytes):
        text = answer[:_ERROR_BYTES].decode("utf-8", errors="replace")
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
        message = error.get("message") or error.get("detail")
        is_error = error is not fields or fields.get("object") == "error" or "detail" in fields
        if not isinstance(message, str):
            message = _json(message or error) if is_error and error else text
    else:
        message = error if isinstance(error, str) else _json(error)
    status = int(str(code)) if re.fullmatch(r"[45]\d\d", str(code)) else 0
    return mask.line(message), None if code is None else mask.line(code), status


def _json(value: Any) -> str:
    """A value as JSON. What could be read may be nested too deeply to be written."""
    try:
        return json.dumps(value, default=str)
    except RecursionError:
        return "JSON that is nested too deeply"


def _no_completion(answer: Any, mask: Mask) -> ServerError:
    """The error in an answer of status 200; if there is none, what it is instead of a completion.

    An error that gives no status may pass.
    """
    message, code, status = error_in(answer, mask)
    if message:
        with_code = f"{message} ({code})" if code and code not in message else message
        temporary = not status or is_temporary(status)
        return ServerError(with_code, status=status or 200, code=code, temporary=temporary)
    kind = {dict: "an object", list: "a list", str: "text", type(None): "null"}
    described = kind.get(type(answer), type(answer).__name__)
    if isinstance(answer, dict) and answer:
        described += " with " + ", ".join(map(str, answer))
        if not answer.get("choices"):  # the body may explain
            described += f": {error_in({'error': answer}, mask)[0]}"
    return _unreadable(described, mask)


def _unreadable(described: str, mask: Mask) -> ServerError:
    message = f"no chat completion but {mask.line(described)}"
    return ServerError(message, status=200, temporary=True)
