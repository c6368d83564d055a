"""The chat-completions protocol as the server speaks it: requests and answers as plain values."""

import json
import re
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, convert

from svr_lightning.clients.chat_answers import ServerError
from svr_lightning.control.controller import Client, Controller, Escalation, Result
from svr_lightning.core.parsing import (
    ANSWER_CLOSE,
    ANSWER_OPEN,
    CLOSE_TAG,
    OPEN_TAG,
    THINK_OPEN,
    final_part,
    self_check_start,
    without_spans,
)
from svr_lightning.core.ranges import Count
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import LEAST_TEMPERATURE, Decoding, Message, Turn
from svr_lightning.errors import field_error, one_line, require

_OTHER_THAN_TEXT = re.compile(
    r"tools|functions|tool_calls|function_call|audio|modalities|prediction|documents|web_search_options|echo"
    r"|(?:top_|prompt_)?logprobs|continue_final_message|images?|videos?|files?|file_ids|attachments"
    # An answer of a given form: OpenAI, vLLM, SGLang, llama.cpp, Ollama, Gemini.
    r"|response_(?:format|schema|mime_type|modalities)|guided_\w+|structured_\w+|structural_tag"
    r"|json_schema|grammar|regex|ebnf|format|output_(?:format|schema|config)"
)
"""Fields of a request, or of a message, that ask for something else than one text, or hold it;
ignoring them would be misleading."""
_PLAIN_TEXT: tuple[Any, ...] = ({"type": "text"}, ["text"], "text", "text/plain")
"""Their values that ask for one text."""
Content = Literal["answer", "turn"]
"""What a message holds: the answer's text, or the turn as the policy wrote it."""


def require_model(name: str, served: str) -> None:
    """Refuse a request for another model than the one that is served."""
    if name != served:
        raise ServerError(
            f"no model {one_line(name)!r}; this server has {served!r}", 404, code="model_not_found"
        )


class Controls(Struct, forbid_unknown_fields=True):
    """What a request may set of the controller: the field ``svr`` of its body."""

    threshold: float | None = None
    """The threshold of the rule Confident."""
    max_turns: Count | None = None
    """T_max, at most the server's."""
    content: Content | None = None
    """Instead of the server's ``--content``."""


class _Part(Struct):
    type: Literal["text", "input_text", "output_text", "refusal"] = "text"
    text: str | None = None
    refusal: str | None = None

    def __post_init__(self) -> None:
        self.text = self.refusal if self.type == "refusal" else self.text
        if self.text is None:
            raise ValueError("a part without text")


class _Message(Struct):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part] | None = None
    refusal: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.content, list):
            self.content = "\n".join(part.text for part in self.content if part.text)
        self.content = self.content or self.refusal or ""
        self.content.encode()  # a lone surrogate is an error
        if self.role == "developer":
            self.role = "system"

    @property
    def plain(self) -> Message:
        """As a policy reads it."""
        return {"role": self.role, "content": str(self.content)}


class ChatRequest(Struct):
    """The fields of a request that are read; null stands for a missing one."""

    messages: Annotated[list[_Message], Meta(min_length=1)]
    model: str | None = None
    n: Literal[1] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    svr: Controls | None = None

    @property
    def question(self) -> str:
        """The last message."""
        return self.messages[-1].plain["content"]

    @property
    def context(self) -> list[Message]:
        """The messages before it. Of these, those without text say nothing and are left out."""
        earlier = [message.plain for message in self.messages[:-1]]
        return [message for message in earlier if message["content"].strip()]

    def sampling(self, most: int) -> Decoding:
        """How every turn is drawn, with at most ``most`` tokens."""
        greedy = not self.temperature  # whatever the others say
        return Decoding(
            max_completion_tokens=min(
                limit for limit in (most, self.max_tokens, self.max_completion_tokens) if limit
            ),
            temperature=self.temperature or 0.0,
            top_p=1.0 if greedy or self.top_p is None else self.top_p,
            top_k=0 if greedy else max(self.top_k or 0, 0),
        )


def read_request(body: bytes, model: str) -> tuple[ChatRequest, list[str]]:
    """Read a request for the model that is served.

    Returns:
        The request, and what of it has no effect.

    Raises:
        ServerError: naming the field that is wrong.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ServerError(f"the body is no JSON ({one_line(error)})", 400) from error
    try:
        request = convert(fields, ChatRequest)
    except ValueError as error:
        raise ServerError(field_error(error, "the body", ChatRequest), 400) from error
    require_model(request.model or model, model)
    of_messages = ((f"messages[{i}].", said) for i, said in enumerate(fields["messages"]))
    for place, part in (("", fields), *of_messages):
        for name, value in part.items():
            if _OTHER_THAN_TEXT.fullmatch(name) and value and value not in _PLAIN_TEXT:
                shown = place + one_line(name)
                message = f"{shown} is not supported: an answer is one text; leave it out"
                raise ServerError(message, 400)
    if request.messages[-1].role != "user" or not request.question.strip():
        raise ServerError("messages: the last one must be the user's question, with text", 400)
    ignored = sorted(name[:40] for name in fields.keys() - ChatRequest.__struct_fields__)[:32]
    if 0 < (request.temperature or 0) < LEAST_TEMPERATURE:
        ignored.append(f"temperature={request.temperature}: raised to {LEAST_TEMPERATURE}")
        request.temperature = LEAST_TEMPERATURE
    return request, ignored


def controlled(
    base: Controller, request: ChatRequest, client: Client, escalate: Client | None
) -> tuple[Controller, list[str]]:
    """``base`` with the controls of a request, which may lower its limits and not raise them.

    Returns:
        The controller, with the certificate of ``base`` if it covers the request; else the
        settings that it does not cover.

    Raises:
        ServerError: naming the control that is wrong.
    """
    given = request.svr or Controls()
    rule = base.rule
    turns = given.max_turns or base.max_turns
    sampling = request.sampling(base.completion_limit)
    try:
        require(turns <= base.max_turns, f"svr.max_turns must be at most {base.max_turns}")
        if given.threshold is not None:
            if not isinstance(rule, Confident):
                raise ValueError(f"svr.threshold: {type(rule).__name__} has none")
            rule = replace(rule, threshold=given.threshold)
        controller = replace(
            base,
            client=client,
            escalate=escalate,
            rule=rule,
            max_turns=turns,
            max_completion_tokens=sampling.max_completion_tokens,
            certificate=None,
        )
    except ValueError as error:
        raise ServerError(str(error), 400) from error
    if base.certificate is None:
        return controller, []
    other = controller.departures(base.certificate, **vars(sampling))
    if request.context:
        other.append(f"{len(request.context)} messages before the question")
    if other:
        return controller, other
    return replace(controller, certificate=base.certificate), []


# --- answers ------------------------------------------------------------------------------------

_FIELD = r"(?ai:VERDICT|CONFIDENCE)(?![A-Za-z])[\s*_`\"]{0,8}[:=|\uff1a]"
_CHECK = re.compile(_FIELD)
_CHECK_LINE = re.compile(rf"[\W_]{{0,99}}(?:{_FIELD}|(?ai:self[ _-]?check)[\W_]*$)")
"""A line of a self-check without tags, or its heading."""
_CHECK_LINES = 16
"""Lines at the end of a text that are looked at."""
_WORD = re.compile(r"[^\W_]")


_MARK = re.compile(r"\\boxed|####")


def answer_text(completion: str, answer: str | None = None) -> str:
    r"""A completion as a client expects it that knows of no self-check.

    That is its final part without reasoning and self-checks, and without the tags around an answer.
    What is not in tags stays, such as a solution in prose and the box in it. A box or a mark around
    nothing but ``answer``, the task's reading, is an artefact of the prompt and goes too.

    Examples:
        >>> answer_text("<think>6*7</think>So <answer>42</answer> VERDICT: CORRECT")
        'So 42'
        >>> answer_text(r"<think>6*7</think><answer>$\boxed{42}$</answer>", "42")
        '42'
    """
    text = final_part(completion).partition(THINK_OPEN)[0]  # of reasoning that was cut off
    text = without_spans(text, OPEN_TAG, CLOSE_TAG)
    text = text[: self_check_start(text)]
    answered = text.rfind(ANSWER_CLOSE)
    check = _CHECK.search(text, answered) if answered >= 0 else None
    if check is not None:
        between = text[answered + len(ANSWER_CLOSE) : check.start()]
        text = text[: check.start() if _WORD.search(between) else answered]
    lines = text.split("\n")
    end = len(lines)
    for number in reversed(range(max(end - _CHECK_LINES, 0), end)):
        if _CHECK_LINE.match(lines[number]):
            end = number
        elif _WORD.search(lines[number]):
            break
    text = "\n".join(lines[:end]).replace(ANSWER_OPEN, "").replace(ANSWER_CLOSE, "").strip()
    bare = text.strip("\\[()] $.\n")  # without the signs of a formula
    return answer if answer and bare in (f"boxed{{{answer}}}", f"#### {answer}") else text


def turn_json(turn: Turn) -> dict[str, Any]:
    """A turn, as the ``svr`` field shows it."""
    completion, signals = turn.completion, turn.signals
    return {
        "turn": turn.index,
        "text": completion.text,
        "verdict": signals.verdict,
        "confidence": signals.confidence,
        "truncated": signals.truncated,
        "prompt_tokens": completion.prompt_tokens or None,
        "completion_tokens": completion.completion_tokens or None,
    }


def escalation_json(escalation: Escalation | None) -> dict[str, Any] | None:
    """What came of asking the second model; None if it was not asked."""
    if escalation is None:
        return None
    completion = escalation.completion
    return {
        "outcome": "failed" if escalation.error else "answered",
        "error": escalation.error or None,
        "prompt_tokens": completion and (completion.prompt_tokens or None),
        "completion_tokens": completion and (completion.completion_tokens or None),
    }


def svr_json(result: Result, uncertified: list[str], ignored: list[str]) -> dict[str, Any]:
    """The ``svr`` field of an answer."""
    last = {} if result.returned is None else turn_json(result.returned)
    return {
        "outcome": result.outcome,
        "accepted": result.accepted,
        "answer": result.answer,
        "returned_turn": last.get("turn"),
        "verdict": last.get("verdict"),
        "confidence": result.confidence,
        "stop_reason": result.reason,
        "turns": [turn_json(turn) for turn in result.turns],
        "certificate": None if result.certificate is None else result.certificate.id,
        "uncertified": [*uncertified, *result.uncertified],
        "escalation": escalation_json(result.escalation),
        "unused": result.unused._asdict(),
        "ignored": ignored,
    }


def error_json(error: ServerError) -> dict[str, Any]:
    """The body of an error answer, with the turns that ended before it."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    shown = {"message": str(error), "type": kind, "param": None, "code": error.code}
    turns = [turn_json(turn) for turn in error.turns]
    return {"error": shown} | ({"svr": {"turns": turns}} if turns else {})


def answer_json(
    head: dict[str, Any],
    result: Result,
    uncertified: list[str],
    ignored: list[str],
    request: ChatRequest,
    content: Content,
) -> dict[str, Any]:
    """The body of an answer. A question given up has a refusal instead of a text.

    ``content`` is the server's choice, which the request may replace.
    """
    usage = {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "total_tokens": result.prompt_tokens + result.completion_tokens,
    }
    message = {"role": "assistant", "content": None, "refusal": result.refusal or result.reason}
    finish = "stop"
    if result.completion is not None:
        text = result.completion.text
        content = (request.svr and request.svr.content) or content
        asked = " ".join(said.plain["content"] for said in request.messages)
        alone = None if _MARK.search(asked) else result.answer  # a client may look for the mark
        message["content"] = answer_text(text, alone) if content == "answer" else text
        message["refusal"] = None
        finish = result.completion.finish_reason.value
    return {
        **head,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": usage if all(usage.values()) else None,
        "svr": svr_json(result, uncertified, ignored),
    }


def events(answer: dict[str, Any], *, include_usage: bool) -> str:
    """An answer as server-sent events: its message, how it ended, and its usage if wanted.

    Some clients read lines of 64 KB at most: the text comes in pieces, and the turns without texts.
    """
    (choice,) = answer["choices"]
    turns = [{n: v for n, v in turn.items() if n != "text"} for turn in answer["svr"]["turns"]]
    head = {name: answer[name] for name in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    message = choice["message"]
    kind = "refusal" if message["content"] is None else "content"
    starts = range(0, len(message[kind]), _PIECE)
    texts = [{kind: message[kind][start : start + _PIECE]} for start in starts]
    chunks: list[dict[str, Any]] = [
        head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}]}
        for delta in [{"role": message["role"]}, *texts, {}]
    ]
    chunks[-1]["choices"][0]["finish_reason"] = choice["finish_reason"]
    chunks[-1]["svr"] = answer["svr"] | {"turns": turns}
    if include_usage:
        chunks.append(head | {"choices": [], "usage": answer["usage"]})
    return "".join(f"data: {line}\n\n" for line in [*map(json.dumps, chunks), "[DONE]"])


_PIECE = 5000
"""Characters; one has up to twelve bytes in JSON."""
