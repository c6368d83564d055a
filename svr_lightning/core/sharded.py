"""Tensors of which each process holds a part, as FSDP2 makes them; plain ones pass through."""

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, gathered; every process has to ask, in the same order.

    A gradient goes back as the mean over the processes, as that of all other weights does.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    return tensor.full_tensor(grad_placements=[Partial("avg")])


def own_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
