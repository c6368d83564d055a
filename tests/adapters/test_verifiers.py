"""An evaluation of verifiers takes SVR's turns and pays SVR's rewards."""

import json
from pathlib import Path

import pytest
from verifiers.v1.cli.eval.main import main

from svr_lightning.core.parsing import self_check_format_score
from svr_lightning.core.rewards import trajectory_return
from svr_lightning.core.types import ScoredTurn
from svr_lightning.recipes.svr import SVR
from svr_lightning.tasks import get_task
from tests.chat_server import ChatServer
from tests.countdown_server import PROBLEMS, TURNS, opinion, records_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_an_evaluation_of_verifiers_is_ours_turn_by_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("MINE_API_KEY", "none")
    with ChatServer(opinion) as server:
        expected = {record.id: record for record in records_of(server, tmp_path)}
        main(
            [
                *("svr-environment", "--model", "tiny", "--no-push", "--no-rich"),
                *("--client.base-url", server.url, "--client.api-key-var", "MINE_API_KEY"),
                *("--env.taskset.split", "dev", "--env.taskset.limit", str(len(PROBLEMS))),
                *(
                    "--env.agent.harness.id",
                    "svr-environment",
                    "--env.agent.runtime.type",
                    "subprocess",
                ),
                *("--env.taskset.task.length-scale", "256"),
                *("--env.agent.harness.horizon", str(TURNS)),
                *("--env.agent.harness.threshold", "0.85"),
                *("--output-dir", str(tmp_path / "out")),
            ]
        )
    (file,) = (tmp_path / "out").rglob("traces.jsonl")
    lines = [json.loads(line)["traces"][0] for line in file.read_text().splitlines()]
    assert len(lines) == len(expected)
    recipe, task = SVR(length_scale=256), get_task("countdown")
    for line in lines:
        record = expected[line["task"]["data"]["id"]]
        kept = line["info"]["svr_turns"]
        assert [turn["text"] for turn in kept] == [turn.text for turn in record.turns]
        scored = [
            ScoredTurn(
                correct=bool(turn.correct),
                truncated=turn.truncated,
                verdict=turn.verdict,
                confidence=turn.confidence,
                completion_tokens=turn.completion_tokens,
                task_format=task.format_score(turn.text),
                self_check_format=self_check_format_score(turn.text),
            )
            for turn in record.turns
        ]
        reward = trajectory_return(scored, recipe.weights, recipe.length_scale)
        assert line["rewards"]["svr"]["score"] == pytest.approx(reward)
        assert line["metrics"]["correct"] == float(scored[-1].correct)
        assert line["metrics"]["turns"] == len(scored)
        assert len(line["calls"]) == len(scored)  # verifiers saw every turn, and trains on each
