"""What of a configuration decides how much memory a training step takes."""

import inspect
import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from math import ceil
from typing import Any

import yaml

from svr_lightning.cli.main import main
from svr_lightning.engines.vllm import VLLMEngine
from svr_lightning.errors import ConfigError, require
from svr_lightning.training.distributed import SVRDeepSpeedStrategy


@dataclass(frozen=True, kw_only=True)
class Zero:
    """DeepSpeed's ZeRO."""

    stage: int
    reduce_bucket_size: int
    """Elements of a communication buffer."""
    overlap_comm: bool
    offload_optimizer: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A training step: which model, at which shape, in which types, on how many GPUs."""

    policy: str
    device: str
    """``cuda`` or ``cpu``."""
    precision: str
    ranks: int
    zero: Zero | None
    shards: int = 1
    """Processes that share policy, reference, gradients and optimizer: FSDP2."""
    lora: tuple[int, str | tuple[str, ...]] | None = None
    """Rank of the adapters that train, and which layers have one."""
    reference_follows: bool = True
    checkpointing: bool
    sequences: int
    """In one micro-batch, all as long as they may be."""
    prompt: int
    completion: int
    micro_batches: int
    reference: bool
    reference_dtype: str | None
    engine_share: float
    """Of a card's memory; 0 where the engine takes none in advance."""
    sleeps: bool
    tensor_parallel: int


def resolve(arguments: Sequence[str]) -> dict[str, Any]:
    """What ``python -m svr_lightning fit ARGUMENTS`` would run with.

    Raises:
        ConfigError: where the command line would refuse them; it has printed why.
    """
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            code: Any = main(["fit", *arguments, "--print_config"])
    except SystemExit as end:
        code = end.code
    require(not code, "the configuration cannot be read; see above")
    return dict(yaml.safe_load(printed.getvalue()))


def plan_of(resolved: Mapping[str, Any]) -> Plan:
    """The plan of a resolved configuration.

    Raises:
        ConfigError: if it leaves the number of devices to the machine.
    """
    trainer, model, data = (resolved[name] for name in ("trainer", "model", "data"))
    policy, recipe = model["policy"], model["recipe"]["init_args"]
    device = "cpu" if trainer["accelerator"] == "cpu" else "cuda"
    require(
        isinstance(trainer["devices"], int | list),
        f"trainer.devices={trainer['devices']} depends on the machine; give a number",
    )
    devices = trainer["devices"]
    ranks = (devices if isinstance(devices, int) else len(devices)) * trainer["num_nodes"]
    problems = data["problems_per_step"] // ranks
    sequences = problems * recipe["group_size"]
    micro_batches = ceil(sequences / model["micro_batch_size"])
    prompt = policy["max_prompt_tokens"]
    share, sleeps, parallel = _engine(model.get("engine"), device)
    return Plan(
        policy=policy["path"],
        device=device,
        precision=str(trainer["precision"]),
        ranks=ranks,
        zero=_zero(trainer["strategy"]),
        shards=ranks if _shards(trainer["strategy"]) else 1,
        lora=_adapters(policy["lora"]),
        reference_follows=model["reference"]["every"] > 0,
        checkpointing=policy["gradient_checkpointing"],
        sequences=ceil(sequences / micro_batches),
        prompt=prompt,
        completion=min(
            model["sampling"]["max_completion_tokens"], policy["max_model_len"] - prompt
        ),
        micro_batches=micro_batches,
        reference=bool(recipe["loss"]["beta"]),
        reference_dtype=model["reference"]["dtype"],
        engine_share=share,
        sleeps=sleeps,
        tensor_parallel=parallel,
    )


def _zero(strategy: Any) -> Zero | None:
    if isinstance(strategy, str) and not strategy.startswith("deepspeed"):
        return None
    if isinstance(strategy, str):
        strategy = {"init_args": {"stage": int(strategy.split("_")[2])}}
    elif "DeepSpeed" not in strategy["class_path"]:
        return None
    settings = _defaults(SVRDeepSpeedStrategy) | strategy.get("init_args", {})
    if settings.get("config"):
        raise ConfigError("trainer.strategy: a DeepSpeed configuration of its own is not read")
    names = ("stage", "reduce_bucket_size", "overlap_comm", "offload_optimizer")
    return Zero(**{name: settings[name] for name in names})


def _shards(strategy: Any) -> bool:
    return not isinstance(strategy, str) and strategy["class_path"].endswith("SVRFSDPStrategy")


def _adapters(lora: Any) -> tuple[int, str | tuple[str, ...]] | None:
    if lora is None:
        return None
    names = lora["target_modules"]
    return lora["r"], names if isinstance(names, str) else tuple(names)


def _engine(engine: Any, device: str) -> tuple[float, bool, int]:
    """Its share of the card, whether it sleeps while the policy trains, and its GPUs."""
    if engine is None:
        engine = {"class_path": "VLLMEngine" if device == "cuda" else ""}
    if not engine["class_path"].endswith("VLLMEngine") or device == "cpu":
        return 0.0, False, 1
    settings = _defaults(VLLMEngine) | engine.get("init_args", {})
    share, level = settings["gpu_memory_utilization"], settings["sleep_level"]
    return float(share), level > 0, int(settings["tensor_parallel_size"])


def _defaults(cls: Any) -> dict[str, Any]:
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}
