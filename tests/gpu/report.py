"""The file of figures, and processes of their own that add to it."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from svr_lightning.files import write_json
from tools.bench.workloads import this_machine

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Figures:
    """Adds to one test's entry of a report."""

    report: Path
    test: str

    def __call__(self, name: str, value: object, unit: str = "", note: str = "") -> None:
        """Add a figure and print it: a number with its unit, a text, or None for a missing one."""
        found = read(self.report)
        figure = {"value": value} | {k: v for k, v in (("unit", unit), ("note", note)) if v}
        found.setdefault("tests", {}).setdefault(self.test, {})[name] = figure
        write_json(self.report, found)
        print(f"{self.test}: {name} = {value} {unit} {note}".rstrip(), flush=True)

    def value(self, name: str) -> Any:
        """A figure that was added."""
        return read(self.report)["tests"][self.test][name]["value"]


def read(report: Path) -> dict[str, Any]:
    """What a report holds so far; {} where there is none."""
    return dict(json.loads(report.read_text(encoding="utf-8"))) if report.exists() else {}


def describe_machine(report: Path, device: str) -> None:
    """Write what the figures are measured on."""
    import torch

    found = read(report) | {"device": device} | this_machine(device)
    found["allocator"] = os.environ.get("PYTORCH_ALLOC_CONF")
    if device == "cuda":
        found["cudnn"] = torch.backends.cudnn.version()
    write_json(report, found)


def alone(module: str, *arguments: str, seconds: float) -> None:
    """Run a module in a process of its own, which gives back its memory and can be ended."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    print(done.stdout)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def kill_group(group: int) -> None:
    """End a process and all that it has started."""
    with suppress(ProcessLookupError):  # all of it has ended
        os.killpg(group, signal.SIGKILL)
