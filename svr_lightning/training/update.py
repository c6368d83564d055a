"""The update: the loss of a micro-batch, the optimizer, and the reference that follows."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from svr_lightning.core.linear_logprobs import linear_logprobs
from svr_lightning.core.losses import LossSpec, policy_loss
from svr_lightning.core.schedule import warmup_stable_decay
from svr_lightning.training.batching import TrainBatch
from svr_lightning.training.config import OptimizerConfig
from svr_lightning.training.internals import let_gradients_be_clipped


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

    Examples:
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
    output layer.

    Args:
        model: a transformers causal language model.
        batch: right-padded sequences.
        temperature: of the rollout.

    Returns:
        [B, T] nats, 0 under padding.
    """
    hidden = model.base_model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False
    ).last_hidden_state
    packed = hidden[batch.rows, batch.logit_positions]
    head = model.get_output_embeddings()
    token_ids = batch.input_ids[batch.rows, batch.logit_positions + 1]
    logp = linear_logprobs(packed, head.weight, getattr(head, "bias", None), token_ids, temperature)
    return logp.new_zeros(batch.mask.shape).masked_scatter(batch.mask.bool(), logp)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: matrices decay, norms and biases do not.

    Norm scales, biases and per-head vectors are exactly the parameters with fewer than two
    dimensions; convolution kernels and embeddings have more.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]


def make_optimizer(model: nn.Module, config: OptimizerConfig, total_steps: int) -> dict[str, Any]:
    """What ``configure_optimizers`` returns for ``total_steps`` optimizer steps."""
    groups = [group for group in parameter_groups(model, config.weight_decay) if group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)
    let_gradients_be_clipped(optimizer)

    def factor(step: int) -> float:
        return warmup_stable_decay(
            step,
            total_steps,
            warmup_fraction=config.warmup_fraction,
            decay_fraction=config.decay_fraction,
            floor=config.floor,
        )

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


@torch.no_grad()
def mix_reference(reference: nn.Module, policy: nn.Module, mix: float) -> None:
    """Set ref = (1 - mix) ref + mix policy, in fp32 whatever the weights are stored in.

    Example: with mix 0.6 a reference weight 1.0 and a policy weight 2.0 give 1.6.
    """
    for old, new in zip(reference.parameters(), policy.parameters(), strict=True):
        mixed = old.float().mul(1.0 - mix).add_(new.float(), alpha=mix)
        old.copy_(mixed)


def total_norm(model: nn.Module) -> torch.Tensor:
    """The 2-norm of all gradients together."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)
