"""The file of figures, and processes of their own that add to it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from svr_lightning.files import write_json
from tests import forked
from tools.bench.workloads import this_machine


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


@contextmanager
def started(
    log: Path, device: str, *arguments: str, module: str = "svr_lightning"
) -> Iterator[Callable[[], int | None]]:
    """A module in a process of its own, which gives back its memory and ends with the context.

    Yields what tells its exit code, None while it runs. Without a GPU it is forked, which is faster
    and would lose a GPU's context.
    """
    if device == "cpu":
        process = forked.start(log, *arguments, module=module)
        try:
            yield lambda: process.exitcode
        finally:
            process.kill()
            process.join()
        return
    line = [sys.executable, "-m", module, *arguments]
    options = {"cwd": forked.ROOT, "start_new_session": True}
    with log.open("ab") as out, subprocess.Popen(line, stdout=out, stderr=out, **options) as new:
        try:
            yield new.poll
        finally:
            with suppress(ProcessLookupError):  # all that it has started has ended too
                os.killpg(new.pid, signal.SIGKILL)


def finished(
    ended: Callable[[], int | None], log: Path, seconds: float, meanwhile: Callable[[], None]
) -> None:
    """Wait for the end of a process that has to succeed in this time."""
    began = time.perf_counter()
    while ended() is None and time.perf_counter() - began < seconds:
        meanwhile()
        time.sleep(0.2)
    assert ended() == 0, log.read_text(errors="replace")[-4000:]
