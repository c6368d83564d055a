"""AdamW without decay on norms and biases, its schedule, and the reference that follows."""

from typing import Any

import torch
from torch import nn

from svr_lightning.core.schedule import warmup_stable_decay
from svr_lightning.training.config import OptimizerConfig


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
    # A fused optimizer offers to undo a gradient scale itself. Nothing here needs that, and under
    # mixed precision Lightning would refuse to clip gradients because of it.
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]

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
