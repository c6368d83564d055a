"""Why torch may see no GPU on a machine that has one."""

from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/version")
CUDA, OLDEST_DRIVER = "13", 580
"""The version of CUDA that torch is built for, and the oldest NVIDIA driver that supports it."""


def driver_fault() -> str | None:
    """What is wrong if torch sees no GPU although the machine has an NVIDIA driver."""
    import torch

    cuda = torch.version.cuda or ""
    if not cuda.startswith(CUDA) or torch.cuda.is_available() or not DRIVER.exists():
        return None
    words = DRIVER.read_text(encoding="utf-8", errors="replace").split()
    release = next((word for word in words if word[:1].isdigit() and "." in word), "unknown")
    return (
        f"torch is built for CUDA {cuda}, which needs an NVIDIA driver >= {OLDEST_DRIVER}; "
        f"the driver here is {release}"
    )
