"""The policy's optimizer and its learning-rate schedule."""

import math
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


def clip_gradients(optimizer: Any, limit: float | None) -> float:
    """Scale all gradients so that their common 2-norm is at most ``limit``; returns the norm.

    Raises nothing for a norm that is not finite: the caller must not step then.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit)
    return norm.item()
