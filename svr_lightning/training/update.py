"""The loss of a micro-batch under a policy and its reference."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from svr_lightning.core.linear_logprobs import linear_logprobs
from svr_lightning.core.losses import LossSpec, policy_loss
from svr_lightning.training.batching import TrainBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUpdate:
    """The loss of one micro-batch, and what is logged of it; every field is a scalar."""

    loss: Tensor
    """With gradient. The loss of an optimizer step is the mean over its micro-batches."""
    kl: Tensor
    clip_frac: Tensor
    """Share of tokens whose ratio the clip held back."""
    logprob_diff: Tensor
    """Mean absolute difference, in nats, between the trainer's and the engine's
    log-probabilities of the sampled tokens: rounding alone, while both have the same weights."""
    ratio_max: Tensor


def policy_update_loss(
    policy: Any,
    reference: Any,
    batch: TrainBatch,
    spec: LossSpec,
    *,
    temperature: float = 0.9,
) -> PolicyUpdate:
    """The policy loss of one micro-batch: clipped surrogate plus ``beta * k3``.

    Args:
        policy: a transformers causal language model; the loss carries its gradient.
        reference: the same architecture; None where ``spec.beta`` is 0.
        batch: one of :func:`~svr_lightning.training.batching.micro_batches`.
        spec: ratio level, clip range, beta.
        temperature: of the rollout; the default is that of ``model.sampling``.

    Example:
        >>> for batch in batches:                                            # doctest: +SKIP
        ...     (policy_update_loss(policy, reference, batch, spec).loss / len(batches)).backward()
    """
    ref_logp = None
    if reference is not None:  # before the policy's activations take their memory
        with torch.no_grad():
            ref_logp = completion_logprobs(reference, batch, temperature)
    logp = completion_logprobs(policy, batch, temperature)
    # With one update per rollout the policy that sampled is the present one.
    old_logp = logp.detach() if batch.old_logprobs is None else batch.old_logprobs
    terms = policy_loss(logp, old_logp, ref_logp, batch.advantages, batch.mask, spec)
    gap = ((logp.detach() - batch.logprobs).abs() * batch.mask).sum(1) / batch.mask.sum(1)
    return PolicyUpdate(
        loss=terms.loss.sum() * batch.weight,
        kl=terms.kl.sum() * batch.mean_weight,
        clip_frac=terms.clipped.sum() * batch.mean_weight,
        logprob_diff=gap.sum() * batch.mean_weight,
        ratio_max=terms.ratio_max.max(),
    )


def completion_logprobs(model: Any, batch: TrainBatch, temperature: float) -> Tensor:
    """Score only the positions that predict a completion token.

    Hidden states of those positions are packed, so that neither prompt nor padding meets the
    output layer. Where the batch comes in several parts, the model runs on one at a time, and the
    backward pass repeats each part's forward pass: one part's activations exist at a time.

    Args:
        model: a transformers causal language model.
        batch: right-padded sequences.
        temperature: of the rollout.

    Returns:
        [B, T] nats, 0 under padding.
    """
    parts = batch.forwards()
    if len(parts) > 1 and torch.is_grad_enabled():
        packed = [
            checkpoint(_packed_hidden, model, *part, use_reentrant=False, preserve_rng_state=False)
            for part in parts
        ]
    else:
        packed = [_packed_hidden(model, *part) for part in parts]
    head = model.get_output_embeddings()
    token_ids = batch.input_ids[batch.rows, batch.logit_positions + 1]
    logp = linear_logprobs(
        torch.cat(packed), head.weight, getattr(head, "bias", None), token_ids, temperature
    )
    return logp.new_zeros(batch.mask.shape).masked_scatter(batch.mask.bool(), logp)


def _packed_hidden(
    model: Any, input_ids: Tensor, attention_mask: Tensor, rows: Tensor, logit_positions: Tensor
) -> Tensor:
    """[N, H] hidden states of the positions that predict a completion token."""
    hidden = model.base_model(
        input_ids=input_ids, attention_mask=attention_mask, use_cache=False
    ).last_hidden_state
    return hidden[rows, logit_positions]  # type: ignore[no-any-return]
