"""The GPU check as a user runs it, in small, on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.gpu_check import training_run
from tools.gpu_check.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("update", "memory", "engine", "rollout")


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The report and the terminal's output of a whole small check."""
    out = tmp_path_factory.mktemp("check") / "found" / "gpu.json"
    line = ["--small", "--engine", "transformers", "--parts", ",".join(PARTS), "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "tools.gpu_check", *line],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(out.read_text()), done.stdout


def figures(check: tuple[dict[str, Any], str], part: str) -> dict[str, Any]:
    return {name: f["value"] for name, f in check[0]["parts"][part]["figures"].items()}


def test_the_report_says_what_was_measured_on_what(check: tuple[dict[str, Any], str]) -> None:
    report = check[0]
    assert tuple(report["parts"]) == PARTS
    assert report["versions"]["torch"]
    assert report["hardware"]["threads"] == 1
    assert report["dims"]["hybrid"]["num_hidden_layers"] == 4


def test_the_update_is_timed_for_both_models_with_and_without_checkpointing(
    check: tuple[dict[str, Any], str],
) -> None:
    found = figures(check, "update")
    for model in ("dense", "hybrid"):
        for way in ("checkpointing", "all_activations"):
            step = found[f"{model}.{way}.step"]
            micro, optimizer = (found[f"{model}.{way}.{k}"] for k in ("micro_batch", "optimizer"))
            assert step == pytest.approx(16 * micro + optimizer)
            assert found[f"{model}.{way}.tokens"] > 0
            assert found[f"{model}.{way}.mfu"] is None  # nobody states a CPU's peak
    assert found["linear_attention"] == "loop in torch"


def test_both_log_probability_paths_are_measured_and_agree(
    check: tuple[dict[str, Any], str],
) -> None:
    found = figures(check, "memory")
    assert 0 < found["blocks.peak_memory"] < found["plain.peak_memory"]
    assert found["ratio"] == pytest.approx(found["blocks.seconds"] / found["plain.seconds"])
    for name in ("values", "grad_hidden", "grad_weight"):
        assert found[f"difference.{name}"] < 1e-5


def test_the_engine_agrees_with_the_trainer_before_and_after_an_update(
    check: tuple[dict[str, Any], str],
) -> None:
    found = figures(check, "engine")
    assert found["serves_present_weights"] is True
    assert found["first.logprob_difference_mean"] < 1e-4
    assert found["updated.logprob_difference_mean"] < 1e-4
    assert found["missed_sync.logprob_difference_mean"] > 0.1


def test_both_ways_of_rolling_out_sample_the_same_number_of_tokens(
    check: tuple[dict[str, Any], str],
) -> None:
    found = figures(check, "rollout")
    sampled = [found[f"{w}.tokens"] * found[f"{w}.seconds"] for w in ("pipelined", "lock_step")]
    assert sampled[0] == pytest.approx(sampled[1])
    assert 0 < found["pipelined.share_of_bound"] < 1
    assert found["speedup"] > 0
    assert found["logprob_difference_mean"] < 1e-3


def test_every_figure_is_a_line_on_the_terminal(check: tuple[dict[str, Any], str]) -> None:
    lines = check[1].splitlines()
    for part, found in check[0]["parts"].items():
        for name in found["figures"]:
            assert any(line.startswith(f"{part}.{name} = ") for line in lines), name


def test_the_training_run_reports_its_steps_without_deepspeed_too(tmp_path: Path) -> None:
    settings = Settings(device="cpu", engine="transformers", small=True)
    found: dict[str, Any] = {}

    def emit(name: str, value: object, unit: str = "", note: str = "") -> None:
        found[name] = note if value is None else value

    training_run.save_policy(tmp_path / "policy", settings)
    config = training_run.configuration(
        tmp_path / "policy", tmp_path / "run", "transformers", "auto", settings
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
