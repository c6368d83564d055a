"""kill -9 of an evaluation through a server: the same command repeats no finished problem."""

import json
import signal
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.__main__ import main
from svr_lightning.core.seeds import derive_seed
from tests import forked
from tests.chat_server import ChatServer, Reply, completion
from tests.commands import TINY, embedded, jsonl, refused
from tests.scripted import says

PROBLEMS, TURNS, CONCURRENCY = 30, 3, 4
KEY = "hunter2-hunter2"


def through(server: ChatServer) -> list[str]:
    return [
        *("--model.engine", "OpenAIEngine", "--model.engine.base_url", server.url),
        *("--model.engine.model_name", "tiny"),
    ]


def command(server: ChatServer, folder: Path) -> list[str]:
    return [
        *("test", *TINY, "--trainer.default_root_dir", str(folder)),
        *("--data.test", embedded(PROBLEMS), "--model.evaluation.max_turns", str(TURNS)),
        *through(server), *("--model.engine.concurrency", str(CONCURRENCY)),
    ]  # fmt: skip


def unsure(body: dict[str, Any], _number: int) -> Reply:
    """Says at which place of the run it was asked."""
    return completion(says(str(body["seed"]), "UNSURE", 0.5))


def wanted(record: dict[str, Any]) -> list[str]:
    seeds = [derive_seed(42, step=0, problem_id=record["id"], turn=t + 1) for t in range(TURNS)]
    return [says(str(seed % 2**31), "UNSURE", 0.5) for seed in seeds]


def test_a_killed_evaluation_repeats_no_finished_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    process: list[BaseProcess] = []

    def answer(body: dict[str, Any], number: int) -> Reply:
        if number == 41:  # of ninety
            process[0].kill()
            process[0].join()
        return unsure(body, number)

    with ChatServer(answer) as server:
        process.append(forked.start(tmp_path / "log", *command(server, tmp_path)))
        assert forked.wait(process[0]) == -signal.SIGKILL
        folder = tmp_path / "eval" / "test"
        journal = folder / ".journal-0.jsonl"
        finished = len(journal.read_text().splitlines()) - 1
        sent = len(server.bodies)
        assert 0 < sent - finished * TURNS <= CONCURRENCY * TURNS  # of unfinished problems
        assert main(command(server, tmp_path)) == 0
        left = (PROBLEMS - finished) * TURNS
        assert len(server.bodies) == sent + left
        assert not journal.exists()  # its records are in the samples
    assert {h["Authorization"] for h in server.headers} == {f"Bearer {KEY}"}
    records = jsonl(folder / "samples.jsonl")
    assert len({record["id"] for record in records}) == PROBLEMS
    assert all([t["text"] for t in record["turns"]] == wanted(record) for record in records)
    config = json.loads((folder / "results.json").read_text())["config"]
    assert config["model"]["engine"]["init_args"]["base_url"] == server.url
    assert sorted(config["model"]) == ["engine", "evaluation", "policy", "recipe"]
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(KEY.encode() in content for content in written)
    said = "".join(capsys.readouterr())
    assert KEY not in said
    assert f"held_out {PROBLEMS}/{PROBLEMS}" in said
    assert f"{left} turns, 0 in flight" in said


def test_questions_are_answered_through_a_server_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\x1b[2J[bold]" + says("3+5+8", "CORRECT", 0.9)
    with ChatServer(lambda *_: completion(text)) as server:
        done = main(
            [
                *("predict", *TINY, *through(server)),
                *("--trainer.default_root_dir", str(tmp_path), "--question", "3 5 8 = 16"),
            ]
        )
    said = capsys.readouterr().out
    assert done == 0
    assert "answer: 3+5+8, correct" in said
    assert "\x1b[2J" not in said
    assert "[bold]" in said
    (record,) = jsonl(tmp_path / "eval" / "predict" / "samples.jsonl")
    assert record["turns"][0]["text"] == text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            [
                *("test", "--model.evaluation.stop", "Confident"),
                *("--model.evaluation.stop.score", "verdict_probability"),
            ],
            "verdict >= 0.85: log-probabilities are not known of a server",
        ),
        (["test", "--model.engine.api_key_env", "NOT_SET"], "NOT_SET: this variable is not set"),
        (["test", "--ckpt_path", "last"], "--ckpt_path: model.engine is a server"),
        (["fit"], "OpenAIEngine returns no token ids, which training needs"),
        (["test", "--model.engine.timeout", "0"], "model.engine.timeout=0"),
    ],
)
def test_what_a_server_cannot_do_is_refused_before_it_is_asked(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = arguments
    with ChatServer(unsure) as server:
        assert said in refused(capsys, name, *command(server, tmp_path)[1:], *rest)
    assert server.bodies == []
