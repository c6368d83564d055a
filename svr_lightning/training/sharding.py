"""FSDP2: every process holds a part of policy, reference, gradients and optimizer.

A layer is complete only while it computes. The output layer's weight is gathered for the blockwise
log-probabilities, and each weight while an engine loads it.
"""

from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from svr_lightning.engines.lora import is_adapted
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.errors import require
from svr_lightning.training.checkpoint import check_file


class SVRFSDPStrategy(ModelParallelStrategy):
    """Lightning's FSDP2 with checkpoints in one file, like those of a run on one process.

    The first process gathers a checkpoint in its host memory: 16 bytes for each weight, the
    reference included.

    Args:
        processes: of the whole run.
    """

    def __init__(self, processes: int) -> None:
        super().__init__(
            data_parallel_size=processes, tensor_parallel_size=1, save_distributed_checkpoint=False
        )

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        """Read weights and optimizer after checking all of the file.

        Raises:
            ConfigError: if it is missing or damaged.
        """
        check_file(Path(checkpoint_path))
        module = self.lightning_module
        assert module is not None
        if module.trainer.state.fn != "fit":
            module.strict_loading = False  # the file has a reference, which evaluation has not
        return super().load_checkpoint(checkpoint_path, weights_only=True)


def shard_for(strategy: Any, policy: Any, reference: Any, engine: Any) -> None:
    """Shard policy and reference in place where ``strategy`` is :class:`SVRFSDPStrategy`.

    Raises:
        ConfigError: for adapters, and for an engine that computes with the module that trains.
    """
    if not isinstance(strategy, SVRFSDPStrategy):
        return
    require(
        not is_adapted(policy),
        "model.policy.lora under SVRFSDPStrategy is not supported; set trainer.strategy=ddp",
    )
    require(
        not isinstance(engine, TransformersEngine),
        "model.engine: under SVRFSDPStrategy no process has the whole policy, which the "
        "transformers engine computes with; use VLLMEngine or ServersEngine",
    )
    for model in (policy, reference):
        if model is not None and not isinstance(model.base_model, FSDPModule):
            shard(model, strategy.device_mesh["data_parallel"])


def shard(model: Any, mesh: DeviceMesh) -> Any:
    """Shard a transformers model in place: layer by layer, then embedding, norm and output layer.

    Tied embeddings stay tied.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head.weight is embedding.weight
    for layer in model.base_model.layers:
        fully_shard(layer, mesh=mesh)
    # Also after a forward pass without a backward one: a reference is mixed part by part.
    fully_shard(model.base_model, mesh=mesh, reshard_after_forward=True)
    if tied:
        head.weight = embedding.weight
    else:
        part = distribute_tensor(head.weight.data, mesh, [Shard(0)])
        head.weight = nn.Parameter(part, requires_grad=head.weight.requires_grad)
    return model
