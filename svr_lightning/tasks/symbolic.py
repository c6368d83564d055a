"""Mathematical equality of two answers, decided by sympy in a process that can be killed."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from svr_lightning.tasks.base import GradingError

SECONDS = 120.0
"""Until an answer comes, the start of the process included. The process itself limits the
processor time and the memory of a comparison."""

_ROOT = Path(__file__).resolve().parents[2]
_lock = threading.Lock()
_process: "subprocess.Popen[bytes] | None" = None
_owner = 0


def equal_answers_apart(answer: str, reference: str) -> bool:
    """Whether two LaTeX answers are mathematically equal; one caller at a time.

    The process is a fresh interpreter, so that it starts safely beside threads and a GPU. It is
    started when first needed, and again after it has died.

    Raises:
        GradingError: if the process did not start, or took too much time or memory.
    """
    global _process, _owner
    with _lock:
        if _process is None or _owner != os.getpid() or _process.poll() is not None:
            _process, _owner = _start(), os.getpid()
        equal = None
        try:
            equal = _reply(_process, [answer, reference])
        finally:
            if equal is None:  # also if interrupted: it would answer the next pair with this reply
                _process.kill()
                _process.wait()
        if equal is None:
            raise GradingError("comparing the answers took too much time or memory")
        return equal


def _reply(process: "subprocess.Popen[bytes]", pair: list[str]) -> bool | None:
    """Whether a pair of answers is equal; None if the process ended or had to be killed."""
    assert process.stdin
    assert process.stdout
    limit = threading.Timer(SECONDS, process.kill)
    limit.start()
    try:
        process.stdin.write(json.dumps(pair).encode("ascii") + b"\n")
        process.stdin.flush()
        return {b"1\n": True, b"0\n": False}.get(process.stdout.readline())
    except OSError:  # it is gone
        return None
    finally:
        limit.cancel()


def _start() -> "subprocess.Popen[bytes]":
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "HOME") if name in os.environ}
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "svr_lightning.tasks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**kept, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
            cwd="/",
            start_new_session=True,  # an interrupt from the keyboard is not for it
        )
    except OSError as error:
        raise GradingError(f"the process that compares answers: {error}") from error
