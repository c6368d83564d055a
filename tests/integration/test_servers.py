"""An engine made of several servers, each of them a real HTTP server, healthy and faulty."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from svr_lightning.clients.chat_answers import ServerError
from svr_lightning.core.types import FinishReason
from svr_lightning.engines.base import Output
from svr_lightning.engines.servers import Facts, ServersEngine, read_facts, read_generation
from svr_lightning.engines.vllm import sampling_params
from svr_lightning.errors import ConfigError
from tests import forked
from tests.limits import files_no_longer_than
from tests.models import tiny_qwen3
from tests.requests import ask, finish
from tests.token_server import EOS, TokenServer, drawn


@pytest.fixture
def servers() -> Iterator[list[TokenServer]]:
    both = [TokenServer(), TokenServer()]
    yield both
    for server in both:
        server.stop()


@pytest.fixture
def model() -> Any:
    return tiny_qwen3(tie_word_embeddings=False)


def engine_of(servers: list[TokenServer], folder: Path, model: Any, **options: Any) -> Any:
    """An engine that serves ``model`` as of step 0."""
    engine = ServersEngine([server.url for server in servers], str(folder / "weights"), **options)
    engine.start(model, (EOS,), 512)
    engine.sync(model, 0)
    return engine


def rollout(engine: ServersEngine, count: int = 20) -> dict[int, Output]:
    for number in range(count):
        engine.submit(ask(number))
    return finish(engine, count)


def expected(version: int = 0, count: int = 20) -> dict[int, Output]:
    return {
        number: Output(
            id=number,
            token_ids=tuple(drawn(ask(number).prompt_ids, ask(number).seed)),
            logprobs=(-0.5,) * 5,
            finish_reason=FinishReason.STOP,
            version=version,
        )
        for number in range(count)
    }


def test_requests_that_are_cancelled_do_not_make_their_servers_suspect(
    servers, model, tmp_path, recwarn
):
    for server in servers:
        server.info["scheduler_config"]["max_num_seqs"] = 32
    engine = engine_of(servers, tmp_path, model)
    for server in servers:
        server.fault = "hang"
    for number in range(64):
        engine.submit(ask(number))
    time.sleep(0.5)  # they are at the servers
    engine.cancel()
    assert engine.faults == {}
    assert not [one for one in recwarn if "is left" in str(one.message)]


def test_servers_share_a_rollout_of_the_weights_that_they_were_given(servers, model, tmp_path):
    for server in servers:
        server.info["model_config"]["dtype"] = "torch.bfloat16"
    engine = engine_of(servers, tmp_path, model)
    assert (engine.max_batch, engine.dtype) == (8, torch.bfloat16)
    assert rollout(engine) == expected()
    counts = [len(server.bodies) for server in servers]
    assert sum(counts) == 20
    assert min(counts) >= 4  # its slots were filled once at least
    for server in servers:
        state = dict(model.named_parameters())
        assert server.weights.keys() == state.keys()
        for name, value in server.weights.items():
            assert torch.equal(value, state[name].to(torch.bfloat16))
    with torch.no_grad():
        model.model.norm.weight.fill_(2.0)
    engine.sync(model, 1)
    assert rollout(engine) == expected(version=1)
    assert all((server.weights["model.norm.weight"] == 2).all() for server in servers)
    assert list((tmp_path / "weights").iterdir()) == []
    engine.sleep()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("503", "/inference/v1/generate: HTTP 503, too bad"),
        ("drop", "RemoteProtocolError"),
        ("restarted", "it answers with the weights default instead of"),
        ("hang", "/inference/v1/generate: no answer within 4 seconds"),
    ],
)
def test_a_faulty_server_is_named_and_left_out_until_it_answers_again(
    servers, model, tmp_path, fault, message
):
    engine = engine_of(servers, tmp_path, model, timeout=4.0 if fault == "hang" else 60.0)
    servers[0].fault = fault
    with pytest.warns(UserWarning, match=message) as warned:
        assert rollout(engine) == expected()
    named = [str(one.message) for one in warned if "left out" in str(one.message)]
    assert len(named) == 1
    assert named[0].startswith(f"{servers[0].url} is left out until a later sync")
    servers[0].fault = ""
    before = len(servers[0].bodies)
    assert rollout(engine) == expected()
    assert len(servers[0].bodies) == before  # it may have other weights
    engine.sync(model, 1)
    assert rollout(engine) == expected(version=1)
    assert len(servers[0].bodies) > before
    engine.sleep()


def test_without_a_server_the_run_ends_and_says_why_of_each(servers, model, tmp_path):
    engine = engine_of(servers, tmp_path, model)
    servers[0].fault, servers[1].fault = "drop", "500"
    first, second = (server.url for server in servers)
    with (
        pytest.warns(UserWarning, match="is left out"),
        pytest.raises(ConfigError, match=f"no server .*{first}: .*Remote.*; {second}: .*HTTP 500"),
    ):
        rollout(engine)
    engine.cancel()
    for server in servers:
        server.fault = ""
    engine.sync(model, 0)
    assert rollout(engine) == expected()
    engine.sleep()


def test_a_request_is_repeated_after_one_fault(servers, model, tmp_path, recwarn):
    only = servers[:1]
    engine = engine_of(only, tmp_path, model)
    only[0].fault, only[0].faulty = "drop", 1
    assert rollout(engine, 1) == expected(count=1)
    assert len(only[0].bodies) == 2
    assert not [one for one in recwarn if "left out" in str(one.message)]
    engine.sleep()


def test_a_server_may_come_later_and_has_to_fit_then(servers, model, tmp_path):
    servers[0].fault = "gone"
    with pytest.warns(UserWarning, match=f"{servers[0].url} is left out .*disconnected"):
        engine = engine_of(servers, tmp_path, model)
    assert engine.max_batch == 4
    servers[0].fault = ""
    servers[0].info["model_config"]["dtype"] = "torch.float16"
    engine.sync(model, 1)
    assert engine.max_batch == 4
    servers[0].info["model_config"]["dtype"] = "torch.float32"
    engine.sync(model, 2)
    assert engine.max_batch == 8
    assert rollout(engine) == expected(version=2)
    engine.sleep()


def test_a_folder_that_a_server_does_not_see_is_named(servers, model, tmp_path, monkeypatch):
    def lost(folder: Path) -> None:
        raise ConnectionError

    monkeypatch.setattr(servers[0], "_load", lost)
    with pytest.warns(UserWarning, match=r"it did not load /.*; give a folder with the same path"):
        engine = engine_of(servers, tmp_path, model)
    assert rollout(engine) == expected()
    engine.sleep()


def test_what_cannot_work_is_refused_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match="give at least one server, and none twice"):
        ServersEngine([], str(tmp_path))
    with pytest.raises(ConfigError, match="none twice"):
        ServersEngine(["http://a:1", "http://a:1/v1/"], str(tmp_path))
    with pytest.raises(ConfigError, match=r"model\.engine\.urls is no address"):
        ServersEngine(["a"], str(tmp_path))
    tied, on_cpu = tiny_qwen3(), TokenServer(device="cpu")
    with (
        pytest.warns(UserWarning, match="is left out"),
        pytest.raises(ConfigError, match="the policy's output layer is its embedding"),
    ):
        engine_of([on_cpu], tmp_path, tied)
    on_cpu.stop()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"model\.engine\.folder=.*/file/x: .*/file is a file"):
        ServersEngine(["http://a:1"], str(tmp_path / "file" / "x"))


def test_a_folder_that_can_no_longer_be_written_to_is_named(servers, model, tmp_path):
    engine = engine_of(servers[:1], tmp_path, model)
    with (
        files_no_longer_than(1_000),
        pytest.raises(ConfigError, match=r"model\.engine\.folder=.* written \(.*File too large"),
    ):
        engine.sync(model, 1)
    assert list((tmp_path / "weights").iterdir()) == []
    (tmp_path / "weights").rmdir()
    (tmp_path / "weights").touch()
    with pytest.raises(ConfigError, match=r"model\.engine\.folder=.* cannot be written"):
        engine.sync(model, 2)


def test_no_request_is_taken_without_weights_and_none_of_these_change_meanwhile(
    servers, model, tmp_path
):
    engine = engine_of(servers, tmp_path, model)
    with pytest.raises(RuntimeError, match="has to be synced first"):
        ServersEngine(["http://127.0.0.1:1"], str(tmp_path)).submit(ask(0))
    engine.submit(ask(0))
    with pytest.raises(RuntimeError, match="while it completes requests"):
        engine.sync(model, 1)
    assert finish(engine, 1) == expected(count=1)
    engine.sleep()


def test_two_processes_push_once_and_share_the_slots(servers, tmp_path):
    urls = ",".join(server.url for server in servers)
    forked.finish_ranks(tmp_path, str(tmp_path / "weights"), urls, module="tests.servers_rank")
    state = dict(tiny_qwen3(tie_word_embeddings=False).named_parameters())
    for server in servers:
        assert server.pushes == 1
        assert server.weights.keys() == state.keys()
        assert all(torch.equal(value, state[name]) for name, value in server.weights.items())
    assert sum(len(server.bodies) for server in servers) == 2 * 20


def answer(**changes: Any) -> bytes:
    choice = {
        "token_ids": [3, 5],
        "logprobs": {"content": [{"logprob": -0.25}, {"logprob": -1.5}]},
        "finish_reason": "length",
        "weight_versions": [{"version": "run-4", "start": 0, "end": 2}],
        **changes,
    }
    return json.dumps({"choices": [choice]}).encode()


def read(body: bytes) -> Output:
    """Of a request for two tokens, from a vocabulary of six."""
    return read_generation(body, ask(8, max_tokens=2), "run-4", 9, 6)


def test_an_answer_is_tokens_log_probabilities_and_how_it_ended():
    assert read(answer()) == Output(
        id=8, token_ids=(3, 5), logprobs=(-0.25, -1.5), finish_reason=FinishReason.LENGTH, version=9
    )


OTHERS = {
    "another version": [{"version": "run-3", "start": 0, "end": 2}],
    "two versions": [
        {"version": "run-3", "start": 0, "end": 1},
        {"version": "run-4", "start": 1, "end": 2},
    ],
    "no version": None,
}


@pytest.mark.parametrize("spans", OTHERS.values(), ids=OTHERS)
def test_an_answer_of_other_weights_is_refused(spans):
    with pytest.raises(ServerError, match=r"answers with the weights .* instead of run-4"):
        read(answer(weight_versions=spans))


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
        *(
            answer(logprobs={"content": [{"logprob": -0.25}, {"logprob": wrong}]})
            for wrong in (3.0, -(10**400), -9999.0, float("nan"))
        ),
    ],
)
def test_an_answer_that_cannot_be_trained_on_is_refused(body):
    with pytest.raises(ServerError):
        read(body)


def info(**model: Any) -> bytes:
    options = {"logprobs_mode": "processed_logprobs", "max_model_len": 512}
    config = {
        "model_config": {**options, "dtype": "torch.bfloat16", "multimodal_config": None, **model},
        "scheduler_config": {"max_num_seqs": 128},
        "device_config": {"device": "cuda"},
    }
    return json.dumps({"vllm_config": config}).encode()


def facts(body: bytes) -> Facts:
    return read_facts(body, 512, tied=True)


def test_a_server_reports_what_it_is():
    assert facts(info()) == Facts(torch.bfloat16, wrapped=False, slots=128)
    assert facts(info(multimodal_config={})).wrapped


def test_a_server_that_cannot_train_is_refused_with_the_option_that_fixes_it():
    with pytest.raises(ServerError, match="--logprobs-mode raw_logprobs; start it with processed_"):
        facts(info(logprobs_mode="raw_logprobs"))
    with pytest.raises(ServerError, match=r"--max-model-len 512, less than .*max_model_len=513"):
        read_facts(info(), 513, tied=True)
    unlimited = info().replace(b"512", b"Infinity")
    for body in (b"", b"{}", b'{"vllm_config": "text"}', unlimited, info(dtype="torch.auto")):
        with pytest.raises(ServerError, match="does not describe its model"):
            facts(body)


def test_a_request_has_its_sampling_and_what_alone_ends_it():
    sent = sampling_params(ask(3, seed=2**63 - 1, top_k=5), (EOS, 9))
    assert (sent["seed"], sent["top_k"], sent["temperature"]) == (2**63 - 1, 5, 1.0)
    assert (sent["stop_token_ids"], sent["ignore_eos"], sent["logprobs"]) == ([EOS, 9], True, 0)
