"""kill -9 of an evaluation through a server: the same command goes on and asks nothing twice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.__main__ import main
from tests.chat_server import ChatServer, Reply, completion, turn_of
from tests.scripted import says

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS, TURNS, CONCURRENCY = 30, 3, 4
KEY = "hunter2-hunter2"


def command(server: ChatServer, folder: Path) -> list[str]:
    return [
        *("test", "--config", str(ROOT / "configs" / "countdown_tiny.yaml")),
        *("--trainer.default_root_dir", str(folder)),
        *("--data.test", "[{name: held_out, task: countdown, path: 'embedded:countdown-tiny', "
          f"split: test, limit: {PROBLEMS}}}]"),
        *("--model.evaluation.max_turns", str(TURNS)),
        *("--engine", "openai", "--base-url", server.url, "--model-name", "tiny"),
        *("--concurrency", str(CONCURRENCY)),
    ]  # fmt: skip


def unsure(body: dict[str, Any], _number: int) -> Reply:
    text = says(str(len(body["messages"][1]["content"])), "UNSURE", 0.5)
    return completion(text, usage={"prompt_tokens": turn_of(body), "completion_tokens": 9})


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_killed_evaluation_goes_on_and_asks_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process: list[subprocess.Popen[bytes]] = []

    def answer(body: dict[str, Any], number: int) -> Reply:
        if number == 41:  # of ninety
            process[0].send_signal(signal.SIGKILL)
            process[0].wait()
        return unsure(body, number)

    with ChatServer(answer) as server:
        process.append(
            subprocess.Popen(
                [sys.executable, "-m", "svr_lightning", *command(server, killed)],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        assert process[0].wait(timeout=300) == -signal.SIGKILL
        journal = killed / "eval" / "test" / "answers.jsonl"
        kept = len(journal.read_text().splitlines())
        lost = len(server.bodies) - kept  # in flight at that moment
        assert 0 < lost <= CONCURRENCY
        assert main(command(server, killed)) == 0
        assert len(server.bodies) == PROBLEMS * TURNS + lost
        assert not journal.exists()  # its answers are in the samples
    with ChatServer(unsure) as healthy:
        assert main(command(healthy, whole)) == 0
        assert len(healthy.bodies) == PROBLEMS * TURNS
    assert {h["Authorization"] for h in server.headers} == {f"Bearer {KEY}"}
    samples = [(f / "eval" / "test" / "samples.jsonl").read_bytes() for f in (killed, whole)]
    assert samples[0] == samples[1]
    assert not [name for f in (killed, whole) for name, c in files(f).items() if KEY.encode() in c]
    said = "".join(capsys.readouterr())
    assert KEY not in said
    assert f"held_out  {PROBLEMS}/{PROBLEMS} done, 90 turns, 0 in flight" in said


def test_questions_are_answered_through_a_server_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\x1b[2J[bold]" + says("3+5+8", "CORRECT", 0.9)
    with ChatServer(lambda *_: completion(text)) as server:
        done = main(
            [
                *("predict", "--config", str(ROOT / "configs" / "countdown_tiny.yaml")),
                *("--engine", "openai", "--base-url", server.url, "--model-name", "tiny"),
                *("--trainer.default_root_dir", str(tmp_path), "--question", "3 5 8 = 16"),
            ]
        )
    said = capsys.readouterr().out
    assert done == 0
    assert "answer: 3+5+8, correct" in said
    assert "\x1b[2J" not in said
    assert "[bold]" in said
    (record,) = (tmp_path / "eval" / "predict" / "samples.jsonl").read_text().splitlines()
    assert json.loads(record)["turns"][0]["text"] == text


def test_what_a_server_cannot_tell_is_refused_before_it_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [
        *("test", "--config", str(ROOT / "configs" / "countdown_tiny.yaml")),
        *("--engine", "openai", "--base-url", "http://127.0.0.1:9/v1", "--model-name", "m"),
    ]
    assert main([*asked, "--model.evaluation.evidence", "product"]) == 2
    assert "evidence=product: the probability of a verdict" in capsys.readouterr().err
    assert main([*asked, "--api-key-env", "NOT_SET_ANYWHERE"]) == 2
    assert "NOT_SET_ANYWHERE: this variable is not set" in capsys.readouterr().err
