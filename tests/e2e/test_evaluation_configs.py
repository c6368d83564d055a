"""The evaluation configurations on the real benchmark problems, end to end."""

from svr_lightning.__main__ import main
from svr_lightning.analysis.metrics import MATH_5
from svr_lightning.core.stopping import Confident, rule_from_config
from tests.commands import ROOT, flags, jsonl, read_json

ALL_7 = ("countdown", "gsm8k", *MATH_5)


def test_all_seven_give_results_and_samples_for_voting(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    layers = ("eval/all7", "hardware/cpu_smoke", "eval/majority_vote", "tests/real_rows.yaml")
    configs = [word for layer in layers for word in ("--config", layer)]
    settings = {
        "trainer.default_root_dir": tmp_path,
        "trainer.enable_progress_bar": "false",
        "data.eval_batch_size": 1,
        "model.evaluation.max_completion_tokens": 8,
    }
    assert main(["test", *configs, *flags(settings)]) == 0
    folder = tmp_path / "eval" / "test"
    results = read_json(folder / "results.json")
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
    votes = read_json(folder / "replay" / "replay.json")["votes"]
    assert all(one.keys() >= {"maj@3", "maj@5", "maj@10"} for one in votes.values())
