"""What vLLM would do on CUDA, as far as a machine without it can tell."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import forked
from tests.tolerance import rounding
from tests.vllm import faked_cuda, triton_kernels

pytest.importorskip("triton", reason="without Triton vLLM takes another runner than on CUDA")


def left(out: Path, module: str, **environment: str) -> Path:
    """What a program of this folder leaves in ``out``; a new interpreter, which imports anew."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.vllm.{module}", str(out)],
        cwd=forked.ROOT,
        env={**os.environ, "VLLM_CACHE_ROOT": str(out.parent), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The configurations of two starts, one after the other."""
    folder = tmp_path_factory.mktemp("starts")
    return [
        json.loads(left(folder / f"{start}.json", "faked_cuda").read_text()) for start in range(2)
    ]


@pytest.mark.parametrize("card", faked_cuda.CARDS)
def test_a_hybrid_gets_the_second_runner_no_compiler_and_a_place_for_each_trajectory(
    starts: list[dict[str, Any]], card: str
) -> None:
    found = starts[0][card]
    assert (found["version_2"], found["prefill"], found["states"]) == (True, "triton", "float32")
    assert found["prefix_caching"] is False
    assert found["sequences"] == faked_cuda.TRAJECTORIES
    assert found["largest_graph"] <= 2 * faked_cuda.TRAJECTORIES
    assert found["threads"] == 1  # others would spin beside the engine


def test_what_vllm_would_choose_is_what_its_sources_say(starts: list[dict[str, Any]]) -> None:
    """So that the faked device is seen to be taken for one."""
    found = starts[0][faked_cuda.THEIR_OWN]
    assert (found["prefill"], found["sequences"]) == ("flashinfer", 1024)


def test_a_policy_on_another_gpu_than_vllms_is_refused(starts: list[dict[str, Any]]) -> None:
    assert starts[0][faked_cuda.SECOND_GPU].startswith("trainer.devices=[1]: ")


def test_a_second_start_finds_what_the_first_has_compiled(starts: list[dict[str, Any]]) -> None:
    configured = (*faked_cuda.CARDS, faked_cuda.THEIR_OWN)
    first, second = ({name: one[name]["hash"] for name in configured} for one in starts)
    assert first == second
    assert len(set(first.values())) > 1  # it depends on the configuration


# --- kernels ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    out = tmp_path_factory.mktemp("kernels") / "found.pt"
    return dict(torch.load(left(out, "triton_kernels", TRITON_INTERPRET="1")))


def test_a_drawn_token_is_scored_at_the_temperature(computed: dict[str, torch.Tensor]) -> None:
    scores = computed["row"] / triton_kernels.TEMPERATURE
    exact = scores.double().log_softmax(-1)[computed["tokens"]]
    allowed = rounding(triton_kernels.VOCABULARY, scores.abs().max().item())
    assert (computed["logprobs"] - exact).abs().max() < allowed


def test_a_draw_belongs_to_all_63_bits_of_its_seed_and_to_its_position_and_not_to_its_row(
    computed: dict[str, torch.Tensor],
) -> None:
    tokens = computed["tokens"]
    assert torch.equal(tokens[:, 0], tokens[:, 3])  # equal seeds
    assert torch.equal(tokens, computed["backwards"])
    assert len({tuple(row.tolist()) for row in tokens.T}) == 3
    assert len({tuple(row.tolist()) for row in tokens}) == triton_kernels.POSITIONS


def test_tokens_are_drawn_as_often_as_their_probability_says(
    computed: dict[str, torch.Tensor],
) -> None:
    scores = computed["row"][: triton_kernels.FEW] / triton_kernels.TEMPERATURE
    for count, probability in zip(computed["counts"], scores.softmax(-1), strict=True):
        spread = math.sqrt(triton_kernels.DRAWS * probability * (1 - probability))
        assert abs(count - triton_kernels.DRAWS * probability) < 4 * spread


def test_without_temperature_the_likeliest_token_is_taken(
    computed: dict[str, torch.Tensor],
) -> None:
    assert set(computed["greedy"].tolist()) == {computed["row"].argmax().item()}
