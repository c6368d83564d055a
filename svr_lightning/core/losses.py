"""The clipped surrogate with a k3 penalty, as functions on tensors.

Shapes: B sequences, T completion positions (right-padded; ``mask`` is 1 on real tokens).
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from svr_lightning.core.ranges import Checked, Endless, NotNegative

CORRECTION_CAP = 2.0
"""Largest importance weight, which bounds the variance."""


@dataclass(frozen=True, kw_only=True)
class LossSpec(Checked):
    """The options of the policy loss."""

    ratio: Literal["token", "sequence"] = "token"
    """``token`` as in GRPO; ``sequence`` for the geometric-mean ratio of GSPO."""
    clip_eps: Endless = 0.2
    """epsilon: the ratio is clipped to [1 - clip_eps, 1 + clip_eps_high]."""
    clip_eps_high: Endless | None = None
    """Upper clip; None means the same as ``clip_eps``."""
    beta: NotNegative = 0.08
    """KL coefficient."""
    behaviour_correction: Literal["off", "token"] = "off"
    """Importance sampling: ``token`` weighs the loss of each token by the ratio of the trainer's
    probability to that at sampling. Corrects for numerical differences between engine and trainer.
    Weights above :data:`CORRECTION_CAP` are clipped."""


class BehaviourWeights(NamedTuple):
    """Importance weights of sampled tokens, before clipping; every field is [B]."""

    mean: Tensor
    """1 in expectation."""
    clipped: Tensor
    """Share of tokens whose weight is clipped."""


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """Per-sequence loss and its logged quantities; every field is [B]."""

    loss: Tensor
    kl: Tensor
    clipped: Tensor
    """Share of tokens whose ratio was clipped."""
    ratio_max: Tensor
    behaviour: BehaviourWeights | None = None
    """None without correction."""


def k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy || reference): exp(d) - d - 1, d = ref - policy.

    [B, T]; never negative. d is clamped to +-20 so that a vanishing probability cannot overflow.
    """
    d = (ref_logp - logp).clamp(-20.0, 20.0)
    return d.exp() - d - 1.0


def expected_score(logits: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """[C] sum_a p_a s_a: the expected score of a choice, with its exact gradient.

    p = softmax(logits / temperature) over the alternatives alone, not over the vocabulary. Else the
    probability of tokens that are none of them would count with a score of 0: where all scores are
    negative, the policy would learn to leave the form. So normalised, d/d logit_a is
    p_a (s_a - sum_b p_b s_b) / temperature, and a constant added to all scores changes nothing.

    Args:
        logits: [C, A], of the alternatives' tokens; -inf where a choice has fewer.
        scores: [C, A].
        temperature: of the rollout, > 0.
    """
    return ((logits.float() / temperature).softmax(dim=-1) * scores).sum(dim=-1)


def behaviour_weights(trainer_logprobs: Tensor, engine_logprobs: Tensor, mask: Tensor) -> Tensor:
    """[B, T] importance weights pi / mu of tokens that mu sampled.

    Args:
        trainer_logprobs: [B, T] under pi, the trainer's policy at the time of the rollout.
        engine_logprobs: [B, T] under mu, as the engine computed them when it sampled.
        mask: [B, T] 1 on completion tokens.
    """
    log_weight = torch.where(mask > 0, trainer_logprobs - engine_logprobs, 0.0)
    return log_weight.clamp(-20.0, 20.0).exp()


def policy_loss(
    logp: Tensor,
    trainer_logprobs: Tensor,
    ref_logp: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    spec: LossSpec,
    engine_logprobs: Tensor | None = None,
) -> LossTerms:
    """GRPO's clipped surrogate plus ``beta * k3``, averaged over each sequence's own tokens.

    Args:
        logp: [B, T] log-probabilities under the policy, with gradient.
        trainer_logprobs: [B, T] under the policy that sampled, without gradient.
        ref_logp: [B, T] under the reference; None only where ``spec.beta`` is 0.
        advantages: [B].
        mask: [B, T] 1 on completion tokens. Masked before any ``exp``: padding may hold anything.
        spec: ratio level, clip range, beta, correction.
        engine_logprobs: [B, T] as the engine computed them when it sampled, for the correction.

    Returns:
        One loss per sequence; the caller averages over all sequences of the optimizer step.
    """
    mask = mask.to(logp.dtype)
    tokens = mask.sum(dim=1).clamp(min=1.0)

    def mean(values: Tensor) -> Tensor:
        return (values * mask).sum(dim=1) / tokens

    log_ratio = torch.where(mask > 0, logp - trainer_logprobs, 0.0)
    if spec.ratio == "sequence":
        log_ratio = mean(log_ratio).unsqueeze(1).expand_as(mask)
    ratio = log_ratio.clamp(-20.0, 20.0).exp()
    high = spec.clip_eps if spec.clip_eps_high is None else spec.clip_eps_high
    advantage = advantages.unsqueeze(1)
    unclipped = ratio * advantage
    clipped = ratio.clamp(1.0 - spec.clip_eps, 1.0 + high) * advantage
    per_token = -torch.minimum(unclipped, clipped)
    if spec.beta:
        if ref_logp is None:
            raise ValueError("beta > 0 needs the reference's log-probabilities")
        kl = k3(torch.where(mask > 0, logp, 0.0), torch.where(mask > 0, ref_logp, 0.0))
        per_token = per_token + spec.beta * kl
    else:
        kl = torch.zeros_like(per_token)
    behaviour = None
    if spec.behaviour_correction != "off":
        if engine_logprobs is None:
            raise ValueError("behaviour_correction needs the engine's log-probabilities")
        weights = behaviour_weights(trainer_logprobs, engine_logprobs, mask)
        per_token = weights.clamp(max=CORRECTION_CAP) * per_token
        behaviour = BehaviourWeights(mean(weights), mean(weights > CORRECTION_CAP))
    return LossTerms(
        loss=mean(per_token),
        kl=mean(kl).detach(),
        clipped=mean(clipped < unclipped).detach(),
        ratio_max=(ratio * mask).max(dim=1).values.detach(),
        behaviour=behaviour,
    )
