"""Steps in which not every sequence learns, and sequences of which only a part does."""

import dataclasses

import pytest
import torch

from svr_lightning.core.types import Sample
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.update import batch_of, completion_logprobs, micro_batches
from tests.models import tiny_qwen3
from tests.samples import TEMPERATURE, rollout, sample
from tests.scripted import TOKENIZER


def test_an_empty_place_counts_in_the_mean_with_a_loss_of_zero() -> None:
    samples = rollout(4)
    batches = micro_batches([None, *samples, None, None, None], accumulate=2, updates=1, version=0)
    assert sum(len(batch) for batch in batches) == 4
    # Two micro-batches for eight places: each sequence weighs 2 / 8, and 2 / 4 in logged means.
    assert [(batch.weight, batch.mean_weight) for batch in batches] == [(1 / 4, 1 / 2)] * 2


def test_places_and_not_samples_decide_which_optimizer_step_a_sample_goes_to() -> None:
    first, second = rollout(2)
    batches = micro_batches(
        [first, None, None, second, None, None], accumulate=1, updates=2, version=0
    )
    assert [batch.advantages.tolist() for batch in batches] == [
        [pytest.approx(first.advantage)],
        [pytest.approx(second.advantage)],
    ]


def test_a_step_with_too_few_sequences_is_filled_up_with_what_weighs_nothing() -> None:
    one, idle = rollout(2)
    batches = micro_batches(
        [one, None, None], accumulate=3, updates=1, version=0, dummy_sample=idle
    )
    assert [batch.weight for batch in batches] == [1.0, 0.0, 0.0]
    assert batches[1].input_ids.tolist() == [[*idle.prompt_ids, *idle.completion_ids]]
    nothing = micro_batches([None, None], accumulate=2, updates=1, version=0, dummy_sample=idle)
    assert [batch.weight for batch in nothing] == [0.0, 0.0]
    with pytest.raises(ValueError, match="1 sequences for 3 micro-batches"):
        micro_batches([one, None, None], accumulate=3, updates=1, version=0)


def test_only_the_tokens_of_a_span_are_in_the_loss() -> None:
    whole = sample((5, 6), (7, 8, 9, 10))
    other = sample((5,), (6, 7))
    batch = batch_of([whole, other], 1.0, lambda s: (1, 3) if s is whole else (0, 2))
    assert batch.mask.tolist() == [[0, 1, 1, 0], [1, 1, 0, 0]]
    # Token 8 stands in column 3 and is predicted in column 2.
    assert (batch.rows.tolist(), batch.logit_positions.tolist()) == ([0, 0, 1, 1], [2, 3, 0, 1])
    model = tiny_qwen3()
    full = completion_logprobs(model, batch_of([whole, other], 1.0), TEMPERATURE)
    part = completion_logprobs(model, batch, TEMPERATURE)
    torch.testing.assert_close(part, full * batch.mask)


def test_a_span_of_text_is_found_among_the_sampled_tokens() -> None:
    renderer = Renderer(TOKENIZER)
    text = "<analysis>8*2 é no</analysis><think>x</think>\n<answer>8+4-2</answer>"
    ids = (*TOKENIZER.encode(text), TOKENIZER.eos_token_id)
    end = text.index("<think>")
    one: Sample = dataclasses.replace(sample(completion=ids), text_span=(0, end))
    first, stop = renderer.loss_tokens(one)
    assert first == 0
    assert TOKENIZER.decode(list(ids[:stop])).startswith(text[:end])
    assert not TOKENIZER.decode(list(ids[: stop - 1])).startswith(text[:end])
    inner = dataclasses.replace(one, text_span=(end, len(text)))
    first, stop = renderer.loss_tokens(inner)
    assert "<think>" in TOKENIZER.decode(list(ids[first:stop]))
    assert "</analysis>" not in TOKENIZER.decode(list(ids[first + 1 : stop]))
    assert renderer.loss_tokens(dataclasses.replace(one, text_span=None)) == (0, len(ids))
