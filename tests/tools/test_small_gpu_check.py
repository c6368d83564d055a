"""The GPU check as a user runs it, all of it, in small, on a CPU."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tolerance import rounding
from tools.bench import update as memory
from tools.gpu_check import fits, runner
from tools.gpu_check.__main__ import PARTS, main
from tools.gpu_check.settings import FOLDER

ROOT = Path(__file__).resolve().parents[2]
Found = dict[str, dict[str, Any]]


def run_here(
    part: runner.Part, device: str, limit: float, folder: str, result: Any, **to: Any
) -> None:
    """Run a part in this process, which has imported already what each would import again."""

    def emit(name: str, value: object, unit: str = "", note: str = "") -> None:
        finding = {"name": name, "value": value, "unit": unit, "note": note}
        runner._take(finding, part.name, result, to["say"])

    module, _, function = part.call.rpartition(".")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, folder)
        getattr(import_module(module), function)(emit, device)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The values of all parts by name, each of which was said as well."""
    pytest.importorskip("vllm")
    out = tmp_path_factory.mktemp("check") / "found" / "gpu.json"
    said: list[str] = []
    threads = torch.get_num_threads()  # vLLM changes it
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr("tools.gpu_check.__main__._say", said.append)
        # In two commands: what the first one found stays.
        assert main(["--cpu", "--parts", "memory", "--out", str(out)]) == 0
        patch.setattr(runner, "_run_part", run_here)
        others = ",".join(part.name for part in PARTS if part.name != "memory")
        assert main(["--cpu", "--parts", others, "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["versions"]["torch"]
    assert report["hardware"]["threads"] == threads
    assert set(report["parts"]) == {part.name for part in PARTS}
    for part, result in report["parts"].items():
        for name in result["figures"]:
            assert any(line.startswith(f"{part}.{name} = ") for line in said), name
    return {
        part: {name: figure["value"] for name, figure in result["figures"].items()}
        for part, result in report["parts"].items()
    }


def test_both_ways_to_the_logprobs_agree(found: Found) -> None:
    figures = found["memory"]
    assert 0 < figures["blocks.peak_memory"] < figures["plain.peak_memory"]
    assert figures["ratio"] == pytest.approx(figures["blocks.seconds"] / figures["plain.seconds"])
    _, vocabulary, features = memory.SMALL
    for name in ("values", "grad_hidden", "grad_weight"):
        explained = rounding(vocabulary + features, 1.0)  # relative to the largest
        assert figures[f"difference.{name}"] < explained


def test_the_update_is_timed_for_both_models_in_each_way(found: Found) -> None:
    figures = found["update"]
    for model in ("dense", "hybrid"):
        for way in ("checkpointing", "all_activations"):
            step = figures[f"{model}.{way}.step"]
            micro, optimizer = (figures[f"{model}.{way}.{k}"] for k in ("micro_batch", "optimizer"))
            assert step == pytest.approx(16 * micro + optimizer)
            assert figures[f"{model}.{way}.tokens"] > 0
            assert figures[f"{model}.{way}.mfu"] is None  # nobody states a CPU's peak
    assert figures["dense.checkpointing_packed.step"] > 0
    assert figures["hybrid.checkpointing_packed.micro_batch"] is None  # only CUDA has its kernels


def test_vllm_agrees_with_the_trainer_before_and_after_updates_and_sleeps(found: Found) -> None:
    figures = found["parity"]
    assert figures["serves_present_weights"] is True
    for look in ("first", "updated", "sleep_1", "sleep_2"):
        assert figures[f"{look}.logprob_difference_mean"] > 0
    # A CPU computes in fp32 either way.
    assert figures["floor.fp32.logprob_difference_mean"] < rounding(1e4, 10.0)


def test_a_killed_training_goes_on_from_its_checkpoint_and_draws_the_same(found: Found) -> None:
    figures = found["resume"]
    assert (figures["killed"], figures["steps"]) == (fits.KILLED_AFTER, fits.KILLED_AFTER + 1)
    assert figures["same_rollouts"] == 1
    assert figures["deepspeed"] is True


def test_a_shipped_configuration_trains_a_checkpoint_of_qwen3_5s_names_and_validates_it(
    found: Found,
) -> None:
    figures = found["fit"]
    assert figures["loaded_as_saved"] is True
    assert figures["steps"] == 2
    assert figures["validations"] == ["step-000001", "step-000002"]
    assert figures["train/grad_norm"] > 0
    assert figures["engine/changed_frac"] > 0.5


def test_both_ways_of_rolling_out_sample_the_same_number_of_tokens(found: Found) -> None:
    figures = found["rollout"]
    sampled = [figures[f"{w}.tokens"] * figures[f"{w}.seconds"] for w in ("pipelined", "lock_step")]
    assert sampled[0] == pytest.approx(sampled[1])
    assert 0 < figures["pipelined.share_of_bound"] < 1
    assert figures["speedup"] > 0


def test_a_training_that_fails_is_told_by_the_line_that_names_the_error() -> None:
    output = "Seed set to 42\nsvr_lightning: error: no GPU\n\ntidying up"
    assert fits.reason(2, output) == "svr_lightning: error: no GPU"
    assert fits.reason(1, "step 1\nkilled") == "killed"
    assert fits.reason(-9, "step 1") == "ended by SIGKILL"
