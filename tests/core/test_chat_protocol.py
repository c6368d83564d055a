"""What an answer of a server means, on plain values."""

import json
from typing import Any

import pytest

from svr_lightning.core.types import Decoding, FinishReason
from svr_lightning.engines.chat_protocol import (
    MalformedError,
    UnusableError,
    is_temporary,
    read_answer,
    request_body,
    request_key,
    retry_delay,
    server_message,
)
from svr_lightning.engines.openai import OpenAIEngine
from svr_lightning.errors import ConfigError

USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


def answer(message: Any, finish_reason: Any = "stop", usage: Any = USAGE) -> bytes:
    choice = {"message": message, "finish_reason": finish_reason}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


def test_an_answer_is_text_reason_and_counts() -> None:
    read = read_answer(answer({"content": "hi"}, "length"))
    assert (read.text, read.finish_reason, read.truncated) == ("hi", FinishReason.LENGTH, True)
    assert (read.prompt_tokens, read.completion_tokens) == (7, 3)


@pytest.mark.parametrize(
    ("message", "ended", "text"),
    [
        ({"content": "<think>a</think>b"}, "stop", "<think>a</think>b"),
        ({"content": None}, "stop", ""),
        # The template opened the block, so that the policy only closes it.
        ({"content": "a</think>b"}, "stop", "<think>\na</think>b"),
        ({"content": "a</think><think>b"}, "stop", "<think>\na</think><think>b"),
        # The server split the reasoning off, under one of two names.
        ({"content": "b", "reasoning_content": "a\n"}, "stop", "<think>\na\n</think>\nb"),
        ({"content": "\nb", "reasoning": "\na\n"}, "stop", "<think>\na\n</think>\nb"),
        ({"content": None, "reasoning": "a"}, "stop", "<think>\na</think>\n"),
        ({"content": None, "reasoning": "a"}, "length", "<think>\na"),
    ],
)
def test_reasoning_stands_before_the_content_as_the_policy_wrote_it(
    message: Any, ended: str, text: str
) -> None:
    assert read_answer(answer(message, ended)).text == text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>busy</html>",
        b"[]",
        b'{"choices": []}',
        b"[" * 100_000,
        b'{"choices": [{"message": null, "finish_reason": "stop"}]}',
        answer({"content": [{"type": "text"}]}),
        answer({"content": "b", "reasoning": 3}),
        b"\xff\xfe",
    ],
)
def test_what_is_no_chat_completion_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedError):
        read_answer(body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (answer({"content": "x"}, "content_filter"), "content_filter"),
        (answer({"content": "x"}, None), "none"),
        (answer({"content": "x"}, ["stop"]), "none"),
        (answer({"content": "x"}, usage=None), "no usage"),
        (answer({"content": "x"}, usage={"prompt_tokens": 1}), "no usage"),
        (answer({"content": "x"}, usage={**USAGE, "completion_tokens": -1}), "no usage"),
        (answer({"content": "x"}, usage={**USAGE, "completion_tokens": True}), "no usage"),
        (answer({"content": "x"}, usage={**USAGE, "prompt_tokens": 10**30}), "no usage"),
    ],
)
def test_an_answer_that_cannot_be_counted_says_what_it_lacks(body: bytes, said: str) -> None:
    with pytest.raises(UnusableError, match=said):
        read_answer(body)


def test_fields_that_only_some_servers_know_are_sent_where_they_say_something() -> None:
    greedy = Decoding(max_completion_tokens=9, temperature=0.0)
    messages = [{"role": "user", "content": "q"}]
    plain = request_body("m", messages, greedy, 5, chat_template_kwargs={})
    assert plain == {
        "model": "m",
        "messages": messages,
        "max_tokens": 9,
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": 5,
    }
    drawn = Decoding(max_completion_tokens=9, temperature=0.6, top_p=0.9, top_k=20)
    full = request_body("m", messages, drawn, 5, chat_template_kwargs={"a": False})
    assert (full["top_k"], full["top_p"], full["chat_template_kwargs"]) == (20, 0.9, {"a": False})
    assert request_key(plain) == request_key(dict(reversed(plain.items())))
    changed = [{**plain, name: "other"} for name in plain]
    assert len({request_key(body) for body in [plain, full, *changed]}) == 2 + len(plain)


def test_waits_double_lose_up_to_half_by_chance_and_have_an_end() -> None:
    def waits(draw: float) -> list[float]:
        return [retry_delay(tries, 1.0, draw, None) for tries in (1, 2, 3, 4, 9)]

    assert waits(0.0) == [1, 2, 4, 8, 60]
    assert waits(1.0) == [0.5, 1, 2, 4, 60]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0", 1.0),  # the own wait is longer
        ("86400", 60.0),
        ("9" * 5000, 60.0),
        ("Thu, 01 Jan 2026 00:00:10 GMT", 1.0),
        ("-5", 1.0),
        ("soon", 1.0),
        ("\u0663", 1.0),
    ],
)
def test_retry_after_is_honoured_within_bounds(header: str, seconds: float) -> None:
    assert retry_delay(1, 1.0, 0.0, header) == seconds


def test_what_may_pass_is_temporary_and_what_is_refused_is_not() -> None:
    again = [status for status in range(200, 600) if is_temporary(status)]
    assert again == [408, 409, 429, *range(500, 600)]


def test_a_servers_message_becomes_one_short_line() -> None:
    assert server_message(b'{"error": {"message": "too\\nlong", "code": 400}}') == "too long"
    assert server_message(b'{"message": "older"}') == "older"
    assert server_message(b'{"error": "plain"}') == "plain"
    assert server_message(b"\x1b[2J<html>") == "?[2J<html>"
    assert server_message(b"") == "no message"
    assert len(server_message(b"x" * 10**6)) < 310
    # Also of a key that the line would cut.
    assert "secret" not in server_message(b"x" * 285 + b" my-secret-key", "my-secret-key")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"concurrency": 0}, "concurrency=0 must be at least 1"),
        ({"timeout": float("nan")}, "timeout=nan must be at least 1"),
        ({"patience": 0.5}, "patience=0.5 must be at least 1"),
        ({"tries": 0}, "tries=0 must be at least 1"),
        ({"model_name": " "}, "model_name is empty"),
        *(
            ({"base_url": url}, said)
            for url, said in (
                ("h:1/v1", "no address"),
                ("ftp://h/v1", "no address"),
                ("http://h:port/v1", "no address"),
                ("http://h/a b", "no address"),
                ("https://me:hunter2@h/v1", "without user, password"),
                ("https://h/v1?key=hunter2", "without user, password"),
                ("http://h/v1/chat/completions", "ends before"),
            )
        ),
    ],
)
def test_a_server_that_cannot_be_asked_is_one_line_without_secrets(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"model\.engine\..*{said}") as caught:
        OpenAIEngine(**{"base_url": "http://h:1/v1", "model_name": "m", **change})
    assert "hunter2" not in str(caught.value)


def test_a_key_comes_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    where = {"base_url": "http://h/v1", "model_name": "m"}
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert OpenAIEngine(**where).api_key() is None
    monkeypatch.setenv("OPENAI_API_KEY", " abc\n")
    assert OpenAIEngine(**where).api_key() == "abc"
    with pytest.raises(ConfigError, match="api_key_env=MINE: this variable is not set"):
        OpenAIEngine(**where, api_key_env="MINE")
    monkeypatch.setenv("MINE", "a\u00e9b")
    with pytest.raises(ConfigError, match="the key in MINE holds characters") as caught:
        OpenAIEngine(**where, api_key_env="MINE")
    assert "\u00e9" not in str(caught.value)
