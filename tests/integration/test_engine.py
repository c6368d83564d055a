"""The transformers engine on tiny random models, against plain forward passes."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, Qwen3Config

from svr_lightning.core.types import Decoding, FinishReason
from svr_lightning.engines import batch_cache
from svr_lightning.engines.base import Engine, Output, Request
from svr_lightning.engines.sampling import uniforms
from svr_lightning.engines.transformers import MAX_WAIT, TransformersEngine
from svr_lightning.errors import ConfigError
from tests.engine_contract import *  # noqa: F403
from tests.engine_contract import STOP, run
from tests.models import MODELS, tiny_qwen3
from tests.requests import ask, mixed, plain_scores
from tests.tolerance import of_logprobs


@pytest.fixture(scope="module", params=list(MODELS))
def model(request) -> Any:
    return MODELS[request.param]()


def started(model: Any, max_batch: int = 64, stop: tuple[int, ...] = ()) -> TransformersEngine:
    engine = TransformersEngine(max_batch)
    engine.start(model, stop, 512)
    engine.sync(model, 5)
    return engine


def complete(model: Any, requests: Sequence[Request], **options: Any) -> dict[int, Output]:
    return run(started(model, **options), requests)


@pytest.fixture
def engine(model: Any) -> Engine:
    return started(model, max_batch=4, stop=(STOP,))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_every_stop_token_ends_a_completion(model, place):
    request = ask(3, temperature=0.0)
    free = complete(model, [request])[3].token_ids
    unused = [token for token in range(40) if token not in free][:2]
    stop = (*unused[:place], free[2], *unused[place:])
    output = complete(model, [request], stop=stop)[3]
    assert output.token_ids == free[: free.index(free[2]) + 1]
    assert output.finish_reason == FinishReason.STOP


def check(model: Any, requests: Sequence[Request], outputs: dict[int, Output]) -> None:
    """Log-probabilities, and tokens that are decoded greedily, are those of one forward pass."""
    for request in requests:
        output, temperature = outputs[request.id], request.sampling.temperature
        tokens = torch.tensor(output.token_ids).unsqueeze(1)
        scores = plain_scores(model, request, output.token_ids) / (temperature or 1.0)
        expected = scores.log_softmax(-1).gather(1, tokens).squeeze(1).tolist()
        assert output.logprobs == pytest.approx(expected, abs=of_logprobs(model, scores), rel=0)
        assert temperature > 0 or scores.argmax(-1).tolist() == list(output.token_ids)


def test_log_probabilities_equal_those_of_one_plain_forward_pass(model):
    requests = mixed()
    outputs = complete(model, requests, max_batch=3)
    check(model, requests, outputs)
    for request in requests:
        assert len(outputs[request.id].token_ids) == request.sampling.max_completion_tokens


def test_each_token_inverts_the_distribution_at_the_requests_own_uniform_number(model):
    (output,) = complete(model, [ask(3, temperature=0.8)]).values()
    scores = plain_scores(model, ask(3), output.token_ids) / 0.8
    probabilities, allowed = scores.softmax(-1).double(), of_logprobs(model, scores)
    for row, token, draw in zip(probabilities, output.token_ids, uniforms(3, 12), strict=True):
        below, upto = row[:token].sum().item(), row[: token + 1].sum().item()
        assert below - allowed <= draw <= upto + allowed


def test_a_late_request_joins_a_running_batch_and_does_not_wait_for_its_end():
    engine = started(tiny_qwen3(), max_batch=64)
    for index in range(20):
        engine.submit(ask(index, max_tokens=100))
    engine.step()
    engine.submit(ask(20, max_tokens=5))
    finished = [step for step in range(1, 60) if 20 in engine.step()]
    assert len(finished) == 1
    assert finished[0] <= MAX_WAIT + 5


def test_no_more_run_at_once_than_there_are_slots():
    _, shapes = read(tiny_qwen3(), mixed(), max_batch=3)
    assert max(rows for rows, _ in shapes) == 3


def test_it_says_in_what_type_the_model_computes_where_it_is_now():
    engine, model = TransformersEngine(), tiny_qwen3()
    engine.start(model, (1,), 64)
    assert engine.dtype == torch.float32
    model.to("meta")  # any device but the CPU computes in bf16
    assert engine.dtype == torch.bfloat16


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
def test_a_sliding_window_is_refused_before_anything_is_sampled(config):
    with pytest.raises(ConfigError, match=f"cannot serve '{config.model_type}'.*SlidingWindow"):
        TransformersEngine().start(SimpleNamespace(config=config), (), 512)


BEGINNING = tuple(range(20))
PROMPTS = [
    BEGINNING + (1,) * 10,
    BEGINNING + (2,) * 5,
    (30,) * 12,
    BEGINNING + (3,) * 9,
    BEGINNING[:15] + (4,) * 3,
    BEGINNING + (2,) * 5,
]


def greedy(prompts: list[tuple[int, ...]]) -> list[Request]:
    sampling = Decoding(max_completion_tokens=8, temperature=0.0)
    return [Request(id=i, prompt_ids=p, sampling=sampling) for i, p in enumerate(prompts)]


def read(
    model: Any, requests: list[Request], **options: Any
) -> tuple[dict[int, Output], list[tuple[int, int]]]:
    """The outputs, and the shapes of the token ids that went through the model."""
    shapes = []
    hook = model.register_forward_pre_hook(
        lambda _, __, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    outputs = complete(model, requests, **options)
    hook.remove()
    return outputs, shapes


def test_a_beginning_of_several_prompts_is_read_once_where_all_layers_keep_columns(model):
    outputs, shapes = read(model, greedy(PROMPTS))
    if "linear_attention" in model.config.layer_types:  # its state is of all tokens so far
        assert shapes[:2] == [(5, 30), (6, 1)]
    else:  # 15 tokens are too few; the ends of 5 and 9 tokens follow
        assert shapes[:3] == [(3, 30), (2, 9), (6, 1)]
    check(model, greedy(PROMPTS), outputs)


def test_no_more_tokens_go_through_the_model_at_once_than_one_chunk_or_prompt_has(
    model, monkeypatch
):
    monkeypatch.setattr(batch_cache, "CHUNK", 16)
    prompts = [(number,) * length for number, length in enumerate([3, 20, 5, 5, 2, 6, 8, 8])]
    outputs, shapes = read(model, greedy(prompts))
    assert shapes[:5] == [(3, 5), (2, 6), (2, 8), (1, 20), (8, 1)]
    check(model, greedy(prompts), outputs)


def test_ends_of_several_chunks_copy_from_prompts_of_several_lengths(model, monkeypatch):
    monkeypatch.setattr(batch_cache, "CHUNK", 24)
    generator = torch.Generator().manual_seed(0)

    def random(count):
        return tuple(torch.randint(0, 40, (count,), generator=generator).tolist())

    prompts = [
        beginning + random(2 + 3 * number)
        for beginning in (random(17), random(24), random(33))
        for number in range(5)
    ]
    outputs, _ = read(model, greedy(prompts))
    check(model, greedy(prompts), outputs)
