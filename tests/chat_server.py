"""A real HTTP server that answers chat completions as a test says, and keeps what it was asked."""

import json
import re
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Body = dict[str, Any]
"""Of a request for a chat completion."""


@dataclass
class Reply:
    """One answer."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drop: bool = False
    """Close the connection instead."""


def completion(text: str | None, **changes: Any) -> Reply:
    """A well-formed answer; ``changes`` replace fields of its choice or of the whole."""
    answer = {
        **{"id": "1", "object": "chat.completion", "created": 0, "model": "tiny"},
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 40, "completion_tokens": 20, "total_tokens": 60},
    }
    for name, value in changes.items():
        (answer if name in answer else answer["choices"][0])[name] = value
    return Reply(json.dumps(answer).encode())


QUESTION = "10 4 5 = 8"


def says(answer: str, verdict: str, confidence: float) -> str:
    """A completion with a self-check."""
    check = f"<self_check>VERDICT: {verdict}; CONFIDENCE: {confidence}</self_check>"
    return f"<answer>{answer}</answer>\n{check}"


DOUBTED, SURE_OF = "10-4", "(10/5)*4"
DOUBT = says(DOUBTED, "INCORRECT", 0.4)
SURE = says(SURE_OF, "CORRECT", 0.95)

Answer = Callable[[Body, int], Reply]
"""From a request's body and its number, from 1, to the answer."""


class ChatServer(ThreadingHTTPServer):
    """Serves on a free port of this machine, each request in a thread of its own.

    With a file of a certificate and its key it speaks HTTPS.
    """

    request_queue_size = 128  # five are the default
    daemon_threads = True

    def __init__(self, answer: Answer, port: int = 0, pem: Path | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        if pem is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pem)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.answer = answer
        self.bodies = []
        self.headers = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        self.port = self.server_address[1]
        self.paths = []
        self.url = f"http{'s' * (pem is not None)}://127.0.0.1:{self.port}/v1"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,))

    def reply(self, path: str, body: Body, headers: dict[str, str]) -> Reply:
        """The answer to a request, when its time has come."""
        with self._lock:
            self.bodies.append(body)
            self.paths.append(path)
            self.headers.append(headers)
            number = len(self.bodies)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            found = self.answer(body, number)
            time.sleep(found.delay)
            return found
        finally:
            with self._lock:
                self._now -= 1

    def __enter__(self) -> "ChatServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer
    protocol_version = "HTTP/1.1"
    # Headers and body go out as two packets, which Nagle's algorithm would keep apart.
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = self.server.reply(self.path, body, dict(self.headers))
        self.close_connection = reply.drop
        if reply.drop:
            return
        try:
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)
        except OSError:
            self.close_connection = True  # whoever asked has gone

    def log_message(self, *_: Any) -> None:
        pass


def turn_of(body: Body) -> int:
    """The turn that a request is for, as its prompt says."""
    header = re.match(r"\[T=(\d+)\]", body["messages"][-1]["content"])
    return int(header[1]) if header else 1


def doubts_first(body: Body, number: int) -> Reply:
    """A model that doubts its first turn and is sure of the second one."""
    return completion(DOUBT if turn_of(body) == 1 else SURE)
