"""vLLM servers on loopback."""

import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests import forked
from tests.commands import flags


class VLLMServer:
    """vLLM's API server in a process of its own, on a free port.

    Args:
        model: a checkpoint folder.
        name: what the server calls it.
        log: a file for what it prints.
        options: further ones of ``vllm serve``.
    """

    def __init__(self, model: Path, name: str, log: Path, *options: str) -> None:
        port = forked.free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        settings = {
            "model": model,
            "served-model-name": name,
            "host": "127.0.0.1",
            "port": port,
            "generation-config": "vllm",
            "dtype": "float32",
            "max-model-len": 1024,
            "kv-cache-memory-bytes": 2**26,
            "distributed-executor-backend": "uni",
        }
        self._options = [*flags(settings), "--enforce-eager", "--disable-log-stats", *options]

    def start(self) -> None:
        """Begin to start."""
        environment = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # an executor in the engine's own process
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        self._log.unlink(missing_ok=True)
        self._process = forked.start(
            self._log, *self._options, module="tests.vllm.vllm_server", **environment
        )

    def wait(self) -> None:
        """Until it is healthy."""
        for _ in range(1200):
            assert self._process.exitcode is None, self._said()
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
            except (urllib.error.URLError, OSError):
                time.sleep(0.25)
            else:
                return
        raise AssertionError(self._said())

    def signal(self, number: int) -> None:
        """Send a signal to all of its processes."""
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """``kill -9``, also of one that was killed before."""
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self._process.kill()  # if it has no group of its own yet
        self._process.join()

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


@contextmanager
def served_at(model: Path, name: str, folder: Path) -> Iterator[str]:
    """The policy at ``model`` behind a server that logs to ``folder``; its base URL."""
    server = VLLMServer(model, name, folder / "server.log")
    server.start()
    try:
        server.wait()
        yield f"{server.url}/v1"
    finally:
        server.kill()
