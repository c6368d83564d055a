"""What vLLM would do on CUDA, as far as a machine without it can tell."""

import sys
from typing import Any

import pytest

from tests.commands import ran, read_json
from tests.vllm import faked_cuda

pytest.importorskip("triton", reason="without Triton vLLM takes another runner than on CUDA")


@pytest.fixture(scope="module")
def configured(tmp_path_factory) -> dict[str, Any]:
    """What ``tests.vllm.faked_cuda`` leaves; a new interpreter, which imports anew."""
    out = tmp_path_factory.mktemp("start") / "found.json"
    done = ran(sys.executable, "-m", "tests.vllm.faked_cuda", out, VLLM_CACHE_ROOT=str(out.parent))
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(read_json(out))


@pytest.mark.parametrize("card", faked_cuda.CARDS)
def test_a_hybrid_gets_the_second_runner_no_compiler_and_a_place_for_each_trajectory(
    configured, card
):
    found = configured[card]
    assert (found["version_2"], found["prefill"], found["states"]) == (True, "triton", "float32")
    assert found["prefix_caching"] is False
    assert found["sequences"] == faked_cuda.TRAJECTORIES
    assert found["largest_graph"] <= 2 * faked_cuda.TRAJECTORIES
    assert found["threads"] == 1  # others would spin beside the engine


def test_what_vllm_would_choose_is_what_its_sources_say(configured):
    """So that the faked device is seen to be taken for one."""
    found = configured[faked_cuda.THEIR_OWN]
    assert (found["prefill"], found["sequences"]) == ("flashinfer", 1024)
