"""Small trainings in processes of their own, and what two of them have to agree on."""

import csv
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from tests import forked
from tests.commands import SMALL, read_json

MEASURED = ("time/", "speed/", "memory/")
"""Logged values that no run repeats begin so."""


def command(folder: Path, *extra: str) -> list[str]:
    """The small training, writing to ``folder``."""
    return ["fit", *SMALL, "--trainer.default_root_dir", str(folder), *extra]


def start(folder: Path, *extra: str) -> BaseProcess:
    """Start the small training."""
    folder.mkdir(parents=True, exist_ok=True)
    return forked.start(folder.with_suffix(".log"), *command(folder, *extra))


def resume(folder: Path, *extra: str) -> BaseProcess:
    """The same command with ``--ckpt_path last``."""
    return start(folder, "--ckpt_path", "last", *extra)


def wait_for(path: Path, process: BaseProcess, text: str = "") -> None:
    """Wait until a running process has written a file that contains ``text``."""
    for _ in range(6000):
        if path.exists() and text in path.read_text(errors="replace"):
            return
        assert process.exitcode is None, f"the run ended with exit code {process.exitcode}"
        time.sleep(0.05)
    raise AssertionError(f"{path} with {text!r} never appeared")


STATE = ("state_dict", "module", "optimizer_states", "optimizer_state_dict", "lr_schedulers")
"""Of a checkpoint; DeepSpeed names weights and optimizer as its own."""


def differences(one: Path, other: Path, rounded: tuple[str, ...] = ()) -> list[str]:
    """Everything in which the end states of two runs differ, but for logged keys in ``rounded``."""
    found = []
    left, right = (_checkpoint(folder) for folder in (one, other))
    compare("checkpoint", left, right, found)
    if (one / "rollouts.jsonl").read_bytes() != (other / "rollouts.jsonl").read_bytes():
        found.append("rollouts.jsonl")
    rows = sorted(_metrics(one) ^ _metrics(other))
    found += [f"metrics.csv: {row}" for row in rows if row[1] not in rounded]
    for name in sorted({f.relative_to(d) for d in (one, other) for f in d.glob("eval/*/*.json*")}):
        left, right = (_evaluation(folder / name) for folder in (one, other))
        if left != right:
            found.append(str(name))
    return found


def _checkpoint(folder: Path) -> dict[str, Any]:
    """What a resume restores, by file: DeepSpeed writes several."""
    path = folder / "checkpoints" / "last.ckpt"
    files = sorted(path.rglob("*.pt")) if path.is_dir() else [path]
    assert files
    states = [torch.load(file, map_location="cpu", weights_only=False) for file in files]
    return {
        file.name: {key: state[key] for key in (*STATE, "loops", "global_step") if key in state}
        for file, state in zip(files, states, strict=True)
    }


def _metrics(folder: Path) -> set[tuple[str, ...]]:
    """All logged values but times, speeds and memory."""
    with (folder / "metrics.csv").open(newline="") as stream:
        rows = [tuple(row) for row in csv.reader(stream) if not row[1].startswith(MEASURED)]
    assert len(rows) == len(set(rows))
    return set(rows)


def _evaluation(path: Path) -> Any:
    """An evaluation file without the configuration, which names the folder."""
    if not path.is_file():
        return None
    if path.suffix == ".jsonl":
        return path.read_text()
    return {k: v for k, v in read_json(path).items() if k != "config"}


def compare(name: str, left: Any, right: Any, found: list[str]) -> None:
    """Add to ``found`` where two values of a checkpoint differ."""
    if isinstance(left, torch.Tensor):
        if not torch.equal(left.nan_to_num(7.0), right.nan_to_num(7.0)):
            found.append(name)
    elif isinstance(left, dict):
        if left.keys() != right.keys():
            found.append(f"{name}: keys")
            return
        for key in left:
            compare(f"{name}.{key}", left[key], right[key], found)
    elif isinstance(left, list | tuple):
        if len(left) != len(right):
            found.append(f"{name}: length")
            return
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            compare(f"{name}[{index}]", a, b, found)
    elif type(left) is type(right) and hasattr(left, "__dict__"):
        compare(name, vars(left), vars(right), found)
    elif left != right:
        found.append(f"{name}: {left!r} != {right!r}")
