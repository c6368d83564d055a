"""Inspect's own eval runs the solver, and its log has what this package's evaluation has."""

import sys
from typing import Any

import inspect_ai
from inspect_ai.log import list_eval_logs, read_eval_log
from inspect_ai.model import ContentReasoning, ContentText, ModelOutput

from examples import evaluate_with_inspect
from svr_lightning.adapters import inspect_eval
from svr_lightning.analysis.metrics import measure_all
from svr_lightning.analysis.records import SampleRecord
from svr_lightning.analysis.table import turn_tables
from svr_lightning.core.types import FinishReason
from tests.chat_server import ChatServer, completion
from tests.countdown_server import opinion, records_of
from tests.pages import blocks, page
from tests.scripted import says


def test_an_eval_of_inspect_is_ours_turn_by_turn(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINE_API_KEY", "none")
    with ChatServer(opinion) as server:
        expected = records_of(server, tmp_path)
        monkeypatch.setattr(
            sys,
            "argv",
            [
                *("example", "--model", "openai-api/mine/policy", "--model-base-url", server.url),
                *("--limit", "6", "--max-turns", "3", "--log-dir", str(tmp_path)),
            ],
        )
        evaluate_with_inspect.main()
    log = read_eval_log(list_eval_logs(str(tmp_path))[0])
    assert log.status == "success"
    found = [SampleRecord.from_json(sample.store["svr"]) for sample in log.samples or []]
    assert len({len(record.turns) for record in found}) > 1
    assert {record.id: record for record in found} == {record.id: record for record in expected}
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    printed = dict(row for row in rows if len(row) == 2)
    values = measure_all(turn_tables(expected))["datasets"]["countdown"]
    for name in ("accuracy", "turns", "brier", "auroc", "overconfidence"):
        assert printed[name] == f"{values[name]:.3f}"


def test_a_sample_that_a_limit_of_inspect_ends_is_wrong_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("MINE_API_KEY", "none")
    with ChatServer(opinion) as server:
        (log,) = inspect_ai.eval(
            inspect_eval.svr(
                task="countdown", path="embedded:countdown-tiny", split="dev", limit=1
            ),
            model="openai-api/mine/policy",
            model_base_url=server.url,
            token_limit=1,
            log_dir=str(tmp_path),
            display="none",
        )
    (sample,) = read_eval_log(log.location).samples or []
    score = (sample.scores or {})["svr_scorer"]
    assert (score.value, score.explanation) == ("I", "ended by a limit of Inspect")


def test_an_answer_is_put_together_as_the_policy_wrote_it():
    output = ModelOutput.from_content("m", "")
    output.message.content = [ContentReasoning(reasoning="hm"), ContentText(text="<answer>1")]
    output.choices[0].stop_reason = "max_tokens"
    found = inspect_eval.completion_of(output)
    assert found.text == "<think>hm</think>\n<answer>1"
    assert (found.finish_reason, found.completion_tokens) == (FinishReason.LENGTH, 0)


def test_the_guide_solves_samples_of_the_readers_own(tmp_path, monkeypatch):
    namespace: dict[str, Any] = {}
    (code,) = (b for b in blocks(page("docs/extending.md")) if "from inspect_ai import Task" in b)
    exec(code, namespace)
    monkeypatch.setenv("MINE_API_KEY", "none")
    with ChatServer(lambda *_: completion(says("#### 42", "CORRECT", 0.95))) as server:
        (log,) = inspect_ai.eval(
            namespace["task"],
            model="openai-api/mine/policy",
            model_base_url=server.url,
            log_dir=str(tmp_path),
            display="none",
        )
    assert log.status == "success", log.error.message
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert [m.role for m in log.samples[0].messages] == ["system", "user", "assistant"]
