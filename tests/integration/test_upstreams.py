"""Answers as real servers send them, through ``serve``, to unmodified clients."""

import asyncio
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from svr_lightning.clients.chat_model import ChatModel
from svr_lightning.clients.connections import Access, read_access
from svr_lightning.control.backends import Upstream
from svr_lightning.control.controller import Controller
from svr_lightning.control.server import ChatServer as Server
from svr_lightning.errors import ConfigError
from svr_lightning.recipes.dialogues import FreshTurns, SelfVerifying
from tests.chat_server import (
    DOUBT,
    DOUBTED,
    QUESTION,
    SURE,
    SURE_OF,
    ChatServer,
    Reply,
    completion,
    turn_of,
)
from tests.core.test_controller import solved
from tests.served import ASKED, by_openai, chat, content_of, in_front_of, proxy, serving

Messages = list[dict[str, str]]


CLAUDES = completion(
    None,
    message={
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "text", "text": SURE.replace("VERDICT:", "**VERDICT:**")},
        ]
    },
    finish_reason="end_turn",
    usage={"input_tokens": 40.0, "output_tokens": 20.0},
)
"""Unlike OpenAI's in much at once; tests/core/test_chat_protocol.py has every shape by itself."""


@pytest.mark.parametrize("usage", [None, {"completion_tokens": 20}, {"prompt_tokens": 40}])
def test_tokens_that_nobody_counted_are_not_known(usage):
    answer = completion(SURE, usage=usage)
    with proxy(lambda *_: answer) as (url, _):
        said = chat(url).json()
    assert said["usage"] is None
    counts = {"prompt_tokens": None, "completion_tokens": None} | (usage or {})
    assert said["svr"]["turns"][0].items() >= counts.items()
    result = solved(*(json.loads(one.body) for one in (completion(DOUBT), answer)))
    known = {"prompt_tokens": 80, "completion_tokens": 40}  # of both turns
    for kind, count in counts.items():
        assert getattr(result, kind) == (known[kind] if count else 0)


def two_turns(second: Reply, **settings: Any) -> Any:
    """A model that doubts its first turn, and whose server then gives ``second``."""
    return proxy(lambda body, _: completion(DOUBT) if turn_of(body) == 1 else second, **settings)


REFUSAL = completion(None, message={"content": None, "refusal": "I cannot help with that."})
TOO_LONG = Reply(b'{"error": {"message": "maximum context length is 90"}}', 400)


def test_a_refusal_reaches_the_client_after_one_call():
    with proxy(lambda *_: REFUSAL) as (url, upstream):
        with openai.OpenAI(base_url=url, api_key="none") as client:
            said = client.chat.completions.create(model="svr", messages=ASKED)
        assert len(upstream.bodies) == 1
    message = said.choices[0].message
    assert (message.content, message.refusal) == (None, "I cannot help with that.")
    assert said.usage.completion_tokens == 20


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (TOO_LONG, "turn 2 was refused: the model's server: HTTP 400, maximum context length"),
        (REFUSAL, "the model refuses: I cannot help with that."),
    ],
    ids=["too long", "refused"],
)
def test_a_refused_second_turn_leaves_the_first_turns_answer_and_the_reason(second, reason):
    with two_turns(second) as (url, upstream):
        said = chat(url).json()
        assert len(upstream.bodies) == 2
    assert (said["svr"]["outcome"], said["svr"]["accepted"]) == ("answered", False)
    assert reason in said["svr"]["stop_reason"]
    assert said["choices"][0]["message"]["content"] == DOUBTED
    with two_turns(second, otherwise="give_up") as (url, _):
        message = chat(url).json()["choices"][0]["message"]
        assert message["content"] is None
        assert message["refusal"] in said["svr"]["stop_reason"]


def test_a_controller_takes_a_refused_turn_of_any_client_as_its_end():
    with two_turns(TOO_LONG) as (_, server):
        sdk = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)

        def by_sdk(messages, limit):
            given = {"messages": messages, "max_tokens": limit}
            return sdk.chat.completions.create(model="m", **given)

        def by_httpx(messages, limit):
            return httpx.post(f"{server.url}/chat/completions", json={"messages": messages})

        for client in (by_sdk, by_httpx):
            result = Controller(client, "countdown").solve(QUESTION)
            assert (result.answer, result.accepted) == ("10-4", False)
            assert result.reason == "turn 2 was refused: maximum context length is 90"
        sdk.close()


@pytest.mark.parametrize(
    ("reply", "came"),
    [
        (None, "the client returned NoneType: no chat completion but null. Return text"),
        ({"model": "m", "message": {"content": SURE}, "done": True}, "with model, message, done"),
        (3, "the client returned int"),
        ((SURE, "stop"), "the client returned tuple"),
        ({"error": {"message": "no credit"}}, "no credit"),
    ],
    ids=["none", "ollama", "number", "reason", "error"],
)
def test_a_controller_says_what_its_client_returned_and_what_it_takes(reply, came):
    with pytest.raises(ValueError, match=came):
        solved(reply)


def by_litellm(url, stream):
    import litellm

    asked = {"model": "openai/svr", "api_base": url, "api_key": "none", "max_tokens": 60}
    return content_of(litellm.completion(**asked, messages=ASKED, stream=stream), stream)


def by_langchain(url, stream):
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="svr", base_url=url, api_key="none")
    pieces = model.stream(QUESTION) if stream else [model.invoke(QUESTION)]
    return "".join(str(piece.content) for piece in pieces)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("library", "client"),
    [("openai", by_openai), ("litellm", by_litellm), ("langchain_openai", by_langchain)],
)
def test_unmodified_clients_read_what_another_server_said(library, client, stream):
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    with proxy(lambda *_: CLAUDES) as (url, _):
        assert client(url, stream) == SURE_OF
        said = chat(url).json()
    assert (said["svr"]["accepted"], len(said["svr"]["turns"])) == (True, 1)
    assert said["usage"] == {"prompt_tokens": 40, "completion_tokens": 20, "total_tokens": 60}


def test_errors_have_the_schema_of_openai():
    refusal = Reply(b'{"error": {"message": "no", "code": "bad"}}', 401)
    with proxy(lambda *_: refusal) as (url, server):
        with openai.OpenAI(base_url=url, api_key="none") as client:
            with pytest.raises(openai.AuthenticationError, match="HTTP 401, no") as caught:
                client.chat.completions.create(model="svr", messages=ASKED)
            assert (caught.value.code, len(server.bodies)) == ("bad", 1)
            with pytest.raises(openai.NotFoundError) as missing:
                client.models.retrieve("other")
            assert missing.value.code == "model_not_found"
        root = url.removesuffix("/v1")
        for said in (
            httpx.post(f"{root}/chat/completions", json={}),
            httpx.get(f"{url}/chat/completions"),
        ):
            assert said.status_code in (404, 405)
            error = said.json()["error"]
            assert error.keys() == {"message", "type", "param", "code"}
            assert "there are POST /v1/chat/completions" in error["message"]


def test_a_stream_has_comments_until_it_has_the_answer_in_short_lines():
    long = completion("\U0001f600" * 90_000 + SURE)
    long.delay = 0.5
    with proxy(lambda *_: long, comment_seconds=0.1) as (url, _):
        said = chat(url, stream=True)
        assert by_openai(url, True).endswith(SURE_OF)
        failed = chat(url, stream=True, temperature=0.5, model="svr")
    assert said.headers["x-accel-buffering"] == "no"
    lines = said.text.splitlines()
    assert lines.count(": working") >= 2
    assert max(map(len, lines)) < 2**16
    assert failed.text.endswith("data: [DONE]\n\n")


def test_a_fault_after_a_streams_first_comment_is_an_error_of_the_stream():
    fault = Reply(b'{"error": {"message": "too long"}}', 400, delay=0.5)
    with (
        proxy(lambda *_: fault, comment_seconds=0.1) as (url, _),
        pytest.raises(openai.APIError, match="too long"),
    ):
        by_openai(url, True)


FRESH = {"dialogue": FreshTurns(SelfVerifying()), "at_once": 3}


def test_fresh_samples_run_at_once_and_end_when_one_is_accepted():
    def answer(_, number):
        reply = completion(SURE if number == 2 else DOUBT)
        reply.delay = 0.2 if number == 2 else 30.0
        return reply

    with proxy(answer, **FRESH) as (url, upstream):
        said = chat(url, temperature=0.8)
        greedy = chat(url)
        assert upstream.most_at_once == 3
        assert len({body["seed"] for body in upstream.bodies}) == 3
    svr = said.json()["svr"]
    assert (svr["accepted"], svr["returned_turn"], len(svr["turns"])) == (True, 1, 1)
    # All three were at work for as long as the one that was accepted.
    assert (svr["unused"]["calls"], svr["unused"]["prompt_tokens"]) == (2, 80)
    assert 38 <= svr["unused"]["completion_tokens"] <= 44
    assert said.json()["usage"]["prompt_tokens"] == 120
    assert (greedy.status_code, "temperature: must be" in greedy.text) == (400, True)


def test_a_refused_sample_ends_none_of_the_others():
    refusal = completion(None, message={"refusal": "No."})
    filtered = Reply(b'{"error": {"message": "filtered"}}', 400)

    def answer(_, number):
        return replace({1: refusal, 2: filtered}.get(number, completion(SURE)), delay=number / 5)

    def said_of(answer):
        with proxy(answer, **FRESH) as (url, upstream):
            said = chat(url, temperature=0.8).json()
            assert len(upstream.bodies) == 3
        return said["choices"][0]["message"], said["svr"]

    _, svr = said_of(answer)
    assert (svr["accepted"], len(svr["turns"])) == (True, 1)
    assert svr["unused"] == {"calls": 1, "prompt_tokens": 40, "completion_tokens": 20}
    message, svr = said_of(lambda *_: refusal)
    assert (message["refusal"], svr["turns"], svr["unused"]["calls"]) == ("No.", [], 3)


def test_a_cancelled_question_cancels_all_of_its_samples():
    ended = []

    async def client(messages, limit):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(limit)
        return DOUBT

    controller = Controller(client, "countdown", max_turns=3, seconds=0.1, **FRESH | {"at_once": 4})
    result = asyncio.run(controller.solve_async(QUESTION))
    assert (result.turns, result.reason, len(ended)) == ((), "limit of 0.1 seconds", 3)
    with pytest.raises(ValueError, match="at_once=2 needs the dialogue FreshTurns"):
        Controller(client, "countdown", at_once=2)


PEM = Path(__file__).resolve().parents[1] / "localhost.pem"


def test_a_server_with_an_authority_a_query_and_a_header_of_its_own(monkeypatch):
    monkeypatch.setenv("MY_KEY", "hunter2-hunter2")
    monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
    options = {"api-key": "$MY_KEY", "x-team": "red"}, {"api-version": "2024-10-21"}
    with ChatServer(lambda *_: completion(SURE), pem=PEM) as upstream:
        model = ChatModel(base_url=upstream.url, name="tiny", fields={"seed": None})
        access = read_access(None, *options, "--upstream-{}")
        server = Server(Controller(None, "countdown"), Upstream(model, access=access), model="svr")
        with serving(server) as url:
            assert chat(url, seed=7).json()["svr"]["ignored"] == ["seed"]  # which is not sent on
        assert upstream.paths == ["/v1/chat/completions?api-version=2024-10-21"]
        sent = upstream.headers[0]
        assert (sent["api-key"], sent["x-team"]) == ("hunter2-hunter2", "red")
        assert "Authorization" not in sent
        monkeypatch.delenv("SSL_CERT_FILE")
        with serving(in_front_of(upstream.url)) as url:
            said = chat(url).json()["error"]["message"]
    assert "CERTIFICATE_VERIFY_FAILED" in said
    assert "let SSL_CERT_FILE name a file" in said


@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----", b"\x00"])
def test_certificates_that_cannot_be_read_are_one_line(tmp_path, monkeypatch, content):
    file = tmp_path / "authority.pem"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(
        ConfigError, match=r"certificates cannot be used .*unset the wrong one .*SSL_CERT_FILE"
    ):
        Upstream(ChatModel(base_url="http://h/v1", name="m"), Access())
