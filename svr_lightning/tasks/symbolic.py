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
        GradingError: if the comparison took too much time or memory.
    """
    global _process, _owner
    with _lock:
        if _process is None or _owner != os.getpid() or _process.poll() is not None:
            _process, _owner = _start(), os.getpid()
        process = _process
        assert process.stdin
        assert process.stdout
        limit = threading.Timer(SECONDS, process.kill)
        limit.start()
        try:
            process.stdin.write(json.dumps([answer, reference]).encode("ascii") + b"\n")
            process.stdin.flush()
            reply = process.stdout.readline()
        except OSError:  # it is gone
            reply = b""
        finally:
            limit.cancel()
        if reply not in (b"1\n", b"0\n"):
            process.kill()
            process.wait()
            raise GradingError("comparing the answers took too much time or memory")
        return reply == b"1\n"


def _start() -> "subprocess.Popen[bytes]":
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "HOME") if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "svr_lightning.tasks.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**kept, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
        cwd="/",
        start_new_session=True,  # an interrupt from the keyboard is not for it
    )
