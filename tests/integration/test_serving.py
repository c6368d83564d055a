"""The policy as an engine serves it: kept in step, and stopped where it is not."""

import copy
import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.errors import ConfigError
from svr_lightning.policy.policy import Policy, choose_engine
from svr_lightning.training.config import OptimizerConfig
from tests.models import tiny_qwen3
from tests.scripted import RENDERER
from tests.small_fit import data, module, same, trainer, weights


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

    def sleep(self) -> bool:
        self.slept = True
        return True


FAST = {"optimizer": OptimizerConfig(lr=5e-3)}


@pytest.mark.parametrize("kind", [Copying, IgnoresSyncs, ServesBaseWeightsAfterAWake])
def test_an_engine_that_serves_other_weights_is_warned_of(tmp_path, kind, recwarn):
    trainer(tmp_path, max_steps=3).fit(module(engine=kind(), **FAST), data())
    messages = [str(one.message) for one in recwarn]
    found = [line for line in messages if "does not sample from the policy" in line]
    if kind is Copying:
        assert found == []
        return
    assert re.match(
        r"engine/logprob_diff is 0\.\d+ nats at optimizer step \d, above 0\.1", found[0]
    )
    assert "at optimizer step 1," not in found[0]  # the first weights are right


def test_log_probabilities_that_are_no_numbers_end_a_run_before_its_update(tmp_path):
    class Broken(TransformersEngine):
        def step(self):
            found = super().step().items()
            return {i: replace(o, logprobs=(math.nan,) * len(o.logprobs)) for i, o in found}

    model = module(engine=Broken())
    run = trainer(tmp_path)
    with pytest.raises(ConfigError, match="probabilities are NaN or infinite"):
        run.fit(model, data())
    assert run.global_step == 0


def test_weights_of_a_checkpoint_are_served_at_once_though_no_step_was_taken(tmp_path):
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
    assert same(trained, engine._model.parameters())


def test_an_engine_is_synced_once_for_a_rollout_and_an_evaluation_of_the_same_weights():
    syncs = []

    class Noting(TransformersEngine):
        def sync(self, model, version):
            syncs.append(version)
            super().sync(model, version)

    model = tiny_qwen3()
    serving = Policy(model, RENDERER)
    serving.start(Noting())
    for version, training in ((0, True), (0, False), (1, True), (1, False)):
        model.train(training)
        with serving.sampling(version):
            assert not model.training
        assert model.training == training
    assert syncs == [0, 1]
    serving.synced = None
    with serving.sampling(1):
        pass
    assert syncs == [0, 1, 1]


def test_an_engine_works_outside_of_every_ambient_mode():
    seen = []

    def modes():
        autocast, inference = torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()
        functions = len(_get_current_function_mode_stack())
        device, dtype = torch.get_default_device().type, torch.get_default_dtype()
        return device, dtype, autocast, inference, functions

    class Noting(TransformersEngine):
        def start(self, *args):
            seen.append(("start", *modes()))
            super().start(*args)

        def sync(self, *args):
            seen.append(("sync", *modes()))
            super().sync(*args)

        def step(self):
            seen.append(("step", *modes()))
            return super().step()

        def sleep(self):
            seen.append(("sleep", *modes()))
            return False

    model, before = tiny_qwen3(), modes()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"), torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
            ambient = modes()
            serving = Policy(model, RENDERER)
            serving.start(Noting())
            with serving.sampling(0):
                serving.engine.step()
            assert modes() == ambient == ("meta", torch.bfloat16, True, True, 1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert before[-1] == 0
    assert seen == [(call, *before) for call in ("start", "sync", "step", "sleep")]


def test_only_a_training_puts_the_policy_beside_an_engine_with_a_copy(tmp_path):
    class OnItsGPU(Copying):
        holds_copy = True

    gpu, tested = torch.device("meta"), {"test": data().sources["val"], "val": []}
    for engine, fits, stays in (
        (OnItsGPU(), False, True),
        (OnItsGPU(), True, False),
        (TransformersEngine(), False, False),
    ):
        model, run = module(engine=engine), trainer(tmp_path, max_steps=1, limit_test_batches=1)
        run.fit(model, data()) if fits else run.test(model, data(**tested))
        assert (model.to(gpu).policy.device == gpu) is not stays


def test_a_policy_on_a_gpu_is_sampled_by_vllm_where_there_is_one(monkeypatch, caplog):
    monkeypatch.setattr("svr_lightning.engines.vllm.version", lambda _: "0.32.0")
    for device, vllm, engine, reason in (
        ("cpu", object(), "TransformersEngine", "transformers, since the policy is not on a GPU"),
        ("cuda", None, "TransformersEngine", "transformers, since vLLM is not installed"),
        ("cuda", object(), "VLLMEngine", "vLLM, in the training process"),
    ):
        monkeypatch.setattr("svr_lightning.policy.policy.find_spec", lambda _, at=vllm: at)
        with caplog.at_level("INFO"):
            assert type(choose_engine(device)).__name__ == engine
        assert f"engine: {reason}" in caplog.text
