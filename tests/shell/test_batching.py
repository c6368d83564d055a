"""Samples to padded micro-batches, and their log-probabilities under real tiny models."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from svr_lightning.core.losses import LossSpec, policy_loss
from svr_lightning.core.types import Sample
from svr_lightning.engines.base import Request, SamplingParams
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.training.batching import TrainBatch, micro_batches, pad
from svr_lightning.training.logprobs import completion_logprobs
from tests.models import MODELS, VOCABULARY

TEMPERATURE = 0.9


def sample(
    prompt: tuple[int, ...] = (5, 6, 7),
    completion: tuple[int, ...] = (8, 9),
    advantage: float = 1.0,
    group: str = "g",
    version: int = 0,
) -> Sample:
    return Sample(
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=tuple(-0.1 * (i + 1) for i in range(len(completion))),
        advantage=advantage,
        group_id=group,
        policy_version=version,
    )


def rollout(count: int = 8, seed: int = 0) -> list[Sample]:
    rng = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high)))

    return [
        sample(ids(1, 12), ids(1, 9), advantage=rng.gauss(0, 1), group=f"g{i // 4}")
        for i in range(count)
    ]


# --- padding ----------------------------------------------------------------------------------


def test_a_batch_is_padded_on_the_right_and_points_at_what_predicts_each_token() -> None:
    batch = pad([sample((5, 6, 7), (8, 9)), sample((5,), (6, 7, 8), advantage=-2.0)], weight=0.5)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9], [5, 6, 7, 8, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert batch.token_ids.tolist() == [[8, 9, 0], [6, 7, 8]]
    assert batch.mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    # Token 8 of the first stands in column 3 and is predicted in column 2, and so on.
    assert batch.predictor[0, :2].tolist() == [2, 3]
    assert batch.predictor[1].tolist() == [0, 1, 2]
    assert batch.predictor.max() < 5
    torch.testing.assert_close(
        batch.logprobs, torch.tensor([[-0.1, -0.2, 0.0], [-0.1, -0.2, -0.3]])
    )
    assert batch.advantages.tolist() == [1.0, -2.0]
    assert (batch.weight, batch.group_ids, len(batch)) == (0.5, ("g", "g"), 2)


def test_the_mask_covers_the_completion_from_its_first_token_to_its_end_and_no_prompt() -> None:
    samples = rollout()
    batch = pad(samples, weight=1.0)
    assert batch.mask.sum(dim=1).tolist() == [len(s.completion_ids) for s in samples]
    for row, each in enumerate(samples):
        kept = batch.mask[row].bool()
        assert tuple(batch.token_ids[row][kept].tolist()) == each.completion_ids
        following = batch.predictor[row][kept] + 1
        assert tuple(batch.input_ids[row][following].tolist()) == each.completion_ids


def test_a_batch_moves_as_a_whole_and_keeps_what_is_no_tensor() -> None:
    batch = pad(rollout(), weight=0.25)
    moved = batch.to("meta")
    assert isinstance(moved, TrainBatch)
    assert {moved.input_ids.device.type, moved.advantages.device.type} == {"meta"}
    assert (moved.weight, moved.group_ids) == (0.25, batch.group_ids)


# --- splitting --------------------------------------------------------------------------------


def split(samples: list[Sample], accumulate: int = 1, updates: int = 1) -> list[TrainBatch]:
    return micro_batches(samples, accumulate=accumulate, updates=updates, version=0)


@pytest.mark.parametrize(("accumulate", "size"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_every_sequence_weighs_the_same_however_a_step_is_split(accumulate: int, size: int) -> None:
    batches = split(rollout(), accumulate)
    assert [len(batch) for batch in batches] == [size] * accumulate
    # Accumulation divides by the number of micro-batches: 1 / size / accumulate = 1 / 8.
    assert {batch.weight / accumulate for batch in batches} == {1 / 8}


def test_sequences_of_a_step_are_sorted_by_length_to_save_padding() -> None:
    batches = split(rollout(), accumulate=4)
    lengths = [n for batch in batches for n in batch.attention_mask.sum(dim=1).tolist()]
    assert lengths == sorted(len(s.prompt_ids) + len(s.completion_ids) for s in rollout())


def test_each_update_of_a_rollout_takes_whole_groups_in_their_order() -> None:
    batches = split(rollout(), accumulate=2, updates=2)
    assert [batch.group_ids for batch in batches] == [("g0",) * 2] * 2 + [("g1",) * 2] * 2


def test_no_sequence_is_lost_or_repeated() -> None:
    batches = split(rollout(), accumulate=2, updates=2)
    advantages = torch.cat([batch.advantages for batch in batches])
    torch.testing.assert_close(
        advantages.sort().values, torch.tensor(sorted(s.advantage for s in rollout()))
    )


def test_samples_of_other_weights_than_the_present_ones_are_refused() -> None:
    stale = [sample(version=6), sample(version=7)]
    with pytest.raises(RuntimeError, match="weights of step 6 at step 7; it was not synced"):
        micro_batches(stale, accumulate=1, updates=1, version=7)


def test_samples_that_do_not_divide_into_equal_micro_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="6 samples do not divide into 2 x 2 micro-batches"):
        split(rollout(6), accumulate=2, updates=2)


# --- under a model ----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


@torch.no_grad()
def test_log_probabilities_in_a_padded_batch_are_those_of_each_sequence_alone(model: Any) -> None:
    samples = rollout()
    batch = pad(samples, weight=1.0)
    together = completion_logprobs(model, batch, TEMPERATURE)
    for row, each in enumerate(samples):
        ids = torch.tensor([[*each.prompt_ids, *each.completion_ids]])
        scores = model(input_ids=ids, use_cache=False).logits[0, len(each.prompt_ids) - 1 : -1]
        full = (scores / TEMPERATURE).log_softmax(-1)
        alone = full.gather(1, torch.tensor(each.completion_ids).unsqueeze(1)).squeeze(1)
        length = len(each.completion_ids)
        torch.testing.assert_close(together[row, :length], alone, atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_trainer_and_the_engine_agree_on_what_was_sampled(model: Any) -> None:
    engine = TransformersEngine(max_batch=3)
    engine.start(model, (1,), 512)
    engine.sync(model, 0)
    prompts = {i: rollout()[i].prompt_ids for i in range(8)}
    for index, prompt in prompts.items():
        sampling = SamplingParams(max_tokens=4 + index, temperature=TEMPERATURE, seed=index)
        engine.submit(Request(id=index, prompt_ids=prompt, sampling=sampling))
    outputs = []
    while len(outputs) < 8:
        outputs += engine.step()
    samples = [
        Sample(
            prompt_ids=prompts[output.id],
            completion_ids=output.token_ids,
            logprobs=output.logprobs,
            advantage=0.0,
            group_id="g",
            policy_version=output.version,
        )
        for output in outputs
    ]
    for batch in split(samples, accumulate=2):
        gap = (completion_logprobs(model, batch, TEMPERATURE) - batch.logprobs) * batch.mask
        assert gap.abs().max() < 1e-5


def gradients(model: Any, batches: list[TrainBatch]) -> dict[str, Tensor]:
    model.zero_grad()
    for batch in batches:
        logp = completion_logprobs(model, batch, TEMPERATURE)
        terms = policy_loss(
            logp, batch.logprobs, batch.logprobs, batch.advantages, batch.mask, LossSpec()
        )
        (terms.loss.sum() * batch.weight / len(batches)).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("accumulate", [2, 8])
def test_micro_batches_add_up_to_the_gradient_of_the_whole_step(
    model: Any, accumulate: int
) -> None:
    whole = gradients(model, split(rollout()))
    parts = gradients(model, split(rollout(), accumulate))
    assert whole.keys() == parts.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=1e-5, rtol=1e-4)


def test_the_gradient_is_the_mean_over_sequences_worked_out_one_by_one(model: Any) -> None:
    samples = rollout(4)
    batched = gradients(model, split(samples))
    model.zero_grad()
    for each in samples:
        ids = torch.tensor([[*each.prompt_ids, *each.completion_ids]])
        scores = model(input_ids=ids, use_cache=False).logits[0, len(each.prompt_ids) - 1 : -1]
        full = (scores / TEMPERATURE).log_softmax(-1)
        logp = full.gather(1, torch.tensor(each.completion_ids).unsqueeze(1)).squeeze(1)
        old = torch.tensor(each.logprobs)
        ratio = (logp - old).exp()
        surrogate = torch.minimum(ratio * each.advantage, ratio.clamp(0.8, 1.2) * each.advantage)
        kl = (old - logp).exp() - (old - logp) - 1.0
        ((0.08 * kl - surrogate).mean() / 4).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(batched[name], parameter.grad, atol=1e-5, rtol=1e-4)
