"""Prompts that begin alike, read by the transformers engine on tiny random models."""

from typing import Any

import pytest
import torch

from svr_lightning.core.types import Decoding
from svr_lightning.engines import prefill
from svr_lightning.engines.base import Output, Request
from svr_lightning.engines.transformers import TransformersEngine
from tests.models import MODELS
from tests.requests import finish, plain_scores
from tests.tolerance import of_logprobs

BEGINNING = tuple(range(20))
PROMPTS = [
    BEGINNING + (1,) * 10,
    BEGINNING + (2,) * 5,
    (30,) * 12,
    BEGINNING + (3,) * 9,
    BEGINNING[:15] + (4,) * 3,
    BEGINNING + (2,) * 5,
]
Shape = tuple[int, int]


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


def ask(prompts: list[tuple[int, ...]]) -> list[Request]:
    sampling = Decoding(max_completion_tokens=8, temperature=0.0)
    return [Request(id=i, prompt_ids=p, sampling=sampling) for i, p in enumerate(prompts)]


def complete(model: Any, requests: list[Request]) -> tuple[dict[int, Output], list[Shape]]:
    """The outputs, and the shapes of the token ids that went through the model."""
    shapes: list[Shape] = []
    hook = model.register_forward_pre_hook(
        lambda _, __, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    engine = TransformersEngine()
    engine.start(model, (), 512)
    engine.sync(model, 0)
    for request in requests:
        engine.submit(request)
    outputs = finish(engine, len(requests))
    hook.remove()
    return outputs, shapes


def check(model: Any, requests: list[Request], outputs: dict[int, Output]) -> None:
    """Tokens and log-probabilities are those of one plain forward pass."""
    for request in requests:
        output = outputs[request.id]
        scores = plain_scores(model, request, output.token_ids)
        expected = scores.log_softmax(-1).max(-1).values.tolist()
        assert scores.argmax(-1).tolist() == list(output.token_ids)
        assert output.logprobs == pytest.approx(expected, abs=of_logprobs(model, scores), rel=0)


def test_a_beginning_of_several_prompts_is_read_once_where_all_layers_keep_columns(
    model: Any,
) -> None:
    outputs, shapes = complete(model, ask(PROMPTS))
    if "linear_attention" in model.config.layer_types:  # its state is of all tokens so far
        assert shapes[:2] == [(5, 30), (6, 1)]
    else:  # 15 tokens are too few; the ends of 5 and 9 tokens follow
        assert shapes[:3] == [(3, 30), (2, 9), (6, 1)]
    check(model, ask(PROMPTS), outputs)


def test_no_more_tokens_go_through_the_model_at_once_than_one_chunk_or_prompt_has(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "CHUNK", 16)
    prompts = [(number,) * length for number, length in enumerate([3, 20, 5, 5, 2, 6, 8, 8])]
    outputs, shapes = complete(model, ask(prompts))
    assert shapes[:5] == [(3, 5), (2, 6), (2, 8), (1, 20), (8, 1)]
    check(model, ask(prompts), outputs)


def test_ends_of_several_chunks_copy_from_prompts_of_several_lengths(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "CHUNK", 24)
    generator = torch.Generator().manual_seed(0)

    def random(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 40, (count,), generator=generator).tolist())

    prompts = [
        beginning + random(2 + 3 * number)
        for beginning in (random(17), random(24), random(33))
        for number in range(5)
    ]
    outputs, _ = complete(model, ask(prompts))
    check(model, ask(prompts), outputs)
