"""Samples to padded micro-batches, and their log-probabilities under real tiny models."""

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from svr_lightning.core.losses import LossSpec, policy_loss
from svr_lightning.core.types import Sample
from svr_lightning.policy.logprobs import completion_logprobs
from svr_lightning.training.update import (
    TrainBatch,
    Weights,
    balanced_split,
    batch_of,
    micro_batches,
    policy_update_loss,
)
from tests.models import MODELS, tiny_qwen3
from tests.samples import TEMPERATURE, rollout, sample
from tests.tolerance import of_gradients


def test_a_batch_is_padded_on_the_right_and_points_at_what_predicts_each_token():
    batch = batch_of([sample((5, 6, 7), (8, 9)), sample((5,), (6, 7, 8), advantage=-2.0)])
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9], [5, 6, 7, 8, 0]]
    assert batch.lengths == (5, 4)
    assert batch.mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    # Token 8 of the first stands in column 3 and is predicted in column 2, and so on.
    assert batch.rows.tolist() == [0, 0, 1, 1, 1]
    assert batch.logit_positions.tolist() == [2, 3, 0, 1, 2]
    torch.testing.assert_close(
        batch.engine_logprobs, torch.tensor([[-0.1, -0.2, 0.0], [-0.1, -0.2, -0.3]])
    )
    assert batch.advantages.tolist() == [1.0, -2.0]
    assert batch.group_ids == ("g", "g")


def split(
    samples: Sequence[Sample | None], accumulate: int = 1, updates: int = 1, **options: Any
) -> list[TrainBatch]:
    return micro_batches(samples, accumulate=accumulate, updates=updates, version=0, **options)


def test_with_one_update_the_ratio_starts_at_one_whatever_the_engine_computed():
    (batch,) = split(rollout(4))
    spec = LossSpec(beta=0.0)
    logged = policy_update_loss(tiny_qwen3(), None, batch, spec, temperature=TEMPERATURE).logged
    assert logged["engine/logprob_diff"] > 1  # nats: the engine's numbers are made up
    assert logged["train/ratio_max"] == 1.0
    assert logged["train/clip_frac"] == 0.0


def test_no_other_cut_makes_the_largest_micro_batch_smaller():
    rng = random.Random(0)
    for _ in range(300):
        size = rng.randint(1, 9)
        lengths = sorted(rng.randint(1, 30) for _ in range(size))
        count = rng.randint(1, size)
        every = (
            max(lengths[stop - 1] * (stop - start) for start, stop in itertools.pairwise(cut))
            for inner in itertools.combinations(range(1, size), count - 1)
            for cut in [(0, *inner, size)]
        )
        runs = balanced_split(lengths, count)
        assert [run.start for run in runs] == [0, *(run.stop for run in runs[:-1])]
        assert max(lengths[r.stop - 1] * (r.stop - r.start) for r in runs) == min(every)


def test_each_update_of_a_rollout_takes_whole_groups_in_their_order():
    batches = split(rollout(), accumulate=2, updates=2)
    groups = [Counter(batch.group_ids) for batch in batches]
    assert groups[0] + groups[1] == {"g0": 4}
    assert groups[2] + groups[3] == {"g1": 4}


def test_samples_of_other_weights_than_the_present_ones_are_refused():
    stale = [sample(version=6), sample(version=7)]
    with pytest.raises(RuntimeError, match="weights of step 6 at step 7; it was not synced"):
        micro_batches(stale, accumulate=1, updates=1, version=7)


@pytest.mark.parametrize(("accumulate", "updates"), [(1, 4), (4, 2)])
def test_samples_that_do_not_make_equal_optimizer_steps_are_refused(accumulate, updates):
    wanted = f"6 samples do not make {updates} equal optimizer steps of at least {accumulate} "
    with pytest.raises(ValueError, match=wanted):
        split(rollout(6), accumulate, updates)


@pytest.fixture(scope="module", params=[*MODELS, "untied"])
def model(request) -> Any:
    if request.param == "untied":
        return tiny_qwen3(tie_word_embeddings=False)
    return MODELS[request.param]()


def gradients(model: Any, batches: list[TrainBatch]) -> dict[str, Tensor]:
    model.zero_grad()
    for batch in batches:
        logp = completion_logprobs(model, batch, TEMPERATURE)
        terms = policy_loss(
            logp,
            batch.engine_logprobs,
            batch.engine_logprobs,
            batch.advantages,
            batch.mask,
            LossSpec(),
        )
        (terms.loss.sum() * batch.weights.loss / len(batches)).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def close(model: Any, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    lengths = [len(s.prompt_ids) + len(s.completion_ids) for s in rollout(32)]
    allowed = of_gradients(model, max(lengths), sum(lengths), expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=allowed, rtol=0)


@pytest.mark.parametrize("accumulate", [4, 7, 32])
def test_micro_batches_add_up_to_the_gradient_of_the_whole_step(model, accumulate):
    samples = rollout(32)
    parts = split(samples, accumulate)
    if accumulate == 7:
        assert len({len(batch.group_ids) for batch in parts}) > 1
    close(model, gradients(model, parts), gradients(model, split(samples)))


def test_the_gradient_is_the_mean_over_sequences_worked_out_one_by_one(model):
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
    close(model, batched, {name: p.grad for name, p in model.named_parameters()})


def test_an_empty_place_counts_in_the_mean_with_a_loss_of_zero():
    samples = rollout(4)
    batches = split([None, *samples, None, None, None], 2)
    assert sum(len(batch.group_ids) for batch in batches) == 4
    # Two micro-batches for eight places: each sequence weighs 2 / 8, and 2 / 4 in logged means.
    assert [batch.weights for batch in batches] == [Weights(loss=1 / 4, logged=1 / 2)] * 2


def test_places_and_not_samples_decide_which_optimizer_step_a_sample_goes_to():
    first, second = rollout(2)
    batches = split([first, None, None, second, None, None], updates=2)
    assert [batch.advantages.tolist() for batch in batches] == [
        [pytest.approx(first.advantage)],
        [pytest.approx(second.advantage)],
    ]


def test_a_step_with_too_few_sequences_is_filled_up_with_what_weighs_nothing():
    one, idle = rollout(2)
    batches = split([one, None, None], 3, dummy_sample=idle)
    assert [batch.weights.loss for batch in batches] == [1.0, 0.0, 0.0]
    assert batches[1].input_ids.tolist() == [[*idle.prompt_ids, *idle.completion_ids]]
    nothing = split([None, None], 2, dummy_sample=idle)
    assert [batch.weights.loss for batch in nothing] == [0.0, 0.0]
    with pytest.raises(ValueError, match="1 sequences for 3 micro-batches"):
        split([one, None, None], 3)


a_character_per_token = SimpleNamespace(tokens_of=lambda span, token_ids: span)


def test_two_parts_of_one_turn_share_a_forward_pass_and_keep_their_own_losses():
    whole = sample((5, 6), (7, 8, 9, 10), advantage=1.0)
    solution = dataclasses.replace(whole, text_span=(0, 2))
    check = dataclasses.replace(whole, text_span=(2, 4), advantage=-2.0)
    other = sample((5,), (6, 7))
    (batch,) = split([solution, other, check], renderer=a_character_per_token)
    assert batch.input_ids.tolist() == [[5, 6, 7, 0, 0, 0], [5, 6, 7, 8, 9, 10]]
    assert batch.rows.tolist() == [0, 0, 1, 1, 1, 1]
    assert batch.mask.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]]
    assert batch.advantages.tolist() == [1.0, 1.0, -2.0]
    model = tiny_qwen3()
    apart = completion_logprobs(model, batch_of([other, whole]), TEMPERATURE)
    together = completion_logprobs(model, batch, TEMPERATURE)
    torch.testing.assert_close(together, apart[[0, 1, 1]] * batch.mask)
    with pytest.raises(ValueError, match="samples that learn from a part of their text"):
        split([solution])
