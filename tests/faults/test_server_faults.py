"""Faults around the server: each ends in a clear answer, and the server goes on."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.chat_server import DOUBT, QUESTION, SURE, Reply, completion
from tests.chat_server import ChatServer as Scripted
from tests.commands import refused
from tests.core.test_controller import certificate
from tests.integration.test_drop_in import metrics
from tests.served import ASKED, chat, connected, in_front_of, proxy, serving, started

SOUND = completion(SURE)


def behind(*replies: Reply, **settings: Any) -> Any:
    """The server in front of one that gives these replies and then sound ones."""

    def answer(body, number):
        return replies[number - 1] if number <= len(replies) else SOUND

    return proxy(answer, **settings)


@pytest.fixture(scope="module")
def sound() -> Iterator[str]:
    with behind() as (url, _):
        yield url


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether a condition comes true in this time."""
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return holds()


def message(said: httpx.Response) -> str:
    return str(said.json()["error"]["message"])


@pytest.mark.parametrize(
    ("fault", "tries", "status", "words"),
    [
        (Reply(b"", drop=True), 3, 502, "/v1/chat/completions: RemoteProtocolError"),
        (Reply(b"\x00\xff garbage"), 3, 502, "no chat completion but '?"),
        (Reply(b'{"error": "over\\u001b[31m"}', 500), 3, 502, "HTTP 500, over?[31m"),
        (Reply(b"slow down", 429, {"Retry-After": "7"}), 1, 429, "HTTP 429, slow down"),
        (Reply(b"", 429, {"Retry-After": "\xe9"}), 3, 429, "HTTP 429, no message"),
        (Reply(b"key upstream-secret is wrong", 401), 1, 401, "HTTP 401, key [key] is wrong"),
        (Reply(b"no such model", 404), 1, 404, "HTTP 404, no such model"),
        (Reply(b"", 307, {"Location": "http://h/v1"}), 1, 502, "a redirect to http://h/v1; give"),
        (Reply(b"x", headers={"Content-Encoding": "gzip"}), 1, 502, "its answer is compressed"),
    ],
)
def test_a_fault_of_the_models_server_is_reported_and_the_next_request_is_answered(
    fault, tries, status, words
):
    with behind(completion(DOUBT), *[fault] * tries) as (url, upstream):
        said = chat(url)
        assert (said.status_code, len(upstream.bodies)) == (status, 1 + tries)
        assert words in message(said)
        assert [turn["text"] for turn in said.json()["svr"]["turns"]] == [DOUBT]
        assert said.headers.get("retry-after") == ("7" if "slow down" in words else None)
        assert chat(url).status_code == 200


def test_a_server_that_is_down_is_reported_and_used_again_when_it_is_back():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with serving(in_front_of(f"http://127.0.0.1:{port}/v1")) as url:
        asked = f"http://127.0.0.1:{port}/v1/chat/completions"
        assert f"the model's server: {asked}: ConnectError" in message(chat(url))
        with Scripted(lambda body, number: SOUND, port=port):
            assert chat(url).status_code == 200


def test_a_hung_server_is_given_up_at_the_limit_of_time():
    with hung() as (upstream, gone), serving(in_front_of(upstream, seconds=0.3)) as url:
        said = chat(url)
        assert (said.status_code, message(said)) == (
            504,
            "no turn ended within the limit of 0.3 seconds",
        )
        assert gone.wait(1)


def test_a_fault_of_the_first_turn_is_a_400_or_429_of_a_stream_too():
    with behind(Reply(b"", 400), Reply(b"", 429, {"Retry-After": "9"})) as (url, _):
        assert chat(url, stream=True).status_code == 400
        assert chat(url, stream=True).headers["retry-after"] == "9"


@contextmanager
def hung() -> Iterator[tuple[str, threading.Event]]:
    """A server that reads one request and never answers; the event says that its client left."""
    gone = threading.Event()

    def read():
        connection, _ = listening.accept()
        with connection:
            while connection.recv(2**16):
                pass
        gone.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=read, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", gone


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_takes_its_request_along(stream):
    # The server itself would wait ten minutes.
    with hung() as (upstream, gone):
        server = in_front_of(upstream)
        with serving(server) as url:
            body = {"messages": ASKED, "stream": stream}
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{url}/chat/completions", json=body, timeout=0.5).read()
            assert gone.wait(1)
            assert within(5, lambda: server.running == 0)
            assert metrics(url)["svr_requests_total 499"] == 1


def test_one_request_too_many_is_asked_to_retry_later():
    with hung() as (upstream, _), ThreadPoolExecutor(1) as pool:
        server = in_front_of(upstream, requests=1, seconds=1)
        with serving(server) as url:
            first = pool.submit(chat, url)
            assert within(5, lambda: server.running == 1)
            said = chat(url)
            assert (said.status_code, said.headers["retry-after"]) == (429, "1")
            assert first.result().status_code == 504


JSON_ALONE = {"content-type": "application/json"}
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_a_body_of_100_megabytes_is_refused_and_not_kept(sound):
    chunk = b"x" * 2**20
    sent = {"content": (chunk for _ in range(100)), "headers": JSON_ALONE, "timeout": 60}
    said = httpx.post(f"{sound}/chat/completions", **sent)
    assert said.status_code == 413
    assert message(said) == f"a body of {100 * 2**20} bytes; at most {2**20} are read"
    assert chat(sound).status_code == 200


def test_a_body_that_never_ends_is_refused():
    with behind(transfer_seconds=0.2) as (url, _), connected(url) as connection:
        connection.sendall(f"{HEAD}Content-Length: 9\r\n\r\n{{".encode())
        assert connection.recv(2**16).startswith(b"HTTP/1.1 408")


def test_a_client_that_does_not_read_takes_no_place():
    def long(_, number):
        return SOUND if number > 6 else completion(DOUBT + "x" * 900_000)

    with Scripted(long) as upstream:
        server = in_front_of(upstream.url)
        with serving(server) as url, connected(url) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            body = json.dumps({"messages": [USER]}).encode()
            connection.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert within(30, lambda: len(upstream.bodies) == 7 and server.running == 0)
            assert chat(url).status_code == 200


def wrote(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


USER = wrote("user", QUESTION)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "the body: Expected `object`"),
        ({"\ud800": 1}, "the body: 'utf-8' codec can't encode"),
        ({"messages": []}, "messages: Expected `array` of length >= 1"),
        ({"messages": [USER, wrote("assistant", "x")]}, "must be the user's"),
        (
            wrote("usr", "x"),
            "messages[0].role: 'usr' is not one of assistant, developer, system, user; did you "
            "mean 'user'?",
        ),
        ({"messages": [USER, wrote("user", [{"text": " "}])]}, "user's question, with text"),
        (wrote("user", "\ud800"), "messages[0]: 'utf-8' codec can't encode"),
        (
            wrote("assistant", None, tool_calls=[{}]),
            "messages[0].tool_calls is not supported: an answer is one text",
        ),
        (wrote("assistant", None, audio={"id": "a"}), "messages[0].audio is not supported"),
        (wrote("user", "x", images=["aGk="]), "messages[0].images is not supported"),
        (wrote("user", [{"type": "text"}]), "messages[0].content[0]: a part without text"),
        (
            wrote("user", [{"type": "image_url", "text": "x"}]),
            "messages[0].content[0].type: 'image_url' is not one of input_text, output_text, ",
        ),
        ({"temperature": float("nan")}, "temperature: Expected `float` >="),
        (
            {"svr": {"max_turn": 3}},
            "svr: 'max_turn' is not one of threshold, max_turns, content; did you mean "
            "'max_turns'?",
        ),
        ({"n": 2}, "n: '2' is not one of 1"),
        ({"svr": {"max_turns": 11}}, "svr.max_turns must be at most 10"),
        ({"svr": {"threshold": 2}}, "threshold=2.0 must lie in [0, 1]"),
        ({"model": "other\x1b[31m"}, "no model 'other?[31m'"),
    ],
)
def test_wrong_requests_are_refused_by_the_field(sound, body, words):
    """``body`` is all of it, or what it has beside a question, or a message before that."""
    data = body
    if not isinstance(body, bytes):
        fields = {"messages": [body, USER]} if "role" in body else {"messages": [USER], **body}
        data = json.dumps(fields).encode()
    said = httpx.post(f"{sound}/chat/completions", content=data, headers=JSON_ALONE)
    assert said.status_code == (404 if "no model" in words else 400)
    assert words in message(said)
    assert said.content.isascii()


@pytest.mark.parametrize(
    ("name", "value", "harmless"),
    [
        ("guided_json", {"type": "object"}, {}),
        ("guided_choice", ["a"], []),
        ("guided_regex", "a+", ""),
        ("structured_outputs", {"json": {}}, None),
        ("response_format", {"type": "json_object"}, {"type": "text"}),
        ("json_schema", "{}", None),
        ("grammar", "root ::= x", ""),
        ("regex", "a+", None),
        ("format", "json", "text"),
        ("response_mime_type", "application/json", "text/plain"),
        ("modalities", ["text", "audio"], ["text"]),
        ("top_logprobs", 3, 0),
        ("continue_final_message", True, False),
    ],
)
def test_a_request_for_another_form_than_one_text_is_refused_by_its_name(
    sound, name, value, harmless
):
    said = chat(sound, **{name: value})
    assert (said.status_code, f"{name} is not supported" in message(said)) == (400, True)
    assert chat(sound, **{name: harmless}).status_code == 200


@pytest.mark.parametrize("temperature", [1e-39, 1e-8, 0.009])
def test_a_temperature_that_is_almost_zero_is_raised_and_the_answer_says_so(temperature):
    with behind() as (url, upstream):
        said = chat(url, temperature=temperature)
        assert [body["temperature"] for body in upstream.bodies] == [0.01]
    assert said.json()["svr"]["ignored"] == [f"temperature={temperature}: raised to 0.01"]


SECRET = "upstream-secret"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(json.dumps({"error": {"message": "no", "code": SECRET}}).encode(), 400),
        Reply(json.dumps({"error": {"message": f"no {SECRET.upper()}"}}).encode(), 400),
        Reply(b"", 429, {"Retry-After": SECRET}),
        Reply(b"", 307, {"Location": f"http://h/v1?key={SECRET}"}),
        Reply(json.dumps({SECRET: 1}).encode()),
        Reply(f"<html>{SECRET}".encode()),
        completion(None, message={"content": None, "refusal": f"not with {SECRET}"}),
        completion(f"{SURE} {SECRET}"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_key_of_the_models_server_is_in_nothing_that_clients_get(reply, stream):
    with behind(reply, reply, reply) as (url, _):
        said = chat(url, stream=stream)
    assert SECRET not in f"{said.text} {dict(said.headers)}".lower()
    assert "[key]" in said.text or said.headers.get("retry-after") == "[key]"


def test_a_slash_too_many_changes_nothing():
    with behind(key="k") as (url, upstream):
        known = {"authorization": "Bearer k"}
        body = {"messages": [USER]}
        for path in ("chat/completions/", "/chat/completions//"):
            said = httpx.post(f"{url}/{path}", json=body)
            assert (said.status_code, "location" in said.headers) == (401, False)
            assert httpx.post(f"{url}/{path}", json=body, headers=known).status_code == 200
        assert httpx.get(f"{url}/models/").status_code == 401
        assert httpx.get(f"{url}/models/", headers=known).json()["data"][0]["id"] == "svr"
        assert len(upstream.bodies) == 2


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_standard_streams_may_be_closed(closed):
    with Scripted(lambda *_: SOUND) as upstream, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken.close()
        options = ["--task", "countdown", "--upstream", upstream.url, "--model", "tiny"]
        command = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-m", "svr_lightning"]
        command += ["serve", *options, "--port", str(port)]
        url = f"http://127.0.0.1:{port}/v1"

        def answers():
            try:
                return chat(url).status_code == 200
            except httpx.HTTPError:
                return False

        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert within(60, answers)
            finally:
                process.terminate()
            assert process.wait(30) == 0
            assert process.stderr.read() == ""


def test_control_characters_are_data_on_their_way_in_and_out():
    hostile = "\x00\x1b[31m\r\n\r\ndata: [DONE]\n\n<|im_end|>\u2028\ud800"
    with behind(completion(SURE + hostile), content="turn") as (url, upstream):
        asked = [{"role": "user", "content": hostile[:-1]}]
        said = chat(url, messages=asked)
        assert said.json()["choices"][0]["message"]["content"] == SURE + hostile
        assert upstream.bodies[0]["messages"][-1]["content"] == hostile[:-1]
        assert said.content.isascii()
    with behind(completion(DOUBT + hostile), completion(SURE + hostile)) as (url, _):
        events = chat(url, stream=True).text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        assert [event for event in events[:-2] if not event.startswith("data: {")] == []


def test_sigterm_under_load_answers_what_ends_in_time_and_refuses_the_rest():
    def slow(body, number):
        reply = completion(SURE)
        reply.delay = 0.5 if number < 9 else 30  # more than the server waits
        if number == 9:
            all_there.set()
        return reply

    all_there = threading.Event()
    with Scripted(slow) as upstream, ThreadPoolExecutor(9) as pool:
        options = ["--task", "countdown", "--upstream", upstream.url, "--model", "tiny"]
        with started(*options) as (url, process):
            running = [pool.submit(chat, url, model="tiny") for _ in range(9)]
            assert all_there.wait(30)
            os.kill(process.pid, signal.SIGTERM)
            statuses = sorted(said.result().status_code for said in running)
            assert statuses == [*[200] * 8, 503]
            assert process.wait(30) == 0


SERVE = ("serve", "--task", "countdown")
HERE = "--upstream http://h/v1 --model m"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--policy x --upstream http://h/v1", "not allowed with argument --policy"),
        ("", "one of the arguments --upstream --policy is required"),
        ("--upstream http://h/v1", "needs --model NAME"),
        ("--upstream h --model m", "--upstream is no address"),
        (f"{HERE} --host 0.0.0.0", "name it with --key"),
        (f"{HERE} --key-env UNSET_KEY", "is not set"),
        (f"{HERE} --max-turns 0", "max_turns=0 must"),
        (f"{HERE} --port 65536", "--port 65536: bind(): port must be 0-65535"),
        (f"{HERE} --threshold 2", "must lie in [0, 1]"),
        (f"{HERE} --certificate none", "no such file"),
        (f"{HERE} --limit bodies=3", "'bodies' is not one of body, requests, "),
        (f"{HERE} --limit seconds=nan", "--limit seconds: Expected `float`"),
        (f'{HERE} --upstream-fields {{"model":null}}', "--upstream-fields must map some of"),
        (f"{HERE} --upstream-fields []", "--upstream-fields: must be a JSON object (Expected"),
        pytest.param(
            f"{HERE} --upstream-fields {'[' * 9000}",
            "--upstream-fields: must be a JSON object",
            id="deep",
        ),
        (HERE + ' --upstream-fields {"a":1,"a":2}', "(an object names 'a' twice; rename one"),
        (f"{HERE} --at-once 0", "at_once=0 must be at least 1"),
        (f"{HERE} --stop Oracle", "--stop: stop={'class_path': 'Oracle'} is no stopping rule; kn"),
        (f"{HERE} --stop {{", "--stop: must be a JSON object (Expecting property"),
        (f"{HERE} --stop Majority --threshold 1", "--threshold: not allowed with argument --stop"),
        # What would have no effect.
        (f"{HERE} --allow-origin ok.example", "such as https://example.org"),
        (f"{HERE} --max-model-len 9", "--max-model-len needs --policy"),
        (f"{HERE} --escalate-model m", "--escalate-model needs --escalate URL"),
        ('--policy x --upstream-query {"a":"b"}', "--upstream-query needs --upstream"),
    ],
)
def test_a_wrong_command_line_is_one_line(options, words, capsys):
    assert words in refused(capsys, *SERVE, *options.split())


def test_a_port_in_use_is_one_line_before_the_policy_is_loaded(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        line = refused(capsys, *SERVE, "--policy", "none", "--port", port)
    assert f"--port {port}: [Errno" in line


@pytest.mark.parametrize(
    ("decoding", "options", "departure"),
    [
        ({"chat_template_kwargs": {}}, (), "chat_template_kwargs="),
        (
            {"max_completion_tokens": [96, 512]},
            (),
            "max_completion_tokens=800 instead of [96, 512]",
        ),
        ({"fresh_turns": True, "greedy_check": True}, (), "greedy_check=False instead of True"),
        (
            {"unsent": []},
            ("--upstream-fields", '{"temperature": null}'),
            "unsent=['temperature'] instead of []",
        ),
        ({"model_name": "another"}, (), "model_name=m instead of another"),
    ],
)
def test_a_certificate_for_something_else_is_refused(
    decoding, options, departure, tmp_path, capsys
):
    certificate(tmp_path, decoding=decoding)
    named = ("--certificate", tmp_path / "certificate.json")
    line = refused(capsys, *SERVE, *HERE.split(), *named, *options)
    assert f"promises nothing for {departure}" in line


def test_a_policys_own_certificate_for_other_weights_is_refused_without_being_named(
    tmp_path, capsys
):
    decoding = {"chat_template_kwargs": {}}
    certificate(tmp_path, "operating_point.json", weights="others", decoding=decoding)
    policy = ["--policy", tmp_path, "--chat-template-kwargs", "{}"]
    assert "the certificate is for other weights" in refused(capsys, *SERVE, *policy)
