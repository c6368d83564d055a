"""The process that vLLM lives in: its environment and its GPU."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from svr_lightning.errors import require

_EXPECTED = {
    "vllm.model_executor.model_loader.reload.layerwise": ("Failed to load weights",),
    "vllm.model_executor.models.utils": ("Attempted to load weight",),
    "vllm.renderers.base": ("Chat template warmup failed", "because tokenizer is not initialized"),
    "vllm.utils.jit_monitor": ("during inference",),
    "vllm.v1.engine.input_processor": ("Passing raw prompts",),
}
"""Warnings about what is intended, by vLLM's logger: layers without weights of their own get none;
every sync rounds fp32 masters, a line for each weight; the engine gets tokens and no tokenizer; and
it reports each kernel that Triton compiles in this process, those of the update included."""


def prepare_environment() -> None:
    """Set the environment variables that vLLM reads when it is first imported, and its loggers."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the model has to live in this process
    for name, value in (
        ("VLLM_LOGGING_LEVEL", "WARNING"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        # Otherwise vLLM makes Triton print every configuration that the trainer's kernels try.
        ("TRITON_PRINT_AUTOTUNING", "0"),
    ):
        os.environ.setdefault(name, value)
    for name in _EXPECTED:
        logging.getLogger(name).addFilter(_not_expected)


def _not_expected(record: logging.LogRecord) -> bool:
    return not any(words in str(record.msg) for words in _EXPECTED[record.name])


@contextmanager
def process_named(gpu: int) -> Iterator[None]:
    """Within it, the environment has this process's rank and, as ``LOCAL_RANK``, its GPU.

    A launcher's ``LOCAL_RANK`` counts the processes of a machine, which is another number under
    ``devices: [2, 3]``, and SLURM sets none. Lightning reads it again later. A single process has
    no such variable: vLLM then takes the first GPU.

    Args:
        gpu: of this process, among those that it sees.

    Raises:
        ConfigError: if vLLM would use another GPU.
    """
    world = processes()
    if world == 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        name = visible.split(",")[gpu] if visible else gpu
        require(
            gpu == 0,
            f"trainer.devices=[{gpu}]: the policy is on GPU {gpu}, and vLLM in a single process "
            f"takes the first one; set CUDA_VISIBLE_DEVICES={name} and trainer.devices=1",
        )
        yield
        return
    rank = torch.distributed.get_rank()
    variables = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(gpu)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def processes() -> int:
    """Processes of this run."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
