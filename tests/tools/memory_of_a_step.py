"""Prints by how many bytes a training step on a CPU raises the peak of a process's memory.

A process of its own, with the arguments of ``fit``. What the interpreter, the libraries and their
buffers take is there before: a short step has run.
"""

import gc
import sys
from dataclasses import replace
from pathlib import Path

import torch

from tools.memory import counted, plan_of, resolve


def resident(key: str) -> int:
    """Bytes that Linux counts for this process under ``VmRSS`` or, their highest, ``VmHWM``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


if __name__ == "__main__":
    torch.set_num_threads(1)
    plan = plan_of(resolve(sys.argv[1:]))
    counted(replace(plan, sequences=1, prompt=40, completion=20), with_data=True)
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest begins anew
    counted(plan, with_data=True)
    print(resident("VmHWM") - before)
