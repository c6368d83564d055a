"""The project's server on a free port of this machine, and requests to it."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import openai

from svr_lightning.analysis.records import SampleRecord
from svr_lightning.clients.chat_model import ChatModel
from svr_lightning.clients.connections import Access
from svr_lightning.control.backends import EngineBackend, Upstream
from svr_lightning.control.controller import Controller
from svr_lightning.control.listening import Listener, bound
from svr_lightning.control.server import ChatServer, Limits
from svr_lightning.core.stopping import Confident
from svr_lightning.engines.base import Engine
from svr_lightning.evaluation.config import EvaluationConfig
from svr_lightning.evaluation.evaluator import Evaluator
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.policy import Policy
from svr_lightning.training.sources import DataSource, load_problems
from tests.chat_server import QUESTION, Answer
from tests.chat_server import ChatServer as Scripted

ASKED = [{"role": "user", "content": QUESTION}]


def in_front_of(url: str, **settings: Any) -> ChatServer:
    """A server, for Countdown if no task is given, in front of another one.

    ``settings`` are those of the controller, of limits and of the server.
    """
    limits, own = (
        {name: settings.pop(name) for name in names if name in settings}
        for names in (Limits.__struct_fields__, ("key", "origins", "stronger", "content"))
    )
    upstream = Upstream(ChatModel(base_url=url, name="tiny"), access=Access(key="upstream-secret"))
    controller = Controller(None, **{"task": "countdown", **settings})
    return ChatServer(controller, upstream, model="svr", limits=Limits(**limits), **own)


@contextmanager
def serving(server: ChatServer) -> Iterator[str]:
    """Its base URL, while it runs in a thread, on connections as ``serve`` takes them."""
    running = Listener(server, log_level="critical", timeout_graceful_shutdown=2)
    listening = bound("127.0.0.1", 0)
    listening.listen()
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        running.should_exit = True
        thread.join()


@contextmanager
def proxy(answer: Answer, **settings: Any) -> Iterator[tuple[str, Scripted]]:
    """The server in front of a scripted one: its base URL, and that one."""
    with Scripted(answer) as upstream, serving(in_front_of(upstream.url, **settings)) as url:
        yield url, upstream


@contextmanager
def started(*options: str, files: int = 4096) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """``serve`` in a process of its own, on a free port: its base URL, and the process.

    It has at most so many file descriptors. ``said`` is what it has printed by then.
    """
    command = ["sh", "-c", f'ulimit -n {files}; exec "$0" "$@"']
    command += [sys.executable, "-m", "svr_lightning", "serve", *options, "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as process:
        try:
            process.said = said = []
            while not (said and said[-1].startswith("serving ")):
                said.append(next(process.stdout).rstrip("\n"))
            yield said[-1].split()[-1], process
        finally:
            process.kill()


def chat(url: str, **fields: Any) -> httpx.Response:
    """One request; ``fields`` of its body beside the question."""
    return httpx.post(f"{url}/chat/completions", json={"messages": ASKED, **fields}, timeout=60)


def by_openai(url: str, stream: bool, **fields: Any) -> str:
    """The content that OpenAI's client gets; ``fields`` of the request beside the question."""
    with openai.OpenAI(base_url=url, api_key="none") as client:
        asked = {"model": "svr", "messages": ASKED, "stream": stream}
        return content_of(client.chat.completions.create(**asked, extra_body=fields), stream)


def content_of(said: Any, stream: bool) -> str:
    """The content of a completion, or of all its pieces."""
    if not stream:
        return str(said.choices[0].message.content)
    return "".join(chunk.choices[0].delta.content or "" for chunk in said if chunk.choices)


def connected(url: str) -> socket.socket:
    """A plain connection to a server."""
    host, port = url.split("/")[2].split(":")
    return socket.create_connection((host, int(port)), timeout=30)


EMBEDDED = "embedded:countdown-tiny"
RULE = Confident(threshold=0.96)
"""No confidence of the shipped policy reaches it, so that refinements are compared too."""


TURN_FIELDS = (
    "turn",
    "text",
    "verdict",
    "confidence",
    "truncated",
    "prompt_tokens",
    "completion_tokens",
)


class Embedded:
    """The embedded policy on an engine of this process; three turns of up to 160 tokens."""

    def __init__(self, engine: Engine, problems: int) -> None:
        sizes = {"max_prompt_tokens": 512, "max_model_len": 1024}
        self._policy = Policy.load(PolicyConfig(path=EMBEDDED, **sizes), engine)
        self.engine = engine
        self.renderer = self._policy.renderer
        source = DataSource(name="test", task="countdown", path=EMBEDDED, split="test")
        self.problems = load_problems(source)[:problems]

    def evaluated(self) -> list[SampleRecord]:
        """What ``test`` records of the problems."""
        config = EvaluationConfig(max_turns=3, stop=RULE, max_completion_tokens=160)
        return Evaluator(self._policy, config).solve(self.problems, "test")

    @contextmanager
    def served(self) -> Iterator[str]:
        """The policy behind the server."""
        backend = EngineBackend(self._policy)
        settings = {"rule": RULE, "max_turns": 3, "max_completion_tokens": 160}
        server = ChatServer(
            Controller(None, "countdown", **settings), backend, model="svr", content="turn"
        )
        with serving(server) as url:
            yield url

    def assert_answers_are(self, records: list[SampleRecord], url: str) -> None:
        """All problems at once, in one batch: each answer has the turns of its record."""

        def ask(question: str) -> dict[str, Any]:
            answer = chat(url, messages=[{"role": "user", "content": question}])
            return dict(answer.raise_for_status().json())

        with ThreadPoolExecutor(len(self.problems)) as pool:
            answers = list(pool.map(ask, [problem.question for problem in self.problems]))
        for answer, record in zip(answers, records, strict=True):
            turns = answer["svr"]["turns"]
            assert turns == [{f: getattr(turn, f) for f in TURN_FIELDS} for turn in record.turns]
            returned = record.turns[record.returned_turn - 1]
            assert answer["svr"]["answer"] == returned.answer
            assert answer["choices"][0]["message"]["content"] == returned.text
            spent = sum(turn.prompt_tokens + turn.completion_tokens for turn in record.turns)
            assert answer["usage"]["total_tokens"] == spent
