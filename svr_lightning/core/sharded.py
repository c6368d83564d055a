"""Tensors of which each process holds a part, as FSDP2 makes them; plain ones pass through."""

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, gathered; every process must call it, in the same order.

    Its gradient is the mean over the processes, as for all other weights.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    return tensor.full_tensor(grad_placements=[Partial("avg")])


def own_part(tensor: Tensor) -> Tensor:
    """The part of a tensor on this process."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
