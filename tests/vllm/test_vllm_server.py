"""The same evaluation through a real vLLM server and in this process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.__main__ import main
from svr_lightning.core.types import TokenScores
from tests.commands import TINY, flags, jsonl, write_jsonl
from tests.scripted import TOKENIZER
from tests.vllm.serving import served_at


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """The shipped policy behind vLLM's API server; its base URL."""
    with served_at(Path(TOKENIZER.name_or_path), "tiny", tmp_path_factory.mktemp("server")) as url:
        yield url


def records(folder: Path) -> list[dict[str, Any]]:
    return jsonl(folder / "eval" / "test" / "samples.jsonl")


def test_greedy_inference_through_a_server_equals_that_in_this_process(server, tmp_path):
    rows = [{"id": "short", "nums": [3, 5, 8], "target": 16}]
    rows.append({"id": "long", "nums": [3] * 1500, "target": 16})
    write_jsonl(tmp_path / "rows.jsonl", rows)
    shipped = "task: countdown, path: 'embedded:countdown-tiny', split: test, limit: 24"
    own = f"task: countdown, path: {tmp_path}/rows.jsonl"
    settings = {
        "data.test": f"[{{name: held_out, {shipped}}}, {{name: own, {own}}}]",
        # No confidence of the shipped policy reaches it: refinements are compared too.
        "model.evaluation.stop": "Confident",
        "model.evaluation.stop.threshold": 0.96,
        "model.evaluation.max_turns": 3,
    }
    same = ["test", *TINY, *flags(settings), "--trainer.default_root_dir"]
    through = ["--model.engine", "OpenAIEngine"]
    through += flags({"model.engine.base_url": server, "model.engine.model_name": "tiny"})
    assert main([*same, str(tmp_path / "here")]) == 0
    assert main([*same, str(tmp_path / "there"), *through]) == 0
    here, there = records(tmp_path / "here"), records(tmp_path / "there")
    for record in here:
        for turn in record["turns"]:
            for score in TokenScores._fields:
                turn.pop(score, None)  # a server tells no log-probabilities
    errors = [found[-1].pop("error") for found in (here, there)]
    assert there == here
    assert [len(record["turns"]) for record in there] == [3] * 25 + [0]
    assert errors[0] == "the problem does not fit 512 prompt tokens"
    assert "HTTP 400, This model's maximum context length is 1024 tokens" in errors[1]
