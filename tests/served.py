"""The project's server on a free port of this machine, and requests to it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from svr_lightning.control.backends import Upstream
from svr_lightning.control.controller import Controller
from svr_lightning.control.server import ChatServer, Limits

QUESTION = "10 4 5 = 8"


def says(answer: str, verdict: str, confidence: float) -> str:
    """A completion in the method's form."""
    check = f"<self_check>VERDICT: {verdict}; CONFIDENCE: {confidence}</self_check>"
    return f"<answer>{answer}</answer>\n{check}"


DOUBT, SURE = says("10-4", "INCORRECT", 0.4), says("(10/5)*4", "CORRECT", 0.95)


def unused(*_: Any) -> Any:
    """The client of a controller whose requests have their own."""
    raise AssertionError


def in_front_of(url: str, *, second: str | None = None, **settings: Any) -> ChatServer:
    """A server for Countdown in front of another one; ``settings`` of controller or limits."""
    limits = {k: settings.pop(k) for k in Limits.__dataclass_fields__ if k in settings}
    key, model = settings.pop("key", None), settings.pop("model", "svr")
    controller = Controller(unused, "countdown", second=second and unused, **settings)
    return ChatServer(
        controller,
        Upstream(url, "tiny", key="upstream-secret"),
        model=model,
        second=Upstream(second, "large") if second else None,
        limits=Limits(**limits),
        key=key,
    )


@contextmanager
def serving(server: ChatServer) -> Iterator[str]:
    """Its base URL, while it runs in a thread."""
    config = uvicorn.Config(
        server.app(), host="127.0.0.1", port=0, log_level="critical", timeout_graceful_shutdown=2
    )
    listening = config.bind_socket()
    listening.listen()
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        running.should_exit = True
        thread.join()


def chat(url: str, **fields: Any) -> httpx.Response:
    """One request; ``fields`` of its body beside the question."""
    body = {"messages": [{"role": "user", "content": QUESTION}], **fields}
    return httpx.post(f"{url}/chat/completions", json=body, timeout=60)
