"""The client of the process that compares answers mathematically (:mod:`.worker`)."""

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from svr_lightning.tasks.base import GradingError

CPU_SECONDS = 1.0
"""CPU time of one comparison: the kernel then kills the process."""
WALL_SECONDS = 20.0
"""Wall-clock time of one comparison, for a busy machine."""
START_SECONDS = 120.0
"""Until the worker is ready."""
MEMORY = 256 * 2**20
"""Bytes of address space beyond what the worker has when it is ready."""
READY = b"ready\n"

_ROOT = Path(__file__).resolve().parents[2]
_REASONS = {b"m\n": "needed too much memory", b"t\n": "took too much time"}


class SymbolicWorker:
    """One worker, for one caller at a time; started when first needed, replaced when it dies.

    It is a fresh interpreter, not a fork of this process, so that it starts safely from a process
    with threads and a GPU. A forked child of this process starts a worker of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._ready = False

    def equal(self, answer: str, reference: str) -> bool:
        """Whether two answers are mathematically equal.

        Raises:
            GradingError: if the comparison needed too much time or memory, or the worker died or
                did not start. The next answer is compared as usual.
        """
        with self._lock:
            try:
                return self._ask(json.dumps([answer, reference]).encode("ascii") + b"\n")
            except OSError as error:
                self._stop()
                raise GradingError(f"the process that compares answers is gone ({error})") from None

    def close(self) -> None:
        """End the worker, if there is one."""
        with self._lock:
            self._stop()

    @property
    def pid(self) -> int | None:
        """The process id of the worker, which is its process group too; None without one."""
        return self._process.pid if self._process and self._owner == os.getpid() else None

    def _ask(self, request: bytes) -> bool:
        process = self._process
        if process is None or self._owner != os.getpid() or process.poll() is not None:
            self._stop()
            process = self._start()
        if not self._ready:
            if self._line(process, START_SECONDS) != READY:
                raise OSError("it did not start")
            self._ready = True
        assert process.stdin
        process.stdin.write(request)
        process.stdin.flush()
        reply = self._line(process, WALL_SECONDS)
        if reply in _REASONS:
            raise GradingError(f"comparing the answers {_REASONS[reply]}")
        if reply not in (b"1\n", b"0\n"):
            raise OSError("it ran out of time or died")
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
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "svr_lightning.tasks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
            cwd="/",
            start_new_session=True,  # the worker and its child are ended together
        )
        self._owner, self._ready = os.getpid(), False
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()


_shared = SymbolicWorker()
atexit.register(_shared.close)


def equal_answers_apart(answer: str, reference: str) -> bool:
    """:meth:`SymbolicWorker.equal` in this process's own worker."""
    return _shared.equal(answer, reference)
