"""The same evaluation through a real vLLM server and in this process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.__main__ import main
from tests.scripted import TOKENIZER

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The shipped policy behind vLLM's API server, on a free port; its base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = [
        *(sys.executable, str(Path(__file__).with_name("vllm_server.py"))),
        *("--model", str(TOKENIZER.name_or_path), "--served-model-name", "tiny"),
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


def command(folder: Path, *extra: str) -> list[str]:
    tiny = str(ROOT / "configs" / "countdown_tiny.yaml")
    return ["test", "--config", tiny, "--trainer.default_root_dir", str(folder), *extra]


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "eval" / "test" / "samples.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_greedy_inference_through_a_server_equals_that_in_this_process(
    server: str, tmp_path: Path
) -> None:
    test_set = (
        "[{name: held_out, task: countdown, path: 'embedded:countdown-tiny', split: test, "
        "limit: 24}]"
    )
    # No confidence of the shipped policy reaches 0.96, so that its refinements are compared too.
    same = ["--data.test", test_set, "--model.evaluation.threshold"]
    through = ["--engine", "openai", "--base-url", server, "--model-name", "tiny"]
    for threshold, turns in (("0.85", 1), ("0.96", 3)):
        options = [*same, threshold, "--model.evaluation.max_turns", "3"]
        assert main(command(tmp_path / "here", *options)) == 0
        assert main(command(tmp_path / "there", *options, *through)) == 0
        here, there = records(tmp_path / "here"), records(tmp_path / "there")
        for record in here:
            for turn in record["turns"]:
                turn.pop("verdict_probability", None)  # a server tells no log-probabilities
        assert there == here
        assert [len(record["turns"]) for record in there] == [turns] * 24
    results = [
        json.loads((tmp_path / name / "eval" / "test" / "results.json").read_text())
        for name in ("here", "there")
    ]
    assert results[0]["datasets"] == results[1]["datasets"]
    config = results[1]["config"]
    assert config["endpoint"]["base_url"] == server
    assert config["endpoint"]["model_name"] == "tiny"
    assert config["model"]["evaluation"]["threshold"] == 0.96
    assert config["graders"] == results[0]["config"]["graders"]


def test_what_a_real_server_refuses_is_one_line_or_one_wrong_problem(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": "short", "nums": [3, 5, 8], "target": 16}]
    rows.append({"id": "long", "nums": [3] * 1500, "target": 16})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = f"[{{name: own, task: countdown, path: {tmp_path}/rows.jsonl}}]"
    through = ["--data.test", data, "--engine", "openai", "--base-url", server, "--model-name"]
    assert main(command(tmp_path, *through, "tiny")) == 0
    short, long = records(tmp_path)
    assert short["turns"]
    assert long["turns"] == []
    assert "HTTP 400" in long["error"]
    assert "maximum context length is 1024 tokens" in long["error"]
    capsys.readouterr()
    assert main(command(tmp_path, *through, "tiniest")) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "has no model 'tiniest'" in said
