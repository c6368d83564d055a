"""FSDP2: every process holds a part of policy, reference, gradients and optimizer.

A layer is complete only while it computes. The output layer's weight is gathered for the blockwise
log-probabilities, and each weight while an engine loads it.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import Optimizer

from svr_lightning.engines.lora import is_adapted
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.errors import require
from svr_lightning.training.checkpoint import check_weights, remove, replacing, without_reference
from svr_lightning.training.internals import AllProcesses
from svr_lightning.training.parts import check_parts, save_parts


class SVRFSDPStrategy(AllProcesses):
    """Lightning's FSDP2 with checkpoints in parts that are complete or absent.

    Args:
        timeout: how long a process waits for another one; the slowest rollout has to fit.
    """

    def __init__(self, timeout: timedelta = timedelta(minutes=30)) -> None:
        super().__init__(timeout)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """This process's parts, where they are: Lightning would copy all to the CPU's memory."""
        assert self.model is not None
        return get_model_state_dict(self.model)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """As above, of the optimizer."""
        assert self.model is not None
        return get_optimizer_state_dict(self.model, optimizer)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Write a folder beside the previous one, then move the link to it."""
        with replacing(self, filepath) as folder:
            save_parts(checkpoint, folder, self.global_rank)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        """Read this process's parts of weights and, in training, of reference and optimizer.

        Raises:
            ConfigError: if it is missing or damaged, or of another model or method.
        """
        folder = Path(self.broadcast(checkpoint_path))
        module = self.lightning_module
        assert module is not None
        trains = module.trainer.state.fn == "fit"
        saved = check_parts(folder, self.global_rank, self.world_size, resumes=trains)
        if not trains:
            saved = without_reference(saved)
        check_weights(module.state_dict(), saved)
        return super().load_checkpoint(folder, weights_only=True)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a checkpoint's name and folders."""
        if self.is_global_zero:
            remove(Path(filepath))


def shard_for(trainer: Any, policy: Any, reference: Any, engine: Any) -> None:
    """Shard policy and reference in place where the strategy is :class:`SVRFSDPStrategy`.

    Raises:
        ConfigError: for adapters, for an engine that computes with the module that trains, and for
            one that loads its weights for each batch of an evaluation.
    """
    strategy = trainer.strategy
    if not isinstance(strategy, SVRFSDPStrategy):
        return
    require(
        not getattr(engine, "sleep_level", 0) or trainer.datamodule.eval_batch_size is None,
        "data.eval_batch_size: under SVRFSDPStrategy all processes take part when an engine that "
        "sleeps loads its weights for a batch, and they may have different numbers of batches; "
        "leave it out",
    )
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

    Raises:
        ConfigError: if some of its weights would be left whole.
    """
    _check_parts(model)
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


def _check_parts(model: Any) -> None:
    """Require that a model's weights are those of its layers, their base and the output layer."""
    within = "model.policy.path: under SVRFSDPStrategy"
    mend = "set trainer.strategy=deepspeed_stage_2"
    name, head = type(model).__name__, model.get_output_embeddings()
    require(
        hasattr(model.base_model, "layers"),
        f"{within} a model is sharded layer by layer, and {name} has no list of that name; {mend}",
    )
    sharded = {id(weight) for weight in (*model.base_model.parameters(), head.weight)}
    whole = [key for key, weight in model.named_parameters() if id(weight) not in sharded]
    require(
        not whole,
        f"{within} every process would train another {', '.join(whole)} of {name}; {mend}",
    )
