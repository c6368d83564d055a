"""Mathematical equality of two answers, decided by sympy in a process that can be killed."""

import json
import os
import subprocess
import sys
import threading
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from svr_lightning.tasks.base import GradingError

SECONDS = 120.0
"""Until an answer comes, the start of the process included. The process itself limits the
processor time and the memory of a comparison."""

_ROOT = Path(__file__).resolve().parents[2]
_lock = threading.Lock()
_processes: dict[int, Any] = {}
"""By the process that asks: a fork has one of its own."""


def equal_answers_apart(answer: str, reference: str) -> bool:
    """Whether two LaTeX answers are mathematically equal; one caller at a time.

    The process is a fresh interpreter, so that it starts safely beside threads and a GPU. It is
    started when first needed, and again after it has died.

    Raises:
        GradingError: if the process did not start, or took too much time or memory.
    """
    with _lock:
        try:
            process = _processes.get(os.getpid())
            if process is None or process.poll() is not None:
                process = _processes[os.getpid()] = _start()
            reply = _reply(process, [answer, reference])
        except OSError as error:
            raise GradingError(f"the process that compares answers: {error}") from error
    if not reply:
        raise GradingError("comparing the answers took too much time or memory")
    return reply == b"1\n"


def _reply(process: Any, pair: list[str]) -> bytes:
    """What the process writes about a pair of answers: nothing if it ended, or is killed here."""
    reply = b""
    try:
        process.stdin.write(json.dumps(pair).encode("ascii") + b"\n")
        if wait([process.stdout], SECONDS):
            reply = process.stdout.readline()
    finally:
        if not reply:  # also if interrupted: it would answer the next pair with this reply
            process.kill()
            process.wait()
    return reply


def _start() -> Any:
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "HOME") if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "svr_lightning.tasks.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**kept, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
        cwd="/",
        start_new_session=True,  # an interrupt from the keyboard is not for it
    )
