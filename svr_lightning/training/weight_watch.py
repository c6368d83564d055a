"""Measures whether training changes the weights that the engine serves.

Engines on an accelerator serve bf16 weights. A learning rate of 4e-8 moves an fp32 master by far
less than bf16 can show, so many steps may pass before a served weight changes at all. A fixed
sample of every matrix is enough to tell, and costs next to nothing.
"""

import torch
from torch import Tensor, nn

SAMPLE = 4096
"""Elements looked at per parameter."""
PATIENCE = 5
"""Steps without any change before it is worth a warning."""


class WeightWatch:
    """Measures the share of served weights that changed since the last look.

    Args:
        model: the policy.
        served: the type in which the engine serves its weights.
    """

    def __init__(self, model: nn.Module, served: torch.dtype) -> None:
        self._served = served
        self._seen = self._images(model)
        self.still = 0

    def changed_share(self, model: nn.Module) -> float:
        """The share since the last call, in [0, 1]; ``still`` counts calls that found none."""
        images = self._images(model)
        changed = sum(
            int((now != before).sum()) for now, before in zip(images, self._seen, strict=True)
        )
        total = sum(image.numel() for image in images)
        self._seen = images
        self.still = 0 if changed else self.still + 1
        return changed / max(total, 1)

    @torch.no_grad()
    def _images(self, model: nn.Module) -> list[Tensor]:
        samples = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                flat = parameter.detach().reshape(-1)
                stride = max(1, flat.numel() // SAMPLE)
                samples.append(flat[::stride].to(self._served, copy=True))
        return samples
