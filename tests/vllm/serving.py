"""A vLLM server on loopback."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def served_at(model: Path, name: str, folder: Path) -> Iterator[str]:
    """The policy at ``model`` behind vLLM's API server, on a free port; its base URL.

    Args:
        model: a checkpoint folder.
        name: what the server calls it.
        folder: for the server's log.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    command = [
        *(sys.executable, str(Path(__file__).with_name("vllm_server.py"))),
        *("--model", str(model), "--served-model-name", name),
        *("--host", "127.0.0.1", "--port", str(port), "--generation-config", "vllm"),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024"),
        *("--kv-cache-memory-bytes", str(2**26), "--disable-log-stats"),
        *("--distributed-executor-backend", "uni"),
    ]
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # an executor in the engine's own process
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        _wait_until_healthy(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(1200):
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
        else:
            return
    raise AssertionError(log.read_text(errors="replace")[-3000:])
