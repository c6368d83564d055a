"""The token protocol of vLLM's servers on plain values."""

import json
from typing import Any

import pytest

from svr_lightning.core.types import FinishReason
from svr_lightning.engines.generate_protocol import (
    Facts,
    ServerError,
    generate_body,
    read_facts,
    read_generation,
)
from tests.requests import ask
from tests.token_server import EOS


def answer(**changes: Any) -> bytes:
    choice: dict[str, Any] = {
        "token_ids": [3, 5],
        "logprobs": {"content": [{"logprob": -0.25}, {"logprob": -1.5}]},
        "finish_reason": "length",
        "weight_versions": [{"version": "run-4", "start": 0, "end": 2}],
        **changes,
    }
    return json.dumps({"choices": [choice]}).encode()


def test_an_answer_is_tokens_log_probabilities_and_how_it_ended() -> None:
    assert read_generation(answer(), "run-4", 2, 6) == ((3, 5), (-0.25, -1.5), FinishReason.LENGTH)


OTHERS = {
    "another version": [{"version": "run-3", "start": 0, "end": 2}],
    "two versions": [
        {"version": "run-3", "start": 0, "end": 1},
        {"version": "run-4", "start": 1, "end": 2},
    ],
    "no version": None,
}


@pytest.mark.parametrize("spans", OTHERS.values(), ids=OTHERS)
def test_an_answer_of_other_weights_is_refused(spans: Any) -> None:
    with pytest.raises(ServerError, match=r"answers with the weights .* instead of run-4"):
        read_generation(answer(weight_versions=spans), "run-4", 2, 6)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[" * 100_000,
        b'{"choices": []}',
        answer(finish_reason="abort"),
        answer(logprobs=None),
        answer(token_ids=["x", "y"]),
        answer(token_ids=[3]),
        answer(token_ids=[3, 5.0]),
        answer(token_ids=[3, float("inf")]),
        answer(token_ids=[3, -1]),
        answer(token_ids=[3, 6]),
        answer(token_ids=[3, True]),
        answer(token_ids=[], logprobs={"content": []}),
        answer(token_ids=[3] * 3, logprobs={"content": [{"logprob": -1.0}] * 3}),
        answer(logprobs={"content": [{"logprob": -0.25}, {"logprob": 3.0}]}),
        answer(logprobs={"content": [{"logprob": -0.25}, {"logprob": -(10**400)}]}),
        answer(logprobs={"content": [{"logprob": -0.25}, {"logprob": -9999.0}]}),
        answer(logprobs={"content": [{"logprob": -0.25}, {"logprob": float("nan")}]}),
    ],
)
def test_an_answer_that_cannot_be_trained_on_is_refused(body: bytes) -> None:
    with pytest.raises(ServerError):
        read_generation(body, "run-4", 2, 6)


def info(**model: Any) -> bytes:
    options = {"logprobs_mode": "processed_logprobs", "max_model_len": 512}
    config = {
        "model_config": {**options, "dtype": "torch.bfloat16", "multimodal_config": None, **model},
        "scheduler_config": {"max_num_seqs": 128},
        "device_config": {"device": "cuda"},
    }
    return json.dumps({"vllm_config": config}).encode()


def test_a_server_reports_what_it_is() -> None:
    assert read_facts(info(), 512) == Facts("bfloat16", 128, wrapped=False, on_cpu=False)
    assert read_facts(info(multimodal_config={}), 512).wrapped


def test_a_server_that_cannot_train_is_refused_with_the_option_that_fixes_it() -> None:
    with pytest.raises(ServerError, match="--logprobs-mode raw_logprobs; start it with processed_"):
        read_facts(info(logprobs_mode="raw_logprobs"), 512)
    with pytest.raises(ServerError, match=r"--max-model-len 512, less than .*max_model_len=513"):
        read_facts(info(), 513)
    for body in (b"", b"{}", b'{"vllm_config": "text"}'):
        with pytest.raises(ServerError, match="does not describe its model"):
            read_facts(body, 512)


def test_a_request_has_its_sampling_and_what_alone_ends_it() -> None:
    body = generate_body(ask(3, seed=2**63 - 1, top_k=5), (EOS, 9))
    assert body["token_ids"] == list(ask(3).prompt_ids)
    sent = body["sampling_params"]
    assert (sent["seed"], sent["top_k"], sent["temperature"]) == (2**63 - 1, 5, 1.0)
    assert (sent["stop_token_ids"], sent["ignore_eos"], sent["logprobs"]) == ([EOS, 9], True, 0)
