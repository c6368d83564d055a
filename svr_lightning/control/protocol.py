"""The chat-completions protocol as the server speaks it: requests and answers as plain values."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

from svr_lightning.control.controller import Controller, Otherwise, Result
from svr_lightning.core.seeds import derive_seed
from svr_lightning.core.stopping import RULES, Confident, StopRule, rule_from_config
from svr_lightning.core.types import Turn
from svr_lightning.engines.base import SamplingParams
from svr_lightning.errors import one_line
from svr_lightning.recipes.dialogues import FreshTurns

N = TypeVar("N", int, float)
T = TypeVar("T", bool, dict[str, Any])
CONTROLS = ("rule", "threshold", "turns", "max_tokens", "otherwise")
"""The fields of a request body's ``svr``."""
_READ = {
    *("model", "messages", "stream", "stream_options", "svr", "seed", "n"),
    *("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens"),
}
_REFUSED = ("tools", "functions", "response_format", "logprobs", "audio", "prediction")
"""Fields that ask for something else than one text; ignoring them would be misleading."""
_LARGEST = 2**31
LEAST_TEMPERATURE = 0.01
"""Above 0. vLLM raises lower ones to it, and scores divided by a tiny number overflow."""


class ServingError(Exception):
    """A refused request, with its HTTP status."""

    def __init__(self, status: int, message: str, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What a request asks for."""

    question: str
    """The last message of the user."""
    sampling: SamplingParams
    """Of every turn; each has a seed of its own."""
    seed: int | None
    controls: Mapping[str, Any]
    """Some of :data:`CONTROLS`."""
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]
    """Names of fields and messages without effect."""


def read_request(body: bytes, model: str, longest: int, usual: float = 0.0) -> ChatRequest:
    """Read a request.

    Args:
        body: of it.
        model: the one that is served.
        longest: completion limit of a turn, which a request may lower.
        usual: temperature of a request that names none.

    Raises:
        ServingError: naming the field that is wrong.
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ServingError(400, f"the body is no JSON ({one_line(error)})") from error
    if not isinstance(asked, dict):
        raise ServingError(400, "the body must be a JSON object")
    named = asked.get("model")
    if named is not None and named != model:
        raise ServingError(404, f"no model {one_line(named)!r}; this server has {model!r}")
    if _number(asked, "n", 1, 1, _LARGEST) != 1:
        raise ServingError(400, "n must be 1")
    for name in _REFUSED:
        if asked.get(name) and asked[name] != {"type": "text"}:
            raise ServingError(400, f"{name} is not supported; leave it out")
    question, passed_over = _question(asked.get("messages"))
    temperature = _number(asked, "temperature", usual, 0.0, 2.0)
    if 0 < temperature < LEAST_TEMPERATURE:  # vLLM would raise it
        raise ServingError(400, f"temperature must be 0 or at least {LEAST_TEMPERATURE}")
    nucleus = _number(asked, "top_p", 1.0, 1e-9, 1.0)
    candidates = max(_number(asked, "top_k", 0, -1, _LARGEST), 0)
    if temperature == 0:  # greedy whatever they say
        nucleus, candidates = 1.0, 0
    limit = min(
        _number(asked, name, longest, 1, _LARGEST)
        for name in ("max_tokens", "max_completion_tokens")
    )
    controls, options = _of_type(asked, "svr", {}), _of_type(asked, "stream_options", {})
    if unknown := sorted(controls.keys() - set(CONTROLS)):
        known = ", ".join(CONTROLS)
        raise ServingError(400, f"svr.{one_line(unknown[0])} is not known; known: {known}")
    return ChatRequest(
        question=question,
        sampling=SamplingParams(
            max_tokens=min(limit, longest),
            temperature=temperature,
            top_p=nucleus,
            top_k=candidates,
        ),
        seed=None if asked.get("seed") is None else _number(asked, "seed", 0, -(2**63), 2**64),
        controls=controls,
        stream=_of_type(asked, "stream", False),
        include_usage=_of_type(options, "include_usage", False),
        ignored=(*passed_over, *sorted(name[:40] for name in asked.keys() - _READ)),
    )


def _question(messages: Any) -> tuple[str, list[str]]:
    """The text of the last user message, and the names of all other messages."""
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise ServingError(400, "messages must be a list of objects with role and content")
    places = [place for place, one in enumerate(messages) if one.get("role") == "user"]
    if not places:
        raise ServingError(400, "messages: there is none with the role user")
    content = messages[places[-1]].get("content")
    if isinstance(content, list):
        parts = [one.get("text") if isinstance(one, dict) else None for one in content]
        texts = [part for part in parts if isinstance(part, str)]
        content = "".join(texts) if len(texts) == len(parts) else None
    if not isinstance(content, str) or not content.strip():
        raise ServingError(400, "messages: the content of the last user message must be text")
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise ServingError(400, "messages: the content is no valid Unicode") from error
    others = [place for place in range(len(messages)) if place != places[-1]]
    return content, [f"messages[{place}]" for place in others[:8]]


def controlled(base: Controller, asked: ChatRequest, **changes: Any) -> Controller:
    """``base`` with the controls of a request, which may lower its limits and not raise them.

    It has no certificate: see :func:`uncertified`.

    Raises:
        ServingError: naming the control that is wrong.
    """
    # A client that names all of its options writes null for those that are not set.
    given = {name: value for name, value in asked.controls.items() if value is not None}
    rule = base.rule
    try:
        if isinstance(base.dialogue, FreshTurns) and asked.sampling.temperature == 0:
            raise ValueError("temperature must be above 0, since turns are independent samples")
        if "rule" in given:
            rule = _rule(given["rule"])
        if "threshold" in given:
            if not isinstance(rule, Confident):
                raise ValueError(f"svr.threshold: {type(rule).__name__} has none")
            low = -_LARGEST if "logprob" in rule.score else 0.0
            rule = replace(rule, threshold=_number(given, "threshold", 0.0, low, 1.0, "svr."))
        otherwise = given.get("otherwise", base.otherwise)
        if otherwise not in get_args(Otherwise):
            raise ValueError(f"svr.otherwise must be one of {', '.join(get_args(Otherwise))}")
        if otherwise == "escalate" and base.second is None:
            raise ValueError(
                "svr.otherwise: escalate needs a server that was started with --second"
            )
        most, longest, limit = (
            base.max_tokens or _LARGEST,
            base.completion_limit,
            asked.sampling.max_tokens,
        )
        return replace(
            base,
            rule=rule,
            max_turns=_number(given, "turns", base.max_turns, 1, base.max_turns, "svr."),
            max_completion_tokens=base.max_completion_tokens if longest <= limit else limit,
            max_tokens=_number(given, "max_tokens", base.max_tokens or 0, 1, most, "svr.") or None,
            otherwise=otherwise,
            certificate=None,
            **changes,
        )
    except ValueError as error:
        raise ServingError(400, str(error)) from error


def uncertified(base: Controller, applied: Controller, asked: ChatRequest) -> list[str]:
    """The settings of a request that the certificate does not cover."""
    if base.certificate is None:
        return []
    drawn = {name: getattr(asked.sampling, name) for name in ("temperature", "top_p", "top_k")}
    return applied.departures(base.certificate, **drawn)


def _rule(asked: Any) -> StopRule:
    """One of this package's rules, by name or as a configuration writes it; imports nothing."""
    spec = {"class_path": asked} if isinstance(asked, str) else asked
    if not isinstance(spec, dict) or not isinstance(spec.get("init_args", {}), dict):
        raise ValueError("svr.rule must be a name, or class_path and init_args")
    name = str(spec.get("class_path")).rpartition(".")[2]
    if name not in RULES:
        raise ValueError(f"svr.rule: {one_line(name)!r} is none of {', '.join(sorted(RULES))}")
    try:
        return rule_from_config({"stop": spec})
    except ValueError as error:
        raise ValueError(f"svr.rule: {one_line(error)}") from error


def turn_seed(asked: ChatRequest, number: int, turn: int) -> int:
    """The seed of a turn: of the request's own ``seed``, else of its ``number``."""
    sample = number if asked.seed is None else asked.seed
    problem = hashlib.sha256(asked.question.encode()).hexdigest()
    return derive_seed(0, step=0, problem_id=problem, sample=sample, turn=turn)


# --- answers ------------------------------------------------------------------------------------


def turn_json(turn: Turn) -> dict[str, Any]:
    """A turn, as the ``svr`` field and the events of a stream show it."""
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
    said = {} if returned is None else turns[returned.index - 1]
    return {
        "outcome": result.outcome,
        "accepted": result.accepted,
        "answer": result.answer,
        "returned_turn": None if returned is None else returned.index,
        "verdict": said.get("verdict"),
        "confidence": said.get("confidence"),
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


def usage_json(result: Result) -> dict[str, int]:
    """Tokens of all turns."""
    prompt, completion = result.prompt_tokens, result.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def message_json(result: Result) -> tuple[dict[str, Any], str]:
    """The message of an answer, and its finish reason. A question given up has a refusal."""
    if result.returned is None:
        return {"role": "assistant", "content": None, "refusal": result.reason}, "stop"
    completion = result.returned.completion
    said = {"role": "assistant", "content": completion.text, "refusal": None}
    return said, completion.finish_reason.value


# --- fields -------------------------------------------------------------------------------------


def _number(
    fields: Mapping[str, Any], name: str, default: N, low: float, high: float, at: str = ""
) -> N:
    """A field's value, of the type of ``default``: a whole number or any."""
    kind, value = type(default), fields.get(name)
    if value is None:
        return default
    right = isinstance(value, int | kind) and not isinstance(value, bool)
    if not right or not low <= value <= high:  # so is nan
        whole = "whole " if kind is int else ""
        raise ServingError(400, f"{at}{name} must be a {whole}number from {low} to {high}")
    return kind(value)


def _of_type(fields: Mapping[str, Any], name: str, empty: T) -> T:
    """A field's value, of the type of ``empty``, which stands for a missing one."""
    value = fields.get(name) or empty
    if not isinstance(value, type(empty)):
        kind = "an object" if isinstance(empty, dict) else "true or false"
        raise ServingError(400, f"{name} must be {kind}")
    return value
