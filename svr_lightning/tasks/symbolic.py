"""Mathematical equality of two answers, decided by sympy in a process that can be killed."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from svr_lightning.errors import ConfigError, one_line
from svr_lightning.tasks.base import GradingError

SECONDS = 120.0
"""Until an answer comes, the start of the process included. The process itself limits the
processor time and the memory of a comparison."""

_ROOT = Path(__file__).resolve().parents[2]
_lock = threading.Lock()
_processes: dict[int, Any] = {}
"""By the id of the process that asks: a fork starts its own."""


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


def prepare() -> None:
    """Start the process, and see whether it can compare two answers that are equal.

    Raises:
        ConfigError: if it cannot, with the last line that it wrote.
    """
    with contextlib.suppress(GradingError):
        if equal_answers_apart("x+1", "1+x"):
            return
    try:
        done = subprocess.run(  # noqa: S603
            _command(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            env=_environment(),
            cwd="/",
        )
        said = done.stderr.decode(errors="replace").strip()
        reason = said.rpartition("\n")[2] or f"it ended with {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    raise ConfigError(
        "the grader 'symbolic' compares answers in a process of its own, and that does not work "
        f"here: {one_line(reason)}"
    )


def _start() -> Any:
    return subprocess.Popen(  # noqa: S603
        _command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env=_environment(),
        cwd="/",
        start_new_session=True,  # an interrupt from the keyboard is not for it
    )


def _command() -> list[str]:
    """It looks for packages where this process does; "" is the working directory.

    PYTHONPATH could not name a folder with a colon.
    """
    worker = (
        "import sys; sys.path = sys.argv[1:]; from svr_lightning.tasks.worker import main; main()"
    )
    places = [os.path.abspath(place) for place in [str(_ROOT), *sys.path]]
    return [sys.executable, "-P", "-c", worker, *places]


def _environment() -> dict[str, str]:
    """As little as possible."""
    names = ("LD_LIBRARY_PATH", "HOME")
    variables = {name: os.environ[name] for name in names if name in os.environ}
    return {**variables, "OMP_NUM_THREADS": "1"}
