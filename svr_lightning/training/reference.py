"""The reference policy: created from the policy, and updated towards it."""

import copy
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import nn

from svr_lightning.engines.lora import AdapterReference, is_adapted
from svr_lightning.errors import require
from svr_lightning.training.config import ReferenceConfig


def make_reference(policy: Any, config: ReferenceConfig, seed: int) -> Any:
    """A frozen copy of the policy; with adapters, its base model without a copy.

    Buffers of a copy keep their type: rotary frequencies need fp32.

    Raises:
        ConfigError: if a type is set for a copy that does not exist.
    """
    if is_adapted(policy):
        require(
            config.dtype is None,
            f"model.reference.dtype={config.dtype}: under model.policy.lora the reference has no "
            "weights of its own; leave it out",
        )
        return AdapterReference(policy, follows=config.every > 0, seed=seed)
    reference = copy.deepcopy(policy).requires_grad_(False).eval()
    for parameter in reference.parameters():
        parameter.data = parameter.data.to(config.dtype and getattr(torch, config.dtype))
    return reference


@torch.no_grad()
def mix_reference(reference: Any, policy: nn.Module, mix: float) -> None:
    """Set ref = (1 - mix) ref + mix policy, in fp32 whatever the weights are stored in.

    Example: with mix 0.6 a reference weight 1.0 and a policy weight 2.0 give 1.6.
    """
    if isinstance(reference, AdapterReference):
        lost = reference.follow(mix)
        rank_zero_info(f"the reference followed; the rank of its adapter left out {lost:.2%}")
        return
    for old, new in zip(reference.parameters(), policy.parameters(), strict=True):
        mixed = old.float().mul(1.0 - mix).add_(new.float(), alpha=mix)
        old.copy_(mixed)
