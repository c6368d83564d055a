"""The optimizer, its schedule, and the reference that follows the policy."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from svr_lightning.core.schedule import warmup_stable_decay
from svr_lightning.engines.acting_weights import is_adapted
from svr_lightning.errors import require
from svr_lightning.policy.lora import AdapterReference
from svr_lightning.training.config import OptimizerConfig, ReferenceConfig
from svr_lightning.training.distributed import SVRDeepSpeedStrategy


def make_optimizer(model: nn.Module, config: OptimizerConfig, total_steps: int) -> dict[str, Any]:
    """What ``configure_optimizers`` returns for ``total_steps`` optimizer steps.

    Matrices decay, norms and biases do not. Norm scales, biases and per-head vectors are exactly
    the parameters with fewer than two dimensions; convolution kernels and embeddings have more.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)

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


def set_scheduled_rates(scheduler: Any) -> None:
    """Give each group the rate of its schedule at the current step.

    A checkpoint restores the rate of the run that saved it, which may have had another length.
    """
    groups = scheduler.optimizer.param_groups
    for group, peak, factor in zip(groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
        group["lr"] = peak * factor(scheduler.last_epoch)


def clip_and_step(
    strategy: Any, optimizer: Any, limit: float | None, require_finite: Callable[[float], None]
) -> float:
    """Clip the gradients and take an optimizer step; returns their norm before clipping.

    All are scaled so that their common 2-norm is at most ``limit``. ``require_finite`` raises for a
    norm that is not finite, before any weight changes.
    """
    if isinstance(strategy, SVRDeepSpeedStrategy):
        optimizer.step()  # which clips, and leaves out an update that is not finite
        norm = strategy.gradient_norm()
        require_finite(norm)
    else:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        most = math.inf if limit is None else limit
        norm = nn.utils.clip_grad_norm_(parameters, most).item()
        require_finite(norm)
        optimizer.step()
    return norm


def make_reference(policy: Any, config: ReferenceConfig) -> Any:
    """A frozen copy of the policy; with adapters, its base model without a copy.

    Buffers of a copy keep their type: rotary frequencies need fp32.

    Raises:
        ConfigError: if a type or mixes are set for a copy that does not exist.
    """
    if is_adapted(policy):
        require(
            config.dtype is None,
            f"model.reference.dtype={config.dtype}: under model.policy.lora the reference has no "
            "weights of its own; leave it out",
        )
        require(
            config.every == 0,
            f"model.reference.every={config.every}: under model.policy.lora the reference is the "
            "base model; set model.reference.every=0",
        )
        return AdapterReference(policy)
    reference = copy.deepcopy(policy).requires_grad_(False).eval()
    for parameter in reference.parameters():
        parameter.data = parameter.data.to(config.dtype and getattr(torch, config.dtype))
    return reference


@torch.no_grad()
def mix_reference(reference: Any, policy: nn.Module, mix: float) -> None:
    """Set ref = (1 - mix) ref + mix policy, in fp32 whatever the weights are stored in.

    Example: with mix 0.6 a reference weight 1.0 and a policy weight 2.0 give 1.6.
    """
    for old, new in zip(reference.parameters(), policy.parameters(), strict=True):
        mixed = old.float().mul(1.0 - mix).add_(new.float(), alpha=mix)
        old.copy_(mixed)
