"""The chat-completions protocol as the server speaks it: requests and answers as plain values."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

from svr_lightning.control.controller import Client, Controller, Result
from svr_lightning.core.seeds import derive_seed
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import Decoding, Turn
from svr_lightning.errors import field_error, one_line

LEAST_TEMPERATURE = 0.01
"""Above 0. vLLM raises lower ones to it, and scores divided by a tiny number overflow."""
_REFUSED = ("tools", "functions", "response_format", "logprobs", "audio", "prediction")
"""Fields that ask for something else than one text; ignoring them would be misleading."""
Tokens = Annotated[int, Meta(ge=1, le=2**31)]


class ServingError(Exception):
    """A refused request, with its HTTP status."""

    def __init__(self, status: int, message: str, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class Controls(Struct, forbid_unknown_fields=True):
    """What a request may set of the controller: the field ``svr`` of its body."""

    threshold: float | None = None
    """Of the rule Confident."""
    max_turns: Tokens | None = None
    """At most the server's."""


class _StreamOptions(Struct):
    include_usage: bool | None = None


class _Message(Struct):
    role: Any = None
    content: Any = None


class _Body(Struct):
    """The fields of a request that are read; null stands for a missing one."""

    messages: list[_Message]
    model: str | None = None
    n: int | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    svr: Controls | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What a request asks for."""

    question: str
    """The last message of the user."""
    sampling: Decoding
    """Of every turn; each has a seed of its own."""
    seed: int | None
    controls: Controls
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]
    """Names of fields and messages without effect."""


def read_request(body: bytes, model: str, max_tokens: int) -> ChatRequest:
    """Read a request.

    Args:
        body: JSON.
        model: the one that is served.
        max_tokens: completion limit of a turn, which a request may lower.

    Raises:
        ServingError: naming the field that is wrong.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ServingError(400, f"the body is no JSON ({one_line(error)})") from error
    try:
        found = convert(fields, _Body)
    except ValidationError as error:
        raise ServingError(400, field_error(error, "the body")) from error
    if found.model is not None and found.model != model:
        raise ServingError(404, f"no model {one_line(found.model)!r}; this server has {model!r}")
    if found.n not in (None, 1):
        raise ServingError(400, "n must be 1")
    for name in _REFUSED:
        if fields.get(name) and fields[name] != {"type": "text"}:
            raise ServingError(400, f"{name} is not supported; leave it out")
    question, unread = _question(found.messages)
    options = found.stream_options or _StreamOptions()
    return ChatRequest(
        question=question,
        sampling=_sampling(found, max_tokens),
        seed=found.seed,
        controls=found.svr or Controls(),
        stream=bool(found.stream),
        include_usage=bool(options.include_usage),
        ignored=(*unread, *sorted(name[:40] for name in fields.keys() - _Body.__struct_fields__)),
    )


def _sampling(body: _Body, max_tokens: int) -> Decoding:
    temperature = body.temperature or 0.0
    if 0 < temperature < LEAST_TEMPERATURE:
        raise ServingError(400, f"temperature must be 0 or at least {LEAST_TEMPERATURE}")
    limits = (max_tokens, body.max_tokens, body.max_completion_tokens)
    greedy = temperature == 0  # whatever the others say
    return Decoding(
        max_completion_tokens=min(limit for limit in limits if limit is not None),
        temperature=temperature,
        top_p=1.0 if greedy or body.top_p is None else body.top_p,
        top_k=0 if greedy else max(body.top_k or 0, 0),
    )


def _question(messages: Sequence[_Message]) -> tuple[str, list[str]]:
    """The text of the last user message, and the names of all other messages."""
    asking = [index for index, message in enumerate(messages) if message.role == "user"]
    if not asking:
        raise ServingError(400, "messages: there is none with the role user")
    content = messages[asking[-1]].content
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        content = "".join(texts) if len(texts) == len(parts) else None
    if not isinstance(content, str) or not content.strip():
        raise ServingError(400, "messages: the content of the last user message must be text")
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise ServingError(400, "messages: the content is no valid Unicode") from error
    others = [index for index in range(len(messages)) if index != asking[-1]]
    return content, [f"messages[{index}]" for index in others[:8]]


def controlled(
    base: Controller, request: ChatRequest, client: Client, seconds: float
) -> tuple[Controller, list[str]]:
    """``base`` with the controls of a request, which may lower its limits and not raise them.

    Returns:
        The controller, with the certificate of ``base`` if it covers the request; else the
        settings that it does not cover.

    Raises:
        ServingError: naming the control that is wrong.
    """
    given, rule = request.controls, base.rule
    turns = base.max_turns if given.max_turns is None else given.max_turns
    try:
        if turns > base.max_turns:
            raise ValueError(f"svr.max_turns must be at most {base.max_turns}")
        if given.threshold is not None:
            if not isinstance(rule, Confident):
                raise ValueError(f"svr.threshold: {type(rule).__name__} has none")
            rule = replace(rule, threshold=given.threshold)
        found = replace(
            base,
            client=client,
            rule=rule,
            max_turns=turns,
            max_completion_tokens=request.sampling.max_completion_tokens,
            seconds=seconds,
            certificate=None,
        )
    except ValueError as error:
        raise ServingError(400, str(error)) from error
    if base.certificate is None:
        return found, []
    drawn = {name: getattr(request.sampling, name) for name in ("temperature", "top_p", "top_k")}
    other = found.departures(base.certificate, **drawn)
    return (found if other else replace(found, certificate=base.certificate)), other


def turn_seed(request: ChatRequest, number: int, turn: int) -> int:
    """The seed of a turn: of the request's own ``seed``, else of its ``number``."""
    sample = number if request.seed is None else request.seed
    problem = hashlib.sha256(request.question.encode()).hexdigest()
    return derive_seed(0, step=0, problem_id=problem, sample=sample, turn=turn)


# --- answers ------------------------------------------------------------------------------------


def turn_json(turn: Turn) -> dict[str, Any]:
    """A turn, as the ``svr`` field shows it."""
    check, completion = turn.check, turn.completion
    return {
        "turn": turn.index,
        "text": completion.text,
        "verdict": None if check is None else check.verdict.value,
        "confidence": None if check is None else check.confidence,
        "truncated": completion.truncated,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
    }


def svr_json(result: Result, uncertified: list[str], ignored: tuple[str, ...]) -> dict[str, Any]:
    """The ``svr`` field of an answer."""
    turns = [turn_json(turn) for turn in result.turns]
    returned = result.returned
    last = {} if returned is None else turns[returned.index - 1]
    return {
        "outcome": result.outcome,
        "accepted": result.accepted,
        "answer": result.answer,
        "returned_turn": None if returned is None else returned.index,
        "verdict": last.get("verdict"),
        "confidence": last.get("confidence"),
        "stop_reason": result.reason,
        "turns": turns,
        "certificate": None if result.certificate is None else result.certificate.id,
        "uncertified": uncertified,
        "ignored": list(ignored),
    }


def error_json(error: ServingError) -> dict[str, Any]:
    """The body of an error answer, with the turns that ended before it."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    found: dict[str, Any] = {"error": {"message": str(error), "type": kind, "code": error.status}}
    turns = getattr(error, "turns", ())
    return found | {"svr": {"turns": [turn_json(turn) for turn in turns]}} if turns else found


def answer_json(head: dict[str, Any], result: Result, svr: dict[str, Any]) -> dict[str, Any]:
    """The body of an answer. A question given up has a refusal instead of a text."""
    prompt, completion = result.prompt_tokens, result.completion_tokens
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": result.reason}
    finish = "stop"
    if result.returned is not None:
        message |= {"content": result.returned.completion.text, "refusal": None}
        finish = result.returned.completion.finish_reason.value
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage, "svr": svr}


def events(answer: dict[str, Any], *, include_usage: bool) -> str:
    """The same answer as server-sent events: its message, how it ended, and its usage if wanted."""
    usage, svr, (choice,) = answer["usage"], answer["svr"], answer["choices"]
    head = {name: answer[name] for name in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    delta = {name: value for name, value in choice["message"].items() if value is not None}
    pieces = [(delta, None), ({}, choice["finish_reason"])]
    chunks: list[dict[str, Any]] = [
        head | {"choices": [{"index": 0, "delta": d, "finish_reason": f, "logprobs": None}]}
        for d, f in pieces
    ]
    chunks[-1]["svr"] = svr
    if include_usage:
        chunks.append(head | {"choices": [], "usage": usage})
    return "".join(f"data: {line}\n\n" for line in [*map(json.dumps, chunks), "[DONE]"])
