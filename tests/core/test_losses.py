"""The policy loss, with numbers worked out by hand.

Log-probabilities are logarithms of simple fractions, so that ratios are simple fractions too.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from svr_lightning.core.losses import (
    LossSpec,
    LossTerms,
    expected_score,
    k3,
    policy_loss,
)
from tests.tolerance import rounding

LN2 = math.log(2.0)
NO_KL = LossSpec(beta=0.0)
SEQUENCE = LossSpec(ratio="sequence", beta=0.0)
GARBAGE = [math.nan, math.inf, -math.inf, 1e38, -1e38]


def close(value: Tensor, expected: object) -> None:
    """Within the rounding of a handful of operations on numbers of this size, or of size one."""
    wanted = torch.tensor(expected)
    allowed = rounding(8, max(1.0, wanted.abs().max().item()))
    torch.testing.assert_close(value.detach(), wanted, atol=allowed, rtol=0)


def loss_of_ratios(
    ratios: list[list[float]],
    advantages: list[float],
    spec: LossSpec = NO_KL,
    mask: list[list[int]] | None = None,
) -> tuple[LossTerms, Tensor]:
    """The loss where policy over sampler is ``ratios``, and the gradient for the log-probs."""
    logp = torch.tensor(ratios).log().requires_grad_()
    old = torch.zeros_like(logp)
    kept = torch.ones_like(logp) if mask is None else torch.tensor(mask)
    terms = policy_loss(logp, old, None, torch.tensor(advantages), kept, spec)
    (gradient,) = torch.autograd.grad(terms.loss.sum(), logp)
    return terms, gradient


# --- the KL estimate --------------------------------------------------------------------------


def test_k3_by_hand():
    # d = ln(1/4) - ln(1/2) = -ln 2: 1/2 + ln 2 - 1.  d = +ln 2: 2 - ln 2 - 1.  d = 0: 0.
    policy = torch.tensor([[0.5, 0.25, 0.3]]).log()
    reference = torch.tensor([[0.25, 0.5, 0.3]]).log()
    close(k3(policy, reference), [[LN2 - 0.5, 1.0 - LN2, 0.0]])


@given(st.floats(-100.0, 0.0), st.floats(-100.0, 0.0))
def test_k3_is_never_negative_and_always_finite(policy, reference):
    value = k3(torch.tensor(policy), torch.tensor(reference))
    assert value >= -rounding(1, 1.0)  # exp(d) - d - 1 at d near 0
    assert torch.isfinite(value)


# --- the clipped surrogate --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "held_back"),
    [
        (1.5, 1.0, -1.2, True),  # min(1.5, 1.2): no further in a direction that already went far
        (1.5, -1.0, 1.5, False),  # min(-1.5, -1.2): a way back is never clipped
        (0.5, 1.0, -0.5, False),  # min(0.5, 0.8)
        (0.5, -1.0, 0.8, True),  # min(-0.5, -0.8)
        (1.1, 2.0, -2.2, False),
        (7.0, 0.0, 0.0, False),
    ],
)
def test_the_clip_holds_back_what_has_gone_far_enough(ratio, advantage, loss, held_back):
    terms, gradient = loss_of_ratios([[ratio]], [advantage])
    close(terms.loss, [loss])
    close(terms.clipped, [float(held_back)])
    # d(-ratio A) / d(log ratio) = -ratio A
    close(gradient, [[0.0 if held_back else -ratio * advantage]])


def test_the_upper_clip_can_be_wider_than_the_lower():
    spec = LossSpec(clip_eps=0.2, clip_eps_high=0.5, beta=0.0)
    terms, _ = loss_of_ratios([[1.4], [1.6], [0.7]], [1.0, 1.0, -1.0], spec)
    close(terms.loss, [-1.4, -1.5, 0.8])
    close(terms.clipped, [0.0, 1.0, 1.0])


def test_a_ratio_beyond_all_bounds_stays_finite():
    logp = torch.tensor([[0.0, -1e30]], requires_grad=True)
    old = torch.tensor([[-1e30, 0.0]])
    terms = policy_loss(logp, old, old, torch.tensor([-1.0]), torch.ones(1, 2), LossSpec())
    terms.loss.sum().backward()
    assert torch.isfinite(terms.loss).all()
    assert torch.isfinite(logp.grad).all()


# --- the ratio of a sequence ------------------------------------------------------------------


def test_the_ratio_of_a_sequence_is_the_geometric_mean_of_its_tokens():
    # sqrt(2 * 1/8) = 1/2 on both tokens; token by token it is (min(2, 1.2) + 1/8) / 2 = 0.6625.
    by_sequence, _ = loss_of_ratios([[2.0, 0.125]], [1.0], SEQUENCE)
    by_token, _ = loss_of_ratios([[2.0, 0.125]], [1.0])
    close(by_sequence.loss, [-0.5])
    close(by_sequence.ratio_max, [0.5])
    close(by_token.loss, [-0.6625])
    close(by_token.ratio_max, [2.0])


def test_the_clip_on_a_sequence_holds_back_all_of_its_tokens_or_none():
    # sqrt(8 * 1/2) = 2: above 1.2, though the second token alone is below 1.
    terms, gradient = loss_of_ratios([[8.0, 0.5]], [1.0], SEQUENCE)
    close(terms.loss, [-1.2])
    close(terms.clipped, [1.0])
    close(gradient, [[0.0, 0.0]])


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_on_policy_both_ratios_have_the_same_gradient(beta):
    # -A / L on each of L = 2 and 3 tokens, plus beta (1 - reference / policy) / L.
    generator = torch.Generator().manual_seed(0)
    logp = -torch.rand(2, 3, generator=generator)
    reference = -torch.rand(2, 3, generator=generator)
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    advantages = torch.tensor([1.5, -0.5])
    length = torch.tensor([[2.0], [3.0]])
    expected = (-advantages[:, None] + beta * (1.0 - (reference - logp).exp())) / length * mask
    for ratio in ("token", "sequence"):
        present = logp.clone().requires_grad_()
        spec = LossSpec(ratio=ratio, beta=beta)
        policy_loss(present, logp, reference, advantages, mask, spec).loss.sum().backward()
        torch.testing.assert_close(present.grad, expected)


# --- masking ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("where", ["policy", "sampler", "reference", "all"])
def test_what_stands_under_padding_changes_neither_loss_nor_gradient(ratio, garbage, where):
    spec = LossSpec(ratio=ratio, beta=0.1)
    advantages = torch.tensor([1.0, -1.0])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    names = ("policy", "sampler", "reference")
    generator = torch.Generator().manual_seed(1)
    clean = {name: -torch.rand(2, 3, generator=generator) for name in names}
    dirty = {
        name: value.masked_fill(mask == 0, garbage) if where in (name, "all") else value
        for name, value in clean.items()
    }
    results = []
    for values in (clean, dirty):
        logp = values["policy"].clone().requires_grad_()
        terms = policy_loss(logp, values["sampler"], values["reference"], advantages, mask, spec)
        terms.loss.sum().backward()
        results.append((terms.loss, terms.kl, terms.clipped, terms.ratio_max, logp.grad))
    for expected, value in zip(*results, strict=True):
        assert torch.equal(value, expected)
    assert not results[1][-1][mask == 0].any()


def test_a_sequence_without_tokens_costs_nothing():
    terms, gradient = loss_of_ratios([[2.0, 2.0]], [1.0], mask=[[0, 0]])
    close(terms.loss, [0.0])
    close(gradient, [[0.0, 0.0]])


# --- averaging --------------------------------------------------------------------------------


def test_tokens_are_averaged_within_a_completion_before_completions_are():
    # k3 of the first completion's one token: 1 - ln 2. Of the second's three: ln 2 - 1/2, 0, 0.
    # Mean of means (0.306853 + 0.193147 / 3) / 2 = 0.185618; over all four tokens it were 0.125.
    logp = torch.tensor([[0.25, 1.0, 1.0], [0.5, 0.3, 0.3]]).log()
    reference = torch.tensor([[0.5, 1.0, 1.0], [0.25, 0.3, 0.3]]).log()
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    terms = policy_loss(logp, logp, reference, torch.zeros(2), mask, LossSpec(beta=1.0))
    close(terms.loss, [1.0 - LN2, (LN2 - 0.5) / 3])
    close(terms.kl, [1.0 - LN2, (LN2 - 0.5) / 3])
    close(terms.loss.mean(), 0.185618)


# --- what sampled was not the policy ----------------------------------------------------------


def test_tokens_are_weighed_by_policy_over_sampler_and_large_weights_are_cut():
    # pi / mu = 1/2, 3, 1 and 3/2, 3/2; cut at 2.
    weights = [[0.5, 2.0, 1.0], [1.5, 1.5, 0.0]]
    policy = torch.tensor([[0.1, 0.6, 0.5], [0.3, 0.15, 0.5]])
    sampler = torch.tensor([[0.2, 0.2, 0.5], [0.2, 0.1, math.nan]])
    mask, advantages = torch.tensor([[1, 1, 1], [1, 1, 0]]), torch.tensor([1.0, -3.0])
    spec = LossSpec(beta=0.0, behaviour_correction="token")
    logp = policy.log().requires_grad_()
    terms = policy_loss(logp, logp.detach(), None, advantages, mask, spec, sampler.log())
    (gradient,) = torch.autograd.grad(terms.loss.sum(), logp)
    # The ratio is 1, so that d loss / d logp = -weight x advantage / tokens.
    wanted = [[-w / 3 for w in weights[0]], [3 * w / 2 for w in weights[1]]]
    close(gradient, wanted)
    close(terms.loss, [sum(wanted[0]), sum(wanted[1])])
    close(terms.behaviour.mean, [1.5, 1.5])
    close(terms.behaviour.clipped, [1 / 3, 0.0])


def test_the_penalty_is_weighed_as_its_token_is():
    # Policy 1/4, reference 1/2: k3 = 2 - ln 2 - 1. Sampler 1/2: the weight is 1/2.
    logp = torch.tensor([[0.25]]).log()
    half = torch.tensor([[0.5]]).log()
    spec = LossSpec(beta=0.1, behaviour_correction="token")
    terms = policy_loss(logp, logp, half, torch.zeros(1), torch.ones(1, 1), spec, half)
    close(terms.loss, [0.5 * 0.1 * (1 - LN2)])
    close(terms.kl, [1 - LN2])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (LossSpec(beta=0.1), "beta > 0 needs the reference"),
        (LossSpec(beta=0.0, behaviour_correction="token"), "needs the engine's log-probabilities"),
    ],
)
def test_a_loss_without_the_log_probabilities_that_it_needs_is_refused(spec, message):
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match=message):
        policy_loss(one, one, None, torch.ones(1), one, spec)


def test_an_expected_score_ignores_padding_and_a_constant():
    logits = torch.tensor([[0.3, -1.0, -torch.inf]], requires_grad=True)
    gradients = []
    for offset in (0.0, 7.0):
        scores = torch.tensor([[0.5 + offset, offset, 99.0]])
        (gradient,) = torch.autograd.grad(expected_score(logits, scores, 0.9).sum(), logits)
        gradients.append(gradient)
    assert gradients[0][0, 2] == 0
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=0)
    alone = expected_score(logits[:, :2], torch.tensor([[0.5, 0.0]]), 0.9)
    padded = expected_score(logits, torch.tensor([[0.5, 0.0, 99.0]]), 0.9)
    assert padded.item() == pytest.approx(alone.item())
