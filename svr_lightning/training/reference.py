"""The reference policy: created from the policy, and updated towards it."""

import copy
from typing import Any

import torch
from torch import nn

from svr_lightning.engines.lora import AdapterReference, is_adapted
from svr_lightning.errors import require
from svr_lightning.training.config import ReferenceConfig


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
