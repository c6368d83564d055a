"""The evaluation configurations on the real benchmark problems, end to end."""

import json
from typing import Any

import pytest
import yaml

from svr_lightning.__main__ import main
from svr_lightning.analysis.metrics import MATH_5
from svr_lightning.core.stopping import Confident, rule_from_config
from tests.commands import ROOT, flags, jsonl

CONFIGS = ROOT / "configs"
ALL_7 = ("countdown", "gsm8k", *MATH_5)
LIMITS = {
    "countdown": 800,
    "gsm8k": 1200,
    "math500": 2048,
    "amc23": 2048,
    "aime26": 3072,
    "minerva_math": 3072,
    "olympiadbench": 4096,
}
"""Maximum completion lengths at evaluation, appendix A."""


def sets(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((CONFIGS / name).read_text())["data"]["test"])


@pytest.mark.parametrize(("name", "wanted"), [("all7", ALL_7), ("math5", MATH_5)])
def test_the_sets_have_the_papers_limits(name, wanted):
    limits = {
        source["name"]: source["max_completion_tokens"] for source in sets(f"eval/{name}.yaml")
    }
    assert limits == {dataset: LIMITS[dataset] for dataset in wanted}


def test_all_seven_give_results_and_samples_for_voting(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    shipped = ("eval/all7.yaml", "hardware/cpu_smoke.yaml", "eval/majority_vote.yaml")
    paths = [*(CONFIGS / layer for layer in shipped), ROOT / "tests" / "real_rows.yaml"]
    command = [
        "test",
        *(part for path in paths for part in ("--config", str(path))),
        *flags(
            {
                "trainer.default_root_dir": str(tmp_path),
                "trainer.enable_progress_bar": "false",
                "data.eval_batch_size": "1",
                "model.evaluation.max_completion_tokens": "8",
            }
        ),
    ]
    assert main(command) == 0
    folder = tmp_path / "eval" / "test"
    results = json.loads((folder / "results.json").read_text())
    assert {name: values["n"] for name, values in results["datasets"].items()} == dict.fromkeys(
        ALL_7, 1
    )
    assert results["macro"]["all"]["datasets"] == list(ALL_7)
    assert results["macro"]["math"]["datasets"] == list(MATH_5)
    assert rule_from_config(results["config"]["model"]["evaluation"]) == Confident()
    rows = jsonl(folder / "samples.jsonl")
    assert [row["dataset"] for row in rows] == list(ALL_7)
    for row in rows:
        assert len(row["turns"]) == 16
        assert len({turn["text"] for turn in row["turns"]}) > 5  # drawn apart
        assert len({turn["prompt_tokens"] for turn in row["turns"]}) == 1
    assert main(["replay", str(folder)]) == 0
    votes = json.loads((folder / "replay" / "replay.json").read_text())["votes"]
    assert all(one.keys() >= {"maj@3", "maj@5", "maj@10"} for one in votes.values())
