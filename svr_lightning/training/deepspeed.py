"""DeepSpeed ZeRO under Lightning: gradients divided once, atomic checkpoints, also on a CPU.

Stage 2 keeps every process's weights whole, which rollouts need, and shards gradients and the
optimizer, its fp32 master weights among them.
"""

import os
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.plugins.precision import DeepSpeedPrecision
from lightning.pytorch.strategies import DeepSpeedStrategy, StrategyRegistry

from svr_lightning.errors import ConfigError
from svr_lightning.training import sharded_checkpoint
from svr_lightning.training.checks import FP16


class WeightsOnlyPrecision(DeepSpeedPrecision):
    """Lightning's precision for DeepSpeed, without the casts that cost more than they save."""

    def convert_input(self, data: Any) -> Any:
        """Advantages and the engine's log-probabilities stay in fp32."""
        return data

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """DeepSpeed casts the weights itself, and leaves rotary frequencies in fp32."""
        return module


class SVRDeepSpeedStrategy(DeepSpeedStrategy):
    """ZeRO stage 1 or 2 with the settings of the paper's framework.

    Args:
        stage: 2 shards gradients and optimizer, 1 the optimizer only.
        offload_optimizer: keep the optimizer in the memory of the CPU.
        contiguous_gradients: copy gradients to one buffer as they appear.
        overlap_comm: reduce gradients while the backward pass still runs.
        allgather_bucket_size: elements gathered at a time after an update.
        reduce_bucket_size: elements reduced at a time.
        timeout: how long a process waits for another one; the slowest rollout has to fit.
        config: DeepSpeed's own configuration or a file with it, in place of all that is above
            but the timeout.

    Raises:
        ConfigError: where DeepSpeed is not installed, for another stage, or for fp16.
    """

    def __init__(
        self,
        stage: int = 2,
        offload_optimizer: bool = False,
        contiguous_gradients: bool = True,
        overlap_comm: bool = False,
        allgather_bucket_size: int = 200_000_000,
        reduce_bucket_size: int = 200_000_000,
        timeout: timedelta = timedelta(minutes=30),
        config: dict[str, Any] | str | None = None,
    ) -> None:
        if find_spec("deepspeed") is None:
            raise ConfigError(
                "trainer.strategy: DeepSpeed is not installed; pip install "
                "'svr-lightning[deepspeed]', or set trainer.strategy to auto or ddp"
            )
        if not torch.cuda.is_available():
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        super().__init__(
            stage=stage,
            offload_optimizer=offload_optimizer,
            contiguous_gradients=contiguous_gradients,
            overlap_comm=overlap_comm,
            allgather_bucket_size=allgather_bucket_size,
            reduce_bucket_size=reduce_bucket_size,
            timeout=timeout,
            config=config,
        )
        assert isinstance(self.config, dict)
        self._check(self.config)

    @staticmethod
    def _check(config: dict[str, Any]) -> None:
        stage = config.get("zero_optimization", {}).get("stage", 0)
        if stage not in (1, 2):
            raise ConfigError(
                f"trainer.strategy: ZeRO stage {stage} is not 1 or 2. Stage 3 shards the weights, "
                "which every process's rollouts need whole, and without ZeRO DDP does the same"
            )
        if config.get("fp16", {}).get("enabled"):
            raise ConfigError(f"trainer.strategy: fp16 {FP16}; use bf16")

    @property
    def precision_plugin(self) -> Any:
        """How numbers are represented."""
        return super().precision_plugin

    @precision_plugin.setter
    def precision_plugin(self, plugin: Any) -> None:
        if isinstance(plugin, DeepSpeedPrecision):
            if plugin.precision.startswith("16"):
                raise ConfigError(f"trainer.precision={plugin.precision} {FP16}; use bf16-true")
            plugin = WeightsOnlyPrecision(plugin.precision)
        self._precision_plugin = plugin

    @property
    def root_device(self) -> torch.device:
        """The device of this process."""
        device: torch.device = super().root_device
        return torch.device("cpu", 0) if device.type == "cpu" else device

    def setup_environment(self) -> None:
        """Also accept CPUs, which communicate by gloo."""
        if not isinstance(self.accelerator, CPUAccelerator):
            super().setup_environment()
            return
        import deepspeed

        # DeepSpeed would compile a communication kernel of its own for over a minute.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        super(DeepSpeedStrategy, self).setup_environment()

    def setup_distributed(self) -> None:
        """Join the other processes."""
        if isinstance(self.accelerator, CPUAccelerator):
            self.set_world_ranks()
            self._init_deepspeed_distributed()
        else:
            super().setup_distributed()

    def _format_config(self) -> None:
        super()._format_config()
        if "bf16" in self.config:
            # The check for gradients that are not finite needs it.
            self.config["bf16"].setdefault("check_grad_overflow", True)

    def init_deepspeed(self) -> None:
        """Create DeepSpeed's engine, and make its checkpoints atomic."""
        super().init_deepspeed()
        sharded_checkpoint.make_durable(self.deepspeed_engine.checkpoint_engine)

    def backward(self, closure_loss: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Lightning has divided the loss by the accumulated micro-batches; once is enough."""
        return super().backward(closure_loss, optimizer, *args, scale_wrt_gas=False, **kwargs)

    def gradient_norm(self) -> float:
        """The norm of the last update's gradient before clipping; inf where it was refused."""
        return float(self.deepspeed_engine.get_global_grad_norm())

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Write a folder beside the previous one, then let the name point to it."""
        target = Path(self.broadcast(filepath))
        folder = self.broadcast(sharded_checkpoint.free_slot(target))
        if self.is_global_zero:
            sharded_checkpoint.clear(folder)
        self.barrier()
        super().save_checkpoint(checkpoint, folder, storage_options)  # ends when all have written
        if self.is_global_zero:
            sharded_checkpoint.point(target, folder)
        self.barrier()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        """Read weights, reference, and in training this process's share of the optimizer.

        Raises:
            ConfigError: if it is missing, damaged, or of another number of processes.
        """
        assert self.lightning_module is not None
        training = self.lightning_module.trainer.state.fn == "fit"
        sharded_checkpoint.check(Path(checkpoint_path), self.world_size if training else None)
        _, state = self.deepspeed_engine.load_checkpoint(
            str(checkpoint_path),
            tag=sharded_checkpoint.TAG,
            load_optimizer_states=training,
            load_lr_scheduler_states=False,
            custom_load_fn=None if training else sharded_checkpoint.load_without_reference,
        )
        return state

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a checkpoint's name and folders."""
        if self.is_global_zero:
            sharded_checkpoint.remove(Path(filepath))


def own_strategy(strategy: Any) -> Any:
    """What ``trainer.strategy`` asks for, Lightning's own DeepSpeed replaced or refused.

    Lightning 2.6.6 divides gradients twice by the accumulated micro-batches, which AdamW hides
    and clipping does not.

    Raises:
        ConfigError: for an object of Lightning's class.
    """
    if isinstance(strategy, str) and strategy.startswith("deepspeed"):
        if strategy not in StrategyRegistry:
            return strategy  # for Lightning to refuse
        asked = StrategyRegistry[strategy]["init_params"]
        settings = {name: asked[name] for name in ("stage", "offload_optimizer") if name in asked}
        return SVRDeepSpeedStrategy(**settings)
    if isinstance(strategy, DeepSpeedStrategy) and not isinstance(strategy, SVRDeepSpeedStrategy):
        raise ConfigError(
            "trainer.strategy: Lightning's DeepSpeedStrategy divides gradients twice by "
            "accumulate_grad_batches; use the class svr_lightning.training.deepspeed."
            "SVRDeepSpeedStrategy"
        )
    return strategy
