"""vLLM's configuration on CUDA devices that are not there.

``python -m tests.vllm.faked_cuda OUT`` starts the engine as a training does, but for vLLM itself,
whose configuration is all that is made. Nothing is computed.
"""

import json
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.vllm.inspecting import inspect_here

CARDS = {"A100 of 80 GB": ((8, 0), 80), "H100 of 80 GB": ((9, 0), 80), "H200": ((9, 0), 141)}
TRAJECTORIES = 128
THEIR_OWN = "what vLLM chooses on an H200"


def fake_cuda() -> Any:
    """Make vLLM's CPU build take this machine for one with a CUDA device; returns the device."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # vLLM then expects no Triton driver
    import vllm.platforms as platforms
    from vllm.platforms.interface import DeviceCapability

    kernels = ModuleType("vllm._C_stable_libtorch")  # the compiled part, of which nothing runs
    kernels.__spec__ = ModuleSpec(kernels.__name__, None)
    sys.modules[kernels.__name__] = kernels
    assert platforms.current_platform.is_cpu()
    platforms.vllm_version_matches_substr = lambda _: False  # it is no CPU build
    from vllm.model_executor.models import qwen3_5  # noqa: F401  # what it needs of a CPU build

    inspect_here()
    from vllm.platforms.cuda import CudaPlatformBase

    class Card(CudaPlatformBase):
        capability, gigabytes = CARDS["H200"]

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(*cls.capability)

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return cls.gigabytes * 10**9

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA H200"

        @classmethod
        def device_count(cls) -> int:
            return 1

    # By its class, since modules that have been imported hold the platform itself.
    platforms.current_platform.__class__ = Card
    return Card


class ConfiguredError(Exception):
    """Ends a start where the configuration has been made, which it holds."""


def configure(**arguments: Any) -> None:
    """In place of ``vllm.LLM``."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.torch_utils import set_torch_threads_for_runtime

    set_torch_threads_for_runtime()  # as its worker on a GPU does
    raise ConfiguredError(EngineArgs(**arguments).create_engine_config(UsageContext.LLM_CLASS))


def found(**options: Any) -> dict[str, Any]:
    """What matters of the configuration for a hybrid model of Qwen3.5's widths."""
    from transformers import Qwen3_5ForCausalLM
    from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn as linear

    from svr_lightning.engines.vllm import VLLMEngine
    from tools.shapes import qwen3_5

    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(qwen3_5(num_hidden_layers=4))
    engine = VLLMEngine(options=options)
    engine.trajectories = TRAJECTORIES
    try:
        engine.start(model, (7,), 8192)
    except ConfiguredError as made:
        (config,) = made.args
    return {
        "version_2": config.use_v2_model_runner,
        "prefill": linear._resolve_gdn_prefill_backend(config)[1],
        "sequences": config.scheduler_config.max_num_seqs,
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "largest_graph": max(config.compilation_config.cudagraph_capture_sizes),
        "states": str(config.cache_config.mamba_ssm_cache_dtype),
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    torch.cuda.current_device = lambda: 0
    os.environ.pop("OMP_NUM_THREADS", None)
    torch.set_num_threads(2)
    card = fake_cuda()
    import vllm

    vllm.LLM = configure
    figures = {}
    for name, (card.capability, card.gigabytes) in CARDS.items():
        figures[name] = found()
    figures[THEIR_OWN] = found(additional_config={}, max_num_seqs=None)
    Path(sys.argv[1]).write_text(json.dumps(figures))
