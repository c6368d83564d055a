"""Rollouts and trainings on vLLM."""

from svr_lightning.engines.vllm import VLLMEngine
from tests.pipelining import assert_pipelined_equals_lock_step, shipped_policy


def test_pipelined_turns_equal_turns_in_lock_step() -> None:
    assert_pipelined_equals_lock_step(VLLMEngine(), shipped_policy())
