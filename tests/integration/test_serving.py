"""The policy as an engine serves it: kept in step, and stopped where it is not."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

from svr_lightning.core.types import Sample
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.training.canary import LEAST, Canary, rounding_floor, roundings
from svr_lightning.training.config import OptimizerConfig, SamplingConfig
from svr_lightning.training.rollouts import PolicyEngine, choose_engine
from svr_lightning.training.update import batch_of
from tests.models import tiny_qwen3
from tests.pipelining import assert_pipelined_equals_lock_step, shipped_policy
from tests.small_fit import data, module, trainer, weights


class Copying(TransformersEngine):
    """Serves weights of its own, as an engine with a model of its own does."""

    def sync(self, model: Any, version: int) -> None:
        super().sync(copy.deepcopy(model), version)


class IgnoresSyncs(Copying):
    """Says that it took the new weights and keeps the first."""

    def sync(self, model: Any, version: int) -> None:
        super().sync(self._model if self.version >= 0 else model, version)


class ServesBaseWeightsAfterAWake(Copying):
    """Forgets its weights in its sleep and wakes with those that it first had."""

    _base: Any = None

    def sync(self, model: Any, version: int) -> None:
        self._base = copy.deepcopy(model) if self._base is None else self._base
        super().sync(self._base if self.slept else model, version)

    slept = False

    def sleep(self) -> None:
        self.slept = True
        self.version = -1


FAST = {"optimizer": OptimizerConfig(lr=5e-3)}


def test_an_engine_in_step_passes_the_canary(tmp_path: Path) -> None:
    model = module(engine=Copying(), **FAST)
    trainer(tmp_path, max_steps=4).fit(model, data())
    assert model.global_step == 4


@pytest.mark.parametrize("faulty", [IgnoresSyncs, ServesBaseWeightsAfterAWake])
def test_the_canary_stops_a_run_whose_engine_serves_other_weights(
    tmp_path: Path, faulty: type[Copying]
) -> None:
    model = module(engine=faulty(), **FAST)
    run = trainer(tmp_path)
    with pytest.raises(RuntimeError, match=r"logprob_diff is .* the engine does not sample from"):
        run.fit(model, data())
    assert 1 <= run.global_step < 6  # the first rollout is right: its weights are the first


def test_the_canarys_limit_can_be_set(tmp_path: Path) -> None:
    strict = module(sampling=SamplingConfig(max_completion_tokens=64, max_logprob_noise=1e-6))
    run = trainer(tmp_path)
    with (
        pytest.warns(UserWarning, match=r"step 1, above .* model.sampling.max_logprob_noise=1e-06"),
        pytest.raises(RuntimeError, match=r"at optimizer step 3, above .* Stopped before"),
    ):
        run.fit(strict, data())
    assert run.global_step == 2


def test_the_canary_warns_first_and_ends_a_run_that_disagrees_three_times_in_a_row() -> None:
    canary = Canary(10.0)
    gaps = [0.29, 0.31, 0.31, 0.3, 0.31, 0.31]  # of a floor of 0.03 nats
    said = [canary.judge(gap, 0.03, step) for step, gap in enumerate(gaps, 1)]
    assert [word is not None for word in said] == [False, True, True, False, True, True]
    assert said[1] is not None
    assert said[1].startswith("engine/logprob_diff is 0.31 at optimizer step 2, above 0.3, which")
    with pytest.raises(RuntimeError, match="step 7"):
        canary.judge(0.31, 0.03, 7)


def test_a_run_that_is_resumed_between_its_rollouts_is_judged_by_all_of_them() -> None:
    canary = Canary(10.0)
    for step in (1, 2):
        assert canary.judge(0.31, 0.03, step) is not None
        state, canary = canary.state_dict(), Canary(10.0)
        canary.load_state_dict(json.loads(json.dumps(state)))
    with pytest.raises(RuntimeError, match="step 3"):
        canary.judge(0.31, 0.03, 3)


def test_the_canaries_of_several_processes_go_on_as_one_where_their_number_has_changed() -> None:
    canary = Canary(10.0)
    ranks = [{"above": 0, "floors": [0.01]}, {"above": 2, "floors": [0.03]}]
    canary.load_state_dict({"ranks": ranks})
    with pytest.raises(RuntimeError, match=r"above 0\.2, which"):  # of floors 0.01, 0.03 and 0.02
        canary.judge(0.21, 0.02, 3)


def test_the_limit_follows_the_floor_and_what_is_no_number_ends_a_run_at_once() -> None:
    canary = Canary(10.0)
    assert canary.judge(0.31, 0.04, 1) is None
    assert canary.judge(0.29, 0.02, 2) is None  # the mean of both floors is 0.03
    assert canary.judge(0.29, 0.02, 3) is not None
    with pytest.raises(RuntimeError, match="is nan at optimizer step 1"):
        Canary(10.0).judge(math.nan, 0.04, 1)


def test_each_layer_makes_a_rounding_error_and_none_afterwards() -> None:
    layer, ones = torch.nn.Linear(4, 1000, bias=False), torch.ones(1, 4)
    model = torch.nn.Sequential(layer, torch.nn.Identity())
    exact = model(ones)
    with roundings(model, torch.bfloat16, seed=1):
        errors = (model(ones) / exact - 1).detach()
    # bf16 has 8 significant bits: an error of at most 2^-8, evenly spread.
    assert 0.9 * 2**-8 < errors.abs().max() <= 2**-8 * (1 + 1e-3)
    assert errors.abs().mean() == pytest.approx(2**-9, rel=0.1)
    assert torch.equal(model(ones), exact)


def test_the_floor_grows_with_the_rounding_error() -> None:
    model = tiny_qwen3()
    sample = Sample(
        prompt_ids=(5, 6, 7),
        completion_ids=tuple(range(8, 40)),
        logprobs=(0.0,) * 32,
        advantage=0.0,
        group_id="p",
        policy_version=0,
    )
    bf16, fp16, fp32 = (
        rounding_floor(model, batch_of([sample], 1.0), 0.9, served=served, seed=3)
        for served in (torch.bfloat16, torch.float16, torch.float32)
    )
    assert bf16 / fp16 == pytest.approx(8, rel=0.1)  # the same errors, of three bits more
    assert LEAST <= fp32 < fp16 / 1000
    with torch.autocast("cpu", torch.bfloat16):
        trained = rounding_floor(model, batch_of([sample], 1.0), 0.9, served=torch.float32, seed=3)
    assert bf16 / 4 < trained < bf16 * 4


def test_weights_of_a_checkpoint_are_served_at_once_though_no_step_was_taken(
    tmp_path: Path,
) -> None:
    engine = Copying()
    model = module(engine=engine)
    run = trainer(tmp_path, max_steps=2, limit_test_batches=1)
    run.fit(model, data())
    run.save_checkpoint(tmp_path / "end.ckpt")
    trained = weights(model)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.zero_()
    tested = data(val=[], test=data().sources["val"])
    run.test(model, tested, ckpt_path=tmp_path / "end.ckpt")
    served = list(engine._model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(trained, served, strict=True))


def test_an_engine_is_synced_once_for_a_rollout_and_an_evaluation_of_the_same_weights() -> None:
    syncs: list[int] = []

    class Noting(TransformersEngine):
        def sync(self, model: Any, version: int) -> None:
            syncs.append(version)
            super().sync(model, version)

    model = tiny_qwen3()
    serving = PolicyEngine(model, Noting(), stop_token_ids=(), max_model_len=512, device_type="cpu")
    for version in (0, 0, 1, 1):
        with serving.sampling(version):
            assert not model.training
    assert syncs == [0, 1]
    serving.weights_replaced()
    with serving.sampling(1):
        pass
    assert syncs == [0, 1, 1]


def test_an_engine_works_outside_of_every_ambient_mode() -> None:
    seen = []

    def modes() -> tuple[Any, ...]:
        autocast, inference = torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()
        functions = len(_get_current_function_mode_stack())
        device, dtype = torch.get_default_device().type, torch.get_default_dtype()
        return device, dtype, autocast, inference, functions

    class Noting(TransformersEngine):
        def start(self, *args: Any) -> None:
            seen.append(("start", *modes()))
            super().start(*args)

        def sync(self, *args: Any) -> None:
            seen.append(("sync", *modes()))
            super().sync(*args)

        def step(self) -> Any:
            seen.append(("step", *modes()))
            return super().step()

        def sleep(self) -> None:
            seen.append(("sleep", *modes()))

    model, before = tiny_qwen3(), modes()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with (
            torch.device("meta"),
            torch.autocast("cpu", torch.bfloat16),
            torch.inference_mode(),
        ):
            ambient = modes()
            serving = PolicyEngine(
                model, Noting(), stop_token_ids=(), max_model_len=512, device_type="cpu"
            )
            with serving.sampling(0):
                serving.engine.step()
            assert modes() == ambient == ("meta", torch.bfloat16, True, True, 1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert before[-1] == 0
    assert seen == [(call, *before) for call in ("start", "sync", "step", "sleep")]


def test_a_policy_that_is_not_on_a_gpu_is_sampled_by_transformers() -> None:
    engine, why = choose_engine("cpu")
    assert isinstance(engine, TransformersEngine)
    assert why == "transformers, since the policy is not on a GPU"


def test_a_policy_on_a_gpu_is_sampled_by_vllm_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("svr_lightning.training.rollouts.find_spec", lambda _: None)
    engine, why = choose_engine("cuda")
    assert isinstance(engine, TransformersEngine)
    assert "vLLM is not installed" in why
    monkeypatch.setattr("svr_lightning.training.rollouts.find_spec", lambda _: object())
    monkeypatch.setattr("svr_lightning.engines.vllm.version", lambda _: "0.32.0")
    engine, why = choose_engine("cuda")
    assert type(engine).__name__ == "VLLMEngine"
    assert why == "vLLM, in the training process"


def test_pipelined_turns_equal_turns_in_lock_step_on_a_real_policy() -> None:
    assert_pipelined_equals_lock_step(TransformersEngine(), shipped_policy())
