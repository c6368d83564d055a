"""The GPU check as a user runs it, in small, on a CPU."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tools.gpu_check import parity, rollouts, training_run, update
from tools.gpu_check.__main__ import PARTS, main
from tools.gpu_check.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = Settings(device="cpu", engine="transformers", small=True)


def test_every_figure_of_a_part_is_in_the_report_and_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "found" / "gpu.json"
    assert main(["--small", "--parts", "memory", "--out", str(out)]) == 0
    report, lines = json.loads(out.read_text()), capsys.readouterr().out.splitlines()
    assert report["versions"]["torch"]
    assert report["hardware"]["threads"] == torch.get_num_threads()
    assert report["dims"]["hybrid"]["num_hidden_layers"] == 4
    (part,) = report["parts"].values()
    found = {name: figure["value"] for name, figure in part["figures"].items()}
    for name in found:
        assert any(line.startswith(f"memory.{name} = ") for line in lines), name
    # Both ways to the log-probabilities agree.
    assert 0 < found["blocks.peak_memory"] < found["plain.peak_memory"]
    assert found["ratio"] == pytest.approx(found["blocks.seconds"] / found["plain.seconds"])
    for name in ("values", "grad_hidden", "grad_weight"):
        assert found[f"difference.{name}"] < 1e-5


def figures(part: ModuleType) -> dict[str, Any]:
    """What a part finds, in this process."""
    assert part.__name__ in {known.module for known in PARTS}
    found: dict[str, Any] = {}
    part.run(lambda name, value, *_, **__: found.update({name: value}), SETTINGS)
    return found


def test_the_update_is_timed_for_both_models_with_and_without_checkpointing() -> None:
    found = figures(update)
    for model in ("dense", "hybrid"):
        for way in ("checkpointing", "all_activations"):
            step = found[f"{model}.{way}.step"]
            micro, optimizer = (found[f"{model}.{way}.{k}"] for k in ("micro_batch", "optimizer"))
            assert step == pytest.approx(16 * micro + optimizer)
            assert found[f"{model}.{way}.tokens"] > 0
            assert found[f"{model}.{way}.mfu"] is None  # nobody states a CPU's peak
    assert found["linear_attention"] == "loop in torch"


def test_the_engine_agrees_with_the_trainer_before_and_after_an_update() -> None:
    found = figures(parity)
    assert found["serves_present_weights"] is True
    assert found["first.logprob_difference_mean"] < 1e-4
    assert found["updated.logprob_difference_mean"] < 1e-4
    assert found["missed_sync.logprob_difference_mean"] > 0.1


def test_both_ways_of_rolling_out_sample_the_same_number_of_tokens() -> None:
    found = figures(rollouts)
    sampled = [found[f"{w}.tokens"] * found[f"{w}.seconds"] for w in ("pipelined", "lock_step")]
    assert sampled[0] == pytest.approx(sampled[1])
    assert 0 < found["pipelined.share_of_bound"] < 1
    assert found["speedup"] > 0
    assert found["logprob_difference_mean"] < 1e-3


def test_the_training_run_reports_its_steps_without_deepspeed_too(tmp_path: Path) -> None:
    found: dict[str, Any] = {}

    def emit(name: str, value: object, unit: str = "", note: str = "") -> None:
        found[name] = note if value is None else value

    training_run.save_policy(tmp_path / "policy", SETTINGS)
    config = training_run.configuration(
        tmp_path / "policy", tmp_path / "run", "transformers", "auto", SETTINGS
    )
    config["trainer"]["precision"] = "32-true"  # bf16-true is DeepSpeed's alone
    assert training_run.train(emit, "plain", config, tmp_path), found
    assert found["plain.steps"] == training_run.STEPS
    assert found["plain.train/grad_norm"] > 0
    assert found["plain.engine/changed_frac"] > 0
    assert found["plain.step"] > 0


def test_a_training_that_fails_is_told_by_the_line_that_names_the_error() -> None:
    output = ["Seed set to 42", "svr_lightning: error: no GPU", "", "tidying up"]
    assert training_run.reason(2, output) == "svr_lightning: error: no GPU"
    assert training_run.reason(1, ["step 1", "killed"]) == "killed"
    assert training_run.reason(-9, ["step 1"]) == "ended by SIGKILL"
