"""The other end of the worker process: started when first needed, replaced when it dies."""

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from svr_lightning.tasks.base import GradingError
from svr_lightning.tasks.symbolic.limits import READY, START_SECONDS, WALL_SECONDS

_ROOT = Path(__file__).resolve().parents[3]
_MODULE = "svr_lightning.tasks.symbolic.worker"


class SymbolicWorker:
    """One worker process, for one caller at a time.

    It is a fresh interpreter, not a fork, so that it starts safely from a process with threads
    and a GPU. A forked child of this process starts a worker of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._ready = False

    def equal(self, answer: str, reference: str) -> bool:
        """Whether two answers are mathematically equal.

        Raises:
            GradingError: if the worker ran out of time or memory, died or did not start. A new
                one is then on its way, and the next answer is compared as usual.
        """
        with self._lock:
            try:
                return self._ask(json.dumps([answer, reference]).encode("ascii") + b"\n")
            except GradingError:
                self._stop()
                self._start()
                raise

    def close(self) -> None:
        """End the worker process, if there is one."""
        with self._lock:
            self._stop()

    @property
    def pid(self) -> int | None:
        """The worker's process id, while it has one."""
        return self._process.pid if self._process and self._owner == os.getpid() else None

    def _ask(self, request: bytes) -> bool:
        process = self._process
        if process is None or self._owner != os.getpid() or process.poll() is not None:
            process = self._start()
        if not self._ready:
            if self._line(process, START_SECONDS) != READY:
                raise GradingError("the process that compares answers did not start")
            self._ready = True
        assert process.stdin
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except OSError as error:
            raise GradingError(f"the process that compares answers is gone ({error})") from error
        reply = self._line(process, WALL_SECONDS)
        if reply not in (b"1\n", b"0\n"):
            reason = "ran out of memory" if reply == b"m\n" else "ran out of time or died"
            raise GradingError(f"the process that compares answers {reason}")
        return reply == b"1\n"

    def _line(self, process: "subprocess.Popen[bytes]", seconds: float) -> bytes:
        """The worker's next line; empty where it has closed its end or the time is up."""
        assert process.stdout
        poll, line, deadline = select.poll(), b"", time.monotonic() + seconds
        poll.register(process.stdout, select.POLLIN)
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return b""
            piece = os.read(process.stdout.fileno(), 64)
            if not piece:
                return b""
            line += piece
        return line

    def _start(self) -> "subprocess.Popen[bytes]":
        kept = ("LD_LIBRARY_PATH", "HOME", "SYSTEMROOT")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        self._process = subprocess.Popen(  # noqa: S603 - no shell, a fixed command
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
            cwd="/",
        )
        self._owner, self._ready = os.getpid(), False
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()


_shared = SymbolicWorker()
atexit.register(_shared.close)


def equal_answers_apart(answer: str, reference: str) -> bool:
    """:meth:`SymbolicWorker.equal` in this process's own worker."""
    return _shared.equal(answer, reference)
