"""What decides the records of an evaluation, as one hash: equal hashes, equal records."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

PROBE = 4096
"""Elements that are read of each tensor."""


@torch.no_grad()
def weights_fingerprint(model: nn.Module) -> str:
    """A sha256 over names, types, shapes and a fixed sample of every tensor of ``model``.

    Reading all of a model of two billion parameters would take as long as its first batches. A
    sample of evenly spaced elements is enough to tell policies apart: an optimizer step, a mix
    or another seed changes nearly every element of every matrix. A tensor of at most
    :data:`PROBE` elements, as norms and biases are, is read whole.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // PROBE)].contiguous()
        digest.update(sample.view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def fingerprint(parts: Mapping[str, Any]) -> str:
    """A sha256 of values that JSON can hold."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
