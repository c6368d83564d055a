"""The vLLM engine on its CPU build, against plain forward passes of transformers."""

import copy
import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import Qwen3_5Config

from svr_lightning.engines.base import Engine, Output, Request
from svr_lightning.engines.vllm import VLLMEngine, served_config
from svr_lightning.errors import ConfigError
from tests.engine_contract import *  # noqa: F403
from tests.engine_contract import run
from tests.models import with_adapter
from tests.requests import ask, mixed, plain_scores
from tests.tolerance import of_logprobs
from tests.vllm.conftest import Served, served_model, started


@pytest.fixture
def engine(plain: Served) -> Engine:
    return plain.engine


def logprobs(model: Any, request: Request, tokens: Sequence[int]) -> torch.Tensor:
    """[L, V] of a completion at the request's temperature, from one plain forward pass."""
    scores = plain_scores(model, request, tokens)
    return (scores / (request.sampling.temperature or 1.0)).log_softmax(-1)


def drawn(values: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """[L] Those of [L, V] values that belong to the tokens."""
    return values.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)


def mean_gap(model: Any, outputs: dict[int, Output]) -> float:
    """Between the engine's log-probabilities of mixed requests and a plain forward pass."""
    found = []
    for request in mixed():
        output = outputs[request.id]
        exact = drawn(logprobs(model, request, output.token_ids), output.token_ids)
        found.append(exact - torch.tensor(output.logprobs))
    return torch.cat(found).abs().mean().item()


def rounding(served: Served, request: Request, tokens: Sequence[int]) -> torch.Tensor:
    """[L, V] The differences that the engine's precision explains: bf16 for the hybrid."""
    exact = logprobs(served.model, request, tokens)
    if served.kind == "qwen3":
        scores = plain_scores(served.model, request, tokens) / (request.sampling.temperature or 1.0)
        return torch.full_like(exact, of_logprobs(served.model, scores))
    rounded = copy.deepcopy(served.model).to(torch.bfloat16)
    return 2 * (exact - logprobs(rounded, request, tokens)).abs()


def mean_rounding(served: Served, outputs: dict[int, Output]) -> float:
    """What it explains in :func:`mean_gap`."""
    tokens = {request.id: outputs[request.id].token_ids for request in mixed()}
    parts = [drawn(rounding(served, r, tokens[r.id]), tokens[r.id]) for r in mixed()]
    return torch.cat(parts).mean().item()


def assert_serves(served: Served) -> None:
    """Sampled and greedy completions are those of the policy."""
    outputs = run(served.engine, mixed())
    assert mean_gap(served.model, outputs) < mean_rounding(served, outputs)
    for request in mixed():
        if request.sampling.temperature:
            continue
        tokens = outputs[request.id].token_ids
        exact = logprobs(served.model, request, tokens)
        lost = exact.max(-1).values - drawn(exact, tokens)
        # Where two tokens are within rounding of each other, either may come first.
        assert lost.max() <= 2 * rounding(served, request, tokens).max()


def assert_serves_update(served: Served, step: int) -> None:
    """It serves changed weights once they are synced, and not before."""
    torch.manual_seed(step)
    with torch.no_grad():
        for parameter in served.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    stale = run(served.engine, mixed())
    # The update is far larger than what rounding could hide.
    assert mean_gap(served.model, stale) > 5 * mean_rounding(served, stale)
    served.engine.sync(served.model, step)
    assert_serves(served)


def test_it_serves_the_policy_before_and_after_each_update(served):
    assert_serves(served)
    for step in (1, 2):
        assert_serves_update(served, step)


def test_a_compiled_engine_serves_each_update_too(tmp_path, monkeypatch):
    monkeypatch.setattr("vllm.envs.VLLM_CACHE_ROOT", str(tmp_path))
    model = served_model("qwen3")
    served = Served("qwen3", model, started(model, options={"enforce_eager": False}))
    assert list(tmp_path.glob("torch_compile_cache/*/*"))
    assert_serves(served)
    for step in (1, 2):
        assert_serves_update(served, step)


def test_a_sync_that_rounds_the_weights_prints_nothing(served):
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    loggers = logging.getLogger("vllm")
    loggers.addHandler(handler)
    try:
        served.engine.sync(served.model, served.engine.version)
    finally:
        loggers.removeHandler(handler)
    assert said == []


def test_it_serves_an_adapter_merged_into_the_policy(served):
    pytest.importorskip("peft")
    adapted = with_adapter(served.model)
    served.engine.sync(adapted, 10)
    assert_serves(Served(served.kind, adapted, served.engine))
    without = run(served.engine, mixed())
    assert mean_gap(served.model, without) > 5 * mean_rounding(served, without)
    served.engine.sync(served.model, 11)
    assert_serves(served)


def test_more_prompts_than_one_step_can_read_are_sampled_alike(plain):
    many = [ask(i, length=400, max_tokens=3) for i in range(30)]  # 12,000 tokens
    together = run(plain.engine, many)
    for request in many[::7]:
        assert run(plain.engine, [request])[request.id].token_ids == together[request.id].token_ids


def test_only_the_stop_tokens_it_was_started_with_end_a_completion():
    model = served_model("qwen3")
    model.config.eos_token_id = model.generation_config.eos_token_id = 3
    engine = started(model)
    outputs = run(engine, [ask(i, max_tokens=60, temperature=1.5) for i in range(12)])
    assert any(3 in output.token_ids[:-1] for output in outputs.values())


def test_weights_cannot_change_under_a_running_request(plain):
    plain.engine.submit(ask(0))
    with pytest.raises(RuntimeError, match="while it completes requests"):
        plain.engine.sync(plain.model, 1)
    plain.engine.cancel()


def test_it_wakes_with_the_present_weights_and_never_with_older_ones():
    model = served_model("qwen3")
    engine = started(model, sleep_level=2)
    calls = []
    for name in ("sleep", "wake_up", "collective_rpc", "reset_prefix_cache"):
        _record(engine._llm, name, calls)
    engine.sync(model, 0)
    assert calls == ["collective_rpc reload_weights", "reset_prefix_cache"]  # it is awake
    calls.clear()
    assert engine.sleep()  # nothing to serve, so that the next use has to sync
    with pytest.raises(RuntimeError, match="has no weights"):
        engine.submit(ask(0))
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.5)
    engine.sync(model, 1)
    assert calls == [
        "sleep level=2",
        "wake_up tags=['weights']",
        "collective_rpc reload_weights",
        "wake_up tags=['kv_cache']",
        "reset_prefix_cache",
    ]
    assert_serves(Served("qwen3", model, engine))


def _record(target: Any, name: str, calls: list[str]) -> None:
    stock = getattr(target, name)

    def call(*args, **kwargs):
        shown = [str(a) for a in args if isinstance(a, str)]
        shown += [f"{k}={v}" for k, v in kwargs.items() if k in ("level", "tags")]
        calls.append(" ".join([name, *shown]))
        return stock(*args, **kwargs)

    setattr(target, name, call)


def test_an_untied_policy_is_not_served_by_a_tied_engine():
    model = served_model("qwen3")
    engine = started(model)
    engine.sync(model, 0)
    with pytest.raises(ConfigError, match="embeddings were tied or untied after"):
        engine.sync(served_model("qwen3", tied=False), 1)
    with pytest.raises(RuntimeError, match="has no weights"):  # not those of before either
        engine.submit(ask(0))


def test_a_model_that_vllm_cannot_run_is_one_line():
    engine = VLLMEngine(options={"kv_cache_dtype": "fp99"})
    with pytest.raises(ConfigError, match=r"model\.engine: vLLM cannot start .*cache_dtype"):
        engine.start(served_model("qwen3"), (), 512)
    for option, fault in (("no_such_argument", "no_such_argument"), ("load_format", "leave it")):
        engine = VLLMEngine(options={option: "auto"})
        with pytest.raises(ConfigError, match=fault):
            engine.start(served_model("qwen3"), (), 512)


@pytest.mark.parametrize("tied", [True, False])
def test_a_conditional_generation_class_serves_the_text_model_within_it(tied, monkeypatch):
    def wrapped_config(model, *, tied):
        wrapped = Qwen3_5Config(text_config=served_config(model, tied=tied).to_dict())
        wrapped.tie_word_embeddings = tied
        wrapped.architectures = ["Qwen3_5ForConditionalGeneration"]
        return wrapped

    monkeypatch.setattr("svr_lightning.engines.vllm.served_config", wrapped_config)
    model = served_model("hybrid", tied=tied)
    served = Served("hybrid", model, started(model))
    assert_serves(served)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1.2)
    served.engine.sync(model, 1)
    assert_serves(served)
