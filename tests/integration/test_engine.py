"""The transformers engine on tiny random models, against plain forward passes."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, Qwen3Config

from svr_lightning.core.types import Decoding, FinishReason
from svr_lightning.engines.base import Engine, Output, Request
from svr_lightning.engines.sampling import uniforms
from svr_lightning.engines.transformers import MAX_WAIT, TransformersEngine
from svr_lightning.errors import ConfigError
from tests.models import MODELS, tiny_qwen3
from tests.requests import ask, finish, mixed, plain_scores, prompt
from tests.scripted_engine import ScriptedEngine
from tests.tolerance import of_logprobs


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


def started(model: Any, max_batch: int = 64, stop: tuple[int, ...] = ()) -> TransformersEngine:
    engine = TransformersEngine(max_batch)
    engine.start(model, stop, 512)
    engine.sync(model, 5)
    return engine


def complete(
    model: Any, requests: Sequence[Request], max_batch: int = 64, stop: tuple[int, ...] = ()
) -> dict[int, Output]:
    engine = started(model, max_batch, stop)
    for request in requests:
        engine.submit(request)
    return finish(engine, len(requests))


# --- what is computed -------------------------------------------------------------------------


def test_log_probabilities_equal_those_of_one_plain_forward_pass(model: Any) -> None:
    requests = mixed()
    outputs = complete(model, requests, max_batch=3)
    for request in requests:
        output = outputs[request.id]
        tokens = torch.tensor(output.token_ids).unsqueeze(1)
        scores = plain_scores(model, request, output.token_ids)
        scores = scores / (request.sampling.temperature or 1.0)
        expected = scores.log_softmax(-1).gather(1, tokens).squeeze(1).tolist()
        assert output.logprobs == pytest.approx(expected, abs=of_logprobs(model, scores), rel=0)
        assert (
            len(output.logprobs) == len(output.token_ids) == request.sampling.max_completion_tokens
        )


def test_greedy_tokens_are_the_most_likely_ones(model: Any) -> None:
    requests = [ask(i, length=3 + 5 * i, temperature=0.0) for i in range(6)]
    outputs = complete(model, requests, max_batch=4)
    for request in requests:
        tokens = outputs[request.id].token_ids
        assert plain_scores(model, request, tokens).argmax(-1).tolist() == list(tokens)


def test_each_token_inverts_the_distribution_at_the_requests_own_uniform_number(
    model: Any,
) -> None:
    (output,) = complete(model, [ask(3, temperature=0.8)]).values()
    scores = plain_scores(model, ask(3), output.token_ids) / 0.8
    probabilities, allowed = scores.softmax(-1).double(), of_logprobs(model, scores)
    for row, token, draw in zip(probabilities, output.token_ids, uniforms(3, 12), strict=True):
        below, upto = row[:token].sum().item(), row[: token + 1].sum().item()
        assert below - allowed <= draw <= upto + allowed


def test_a_prompt_that_several_requests_share_is_read_once(model: Any) -> None:
    read = []
    with torch.no_grad():
        hook = model.register_forward_pre_hook(
            lambda _, __, kwargs: read.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
        )
        shared = [
            Request(
                id=i,
                prompt_ids=prompt(9 + i % 2),
                sampling=Decoding(max_completion_tokens=2, temperature=0.0),
            )
            for i in range(6)
        ]
        outputs = complete(model, shared)
        hook.remove()
    assert read == [(2, 10), (6, 1)]
    for request in shared:
        tokens = outputs[request.id].token_ids
        assert plain_scores(model, request, tokens).argmax(-1).tolist() == list(tokens)


# --- independence -----------------------------------------------------------------------------


@pytest.mark.parametrize("max_batch", [1, 2, 5, 64])
def test_tokens_do_not_depend_on_how_many_run_at_once(model: Any, max_batch: int) -> None:
    alone = {request.id: complete(model, [request])[request.id] for request in mixed()}
    together = complete(model, mixed(), max_batch)
    for index, output in together.items():
        assert output.token_ids == alone[index].token_ids
        request = mixed()[index]
        scores = plain_scores(model, request, output.token_ids)
        allowed = of_logprobs(model, scores / (request.sampling.temperature or 1.0))
        assert output.logprobs == pytest.approx(alone[index].logprobs, abs=allowed, rel=0)


def test_tokens_do_not_depend_on_the_order_of_submission(model: Any) -> None:
    forth = complete(model, mixed(), max_batch=4)
    back = complete(model, mixed()[::-1], max_batch=4)
    assert {i: o.token_ids for i, o in forth.items()} == {i: o.token_ids for i, o in back.items()}


def test_equal_seeds_give_equal_tokens_and_different_seeds_do_not(model: Any) -> None:
    requests = [
        Request(
            id=index,
            prompt_ids=prompt(9),
            sampling=Decoding(max_completion_tokens=12, temperature=1.0),
            seed=seed,
        )
        for index, seed in enumerate([1, 1, 2, 3])
    ]
    one, again, two, three = (complete(model, requests)[i].token_ids for i in range(4))
    assert one == again
    assert len({one, two, three}) == 3


def test_a_shorter_limit_gives_a_prefix_of_the_same_completion(model: Any) -> None:
    long = complete(model, [ask(1, max_tokens=20)])[1].token_ids
    short = complete(model, [ask(1, max_tokens=7)])[1].token_ids
    assert short == long[:7]


# --- continuous batching ----------------------------------------------------------------------


def test_requests_may_arrive_between_steps(model: Any) -> None:
    requests, outputs = mixed(), {}
    engine = started(model, max_batch=4)
    for request in requests:
        engine.submit(request)
        outputs |= {output.id: output for output in engine.step()}
    outputs |= finish(engine, len(requests) - len(outputs))
    expected = complete(model, requests)
    assert {i: o.token_ids for i, o in outputs.items()} == {
        i: o.token_ids for i, o in expected.items()
    }


def test_a_late_request_joins_a_running_batch_and_does_not_wait_for_its_end() -> None:
    engine = started(tiny_qwen3(), max_batch=64)
    for index in range(20):
        engine.submit(ask(index, max_tokens=100))
    engine.step()
    engine.submit(ask(20, max_tokens=5))
    finished = [step for step in range(1, 60) if any(o.id == 20 for o in engine.step())]
    assert len(finished) == 1
    assert finished[0] <= MAX_WAIT + 5


def test_no_more_run_at_once_than_there_are_slots() -> None:
    engine = started(tiny_qwen3(), max_batch=3)
    widths: list[int] = []
    forward = engine._model.forward

    def watch(*args: Any, **kwargs: Any) -> Any:
        widths.append(kwargs["input_ids"].shape[0])
        return forward(*args, **kwargs)

    engine._model.forward = watch
    for request in mixed():
        engine.submit(request)
    finish(engine, 14)
    assert max(widths) == 3


def test_an_idle_engine_returns_nothing(model: Any) -> None:
    engine = started(model)
    assert engine.step() == []
    engine.submit(ask(0, max_tokens=2))
    finish(engine, 1)
    assert engine.step() == []


# --- why a completion ends --------------------------------------------------------------------


def stop_at(model: Any, request: Request) -> tuple[int, int]:
    """A token some way into the request's completion, and its place there, from 1."""
    tokens = complete(model, [request])[request.id].token_ids
    position = next(i for i in range(3, len(tokens)) if tokens[i] not in tokens[:i])
    return tokens[position], position + 1


def test_a_stop_token_ends_a_completion_and_belongs_to_it(model: Any) -> None:
    token, length = stop_at(model, ask(2, temperature=1.5))
    output = complete(model, [ask(2, temperature=1.5)], stop=(token,))[2]
    assert (len(output.token_ids), output.token_ids[-1]) == (length, token)
    assert len(output.logprobs) == length
    assert output.finish_reason is FinishReason.STOP


def test_a_stop_token_in_the_last_place_allowed_is_still_a_stop(model: Any) -> None:
    token, length = stop_at(model, ask(2, temperature=1.5))
    request = ask(2, temperature=1.5, max_tokens=length)
    assert complete(model, [request], stop=(token,))[2].finish_reason is FinishReason.STOP


def test_the_limit_truncates_a_completion_one_token_earlier(model: Any) -> None:
    token, length = stop_at(model, ask(2, temperature=1.5))
    output = complete(model, [ask(2, temperature=1.5, max_tokens=length - 1)], stop=(token,))[2]
    assert output.finish_reason is FinishReason.LENGTH
    assert len(output.token_ids) == length - 1


def test_a_first_token_can_be_the_last(model: Any) -> None:
    output = complete(model, [ask(4, max_tokens=1)])[4]
    assert (len(output.token_ids), output.finish_reason) == (1, FinishReason.LENGTH)
    stopped = complete(model, [ask(4)], stop=output.token_ids)[4]
    assert (stopped.token_ids, stopped.finish_reason) == (output.token_ids, FinishReason.STOP)


def test_cancelling_drops_what_is_queued_and_what_runs(model: Any) -> None:
    engine = started(model, max_batch=2)
    for request in mixed():
        engine.submit(request)
    engine.step()
    engine.cancel()
    assert engine.step() == []
    engine.submit(ask(50))
    assert finish(engine, 1)[50] == complete(model, [ask(50)])[50]


def test_a_dropped_request_leaves_the_others_alone(model: Any) -> None:
    requests = [ask(index, max_tokens=12) for index in range(5)]
    engine = started(model, max_batch=3)
    for request in requests:
        engine.submit(request)
    engine.step()
    for gone in (1, 4):  # one runs, one is queued
        engine.drop(gone)
    outputs = finish(engine, 3)
    assert engine.step() == []
    expected = complete(model, requests, max_batch=3)
    assert {i: o.token_ids for i, o in outputs.items()} == {
        i: expected[i].token_ids for i in (0, 2, 3)
    }


def test_it_says_in_what_type_the_model_computes_where_it_is_now() -> None:
    engine, model = TransformersEngine(), tiny_qwen3()
    engine.start(model, (1,), 64)
    assert engine.dtype == torch.float32
    model.to("meta")  # any device but the CPU computes in bf16
    assert engine.dtype == torch.bfloat16


def test_a_completion_names_the_version_of_the_weights_that_sampled_it(model: Any) -> None:
    engine = TransformersEngine()
    assert engine.version == -1
    engine.start(model, (), 512)
    for version in (0, 7):
        engine.sync(model, version)
        engine.submit(ask(0, max_tokens=2))
        assert finish(engine, 1)[0].version == version


@pytest.mark.parametrize("engine", [TransformersEngine(), ScriptedEngine(lambda _: [1])])
def test_both_engines_keep_to_the_protocol(engine: object) -> None:
    assert isinstance(engine, Engine)


# --- top-k and top-p --------------------------------------------------------------------------


@pytest.mark.parametrize("restriction", [{"top_k": 1}, {"top_p": 1e-6}])
def test_only_the_likeliest_token_left_is_greedy_decoding(
    model: Any, restriction: dict[str, float]
) -> None:
    greedy = complete(model, [ask(i, temperature=0.0) for i in range(4)])
    narrow = complete(model, [ask(i, temperature=1.4, **restriction) for i in range(4)])
    assert {i: o.token_ids for i, o in narrow.items()} == {
        i: o.token_ids for i, o in greedy.items()
    }


def test_a_nucleus_limits_what_is_drawn_and_not_what_log_probabilities_refer_to(
    model: Any,
) -> None:
    request = ask(1, max_tokens=25, temperature=1.5, top_p=0.5)
    output = complete(model, [request])[1]
    scores = plain_scores(model, request, output.token_ids) / 1.5
    full = scores.log_softmax(-1)
    chosen = full.gather(1, torch.tensor(output.token_ids).unsqueeze(1)).squeeze(1)
    allowed = of_logprobs(model, scores)
    assert output.logprobs == pytest.approx(chosen.tolist(), abs=allowed, rel=0)
    for row, logprob in zip(full, chosen, strict=True):
        # Everything likelier than a token of the nucleus weighs less than top_p.
        assert row[row > logprob + allowed].exp().sum() < 0.5 + allowed


# --- what it cannot serve ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(
            num_hidden_layers=2, use_sliding_window=True, sliding_window=8, max_window_layers=0
        ),
        Gemma3TextConfig(num_hidden_layers=6),
    ],
    ids=["all layers", "some layers"],
)
def test_a_sliding_window_is_refused_before_anything_is_sampled(config: Any) -> None:
    class Model:
        pass

    model = Model()
    model.config = config  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=f"cannot serve '{config.model_type}'.*SlidingWindow"):
        TransformersEngine().start(model, (), 512)
