"""What connections without a key can do to the server: nothing that others would notice."""

import contextlib
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from svr_lightning.__main__ import main
from svr_lightning.cli.main import parser_of
from svr_lightning.cli.serve import make_server
from svr_lightning.control.listening import most_connections
from tests.chat_server import SURE, Reply, completion
from tests.chat_server import ChatServer as Scripted
from tests.served import ASKED, chat, connected, in_front_of, serving

BODY = {"messages": ASKED}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Scripted]:
    with Scripted(lambda *_: completion(SURE)) as server:
        yield server


def post(url: str, **headers: str) -> int:
    headers = {"content-type": "application/json", **headers}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{url}/chat/completions", json=BODY, headers=named).status_code


def test_without_a_key_no_page_of_elsewhere_may_ask(upstream):
    with serving(in_front_of(upstream.url, origins=["https://OK.example/"])) as url:
        own = url.removesuffix("/v1")
        assert post(url, content_type="text/plain", origin="http://evil.example") == 403
        for status, headers in (
            (403, {"host": "evil.example"}),  # whose name leads to 127.0.0.1 now
            (403, {"host": "127.0.0.1.evil.example:80"}),
            (403, {"host": "["}),
            (403, {"origin": "null"}),
            (403, {"origin": "http://127.0.0.1:1"}),
            (415, {"content_type": "text/plain"}),
            (415, {"content_type": ""}),
            (200, {"origin": own}),
            (200, {"origin": "https://ok.example"}),
            (200, {"host": "localhost"}),
            (200, {"content_type": "application/json; charset=utf-8"}),
        ):
            assert (post(url, **headers), headers) == (status, headers)
        assert httpx.get(f"{url}/models", headers={"host": "evil.example"}).status_code == 403
        with connected(url) as connection:  # whose body never comes
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9"
            connection.sendall(f"{head}\r\n\r\n".encode())
            assert connection.recv(2**16).startswith(b"HTTP/1.1 415")


def test_a_browser_is_told_which_pages_may_ask(upstream):
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "x-a"}
    with serving(in_front_of(upstream.url, origins=["https://ok.example"], key="k")) as url:
        for origin, allowed in (("https://ok.example", True), ("https://evil.example", False)):
            said = httpx.options(f"{url}/chat/completions", headers={**asking, "origin": origin})
            assert ("access-control-allow-origin" in said.headers) == allowed
            assert said.is_success == allowed


def test_with_a_key_nothing_else_is_asked_for(upstream):
    with serving(in_front_of(upstream.url, key="secret")) as url:
        for status, headers in (
            (200, {"authorization": "bearer  secret", "host": "evil.example"}),
            (200, {"authorization": "Bearer secret", "origin": "http://elsewhere"}),
            (401, {"authorization": "Bearer secre"}),
            (401, {"authorization": "Basic secret"}),
            (401, {"authorization": "secret"}),
            (401, {}),
        ):
            assert (post(url, **headers), headers) == (status, headers)
        root = url.removesuffix("/v1")
        for page in (f"{url}/models", f"{root}/metrics"):
            assert httpx.get(page).status_code == 401
        assert httpx.get(f"{root}/health").status_code == 200
    assert upstream.headers[-1]["Authorization"] == "Bearer upstream-secret"


def closes_within(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(2**16) == b""
    return True


def test_a_silent_or_half_open_connection_is_closed(upstream):
    with serving(in_front_of(upstream.url, head_seconds=0.3, idle_seconds=0.6)) as url:
        for sent in (b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-A: "):
            with connected(url) as connection:
                connection.sendall(sent)
                assert closes_within(connection, 10)
        with connected(url) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
            begun = time.monotonic()
            with contextlib.suppress(OSError):  # a byte at a time does not keep it open
                while time.monotonic() < begun + 10:
                    connection.sendall(b"G")
                    time.sleep(0.05)
            assert time.monotonic() < begun + 9
        assert chat(url).status_code == 200


def test_the_connection_that_has_waited_longest_makes_room_for_another(upstream):
    with serving(in_front_of(upstream.url, connections=3)) as url:
        silent = [connected(url) for _ in range(3)]
        assert chat(url).status_code == 200
        assert closes_within(silent[0], 10)
        with pytest.raises(TimeoutError):
            closes_within(silent[2], 0.2)
        for one in silent:
            one.close()
    assert most_connections(10**6) < 10**6  # file descriptors are for other things too


def test_a_header_that_is_too_long_is_refused_and_the_client_reads_why(upstream):
    head, sent = b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: ", 0
    with serving(in_front_of(upstream.url)) as url:
        with connected(url) as connection:
            connection.sendall(head + b"x" * 2**15)
            assert connection.recv(2**16).startswith(b"HTTP/1.1 400")
            assert closes_within(connection, 10)
        with connected(url) as connection:
            connection.sendall(head)  # of one without end little is read
            with contextlib.suppress(ConnectionError):
                while sent < 2**30:
                    sent += connection.send(b"x" * 2**16)
        assert sent < 2**30
        assert chat(url).status_code == 200


def test_a_slow_reader_gets_its_whole_answer():
    long = completion("\U0001f600" * 15_000 + SURE)  # twelve bytes each, and there twice
    small = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**13)])
    with (
        Scripted(lambda *_: long) as upstream,
        serving(in_front_of(upstream.url, idle_seconds=1.0)) as url,
        httpx.Client(transport=small, timeout=60) as client,
        client.stream("POST", f"{url}/chat/completions", json=BODY) as said,
    ):
        received = 0
        for piece in said.iter_raw():
            time.sleep(0.25)
            received += len(piece)
    assert received == int(said.headers["content-length"]) > 2**18


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "gopher://127.0.0.1:9", "http://h:x"])
def test_a_proxy_that_cannot_be_used_is_one_line(proxy, monkeypatch, capsys):
    monkeypatch.setenv("ALL_PROXY", proxy)
    upstream = ["--upstream", "http://127.0.0.1:1/v1", "--model", "m", "--port", "0"]
    assert main(["serve", "--task", "countdown", *upstream]) == 2
    said = capsys.readouterr()
    assert "serving" not in said.out
    assert "proxies or certificates cannot be used" in said.err.splitlines()[-1]
    assert "unset the wrong one of ALL_PROXY" in said.err


def test_a_proxy_in_the_way_is_named_without_its_password(monkeypatch):
    with Scripted(lambda *_: Reply(b"<html>blocked", 403)) as between:
        proxy = f"http://me:hunter2@127.0.0.1:{between.port}"
        with monkeypatch.context() as patched:
            patched.setenv("HTTP_PROXY", proxy)
            patched.setenv("http_proxy", proxy)
            patched.delenv("NO_PROXY", raising=False)
            patched.delenv("no_proxy", raising=False)
            server = in_front_of("http://127.0.0.1:1/v1")
            with serving(server) as url, httpx.Client(trust_env=False) as http:
                said = http.post(f"{url}/chat/completions", json=BODY, timeout=60)
    message = said.json()["error"]["message"]
    assert f"through the proxy http://127.0.0.1:{between.port} of the environment" in message
    assert "NO_PROXY=127.0.0.1" in message
    assert "hunter2" not in message


def test_an_address_without_its_version_is_a_hint(capsys):
    """When ``serve`` starts, and to a client."""
    hint = "; the address usually ends in /v1"
    words = "--upstream http://h:1 --model m --escalate http://h/v1beta --escalate-model s"
    make_server(parser_of("serve").parse_args(["--task", "countdown", *words.split()]))
    assert capsys.readouterr().out == f"--upstream http://h:1{hint}\n"
    with (
        Scripted(lambda *_: Reply(b"Not Found", 404)) as other,
        serving(in_front_of(other.url.removesuffix("/v1"))) as url,
    ):
        said = chat(url)
        assert said.status_code == 404
        assert f"Not Found{hint}" in said.json()["error"]["message"]
