"""Real commands on every visible GPU: their configuration, their process, their log."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml

from svr_lightning.core.types import Sample
from svr_lightning.recipes.base import Group
from svr_lightning.recipes.svr import SVR
from tests.commands import logged, write_jsonl
from tests.gpu.policy import Policy, question
from tests.gpu.report import Figures, finished, started

PROBLEMS = 128
CHANGES = f"""
trainer:
  max_epochs: -1
  max_steps: 2
  limit_train_batches: 1.0
  val_check_interval: 1
  limit_val_batches: 1
  enable_progress_bar: false
  enable_checkpointing: false
  callbacks: [{{class_path: svr_lightning.callbacks.RolloutLog}}]
model:
  recipe: {{class_path: {__name__}.Alternating}}
  optimizer: {{lr: 1.0e-4, warmup_fraction: 0.0}}
  evaluation: {{max_turns: 2}}
  resample: "off"
data: {{eval_batch_size: 4}}
"""
LOG = {"class_path": "svr_lightning.callbacks.RolloutLog"}
SHOWN = ("train/loss", "train/grad_norm", "engine/", "time/", "speed/", "memory/")
"""Beginnings of the logged keys that are reported."""


@dataclass(frozen=True, kw_only=True)
class Alternating(SVR):
    """SVR with advantages of +1 and -1 in turns.

    What random weights write all earns the same, and a step without gradient would show nothing.
    """

    def credit(self, group: Group) -> list[Sample]:
        """The samples of SVR with other advantages."""
        samples = super().credit(group)
        return [replace(s, advantage=(-1.0) ** index) for index, s in enumerate(samples)]


class Run:
    """A shipped configuration on the GPUs of this machine, or in small on the processor."""

    def __init__(self, folder: Path, policy: Policy, device: str, layer: str | None = None) -> None:
        self.folder, self.cpu = folder / "run", device == "cpu"
        self._device, self._log = device, folder / "changes.log"
        self.gpus = 1 if self.cpu or layer else torch.cuda.device_count()
        self._layer = layer or ("1gpu" if self.gpus == 1 else "4gpu_zero2")
        self._file, self._reported = folder / "changes.yaml", dict[str, int]()
        rows = [{"question": question(n), "answer": f"#### {n}"} for n in range(PROBLEMS)]
        problems = write_jsonl(folder / "problems.jsonl", rows)
        self.changes = yaml.safe_load(CHANGES)
        self.changes["trainer"] |= {"default_root_dir": str(self.folder), "devices": self.gpus}
        self.changes["model"]["policy"] = {"path": str(policy.folder)}
        self.changes["data"]["local_files"] = dict.fromkeys(
            ("gsm8k_train", "gsm8k_val", "gsm8k"), str(problems)
        )
        share = 2 if self.cpu else max(1, 16 // self.gpus)
        self.changes["data"]["problems_per_step"] = share * self.gpus
        if self.cpu:
            self.changes["model"]["recipe"]["init_args"] = {"group_size": 2}

    def started(self, command: str, *more: str) -> AbstractContextManager[Callable[[], int | None]]:
        """The command, and what tells its exit code."""
        self._file.write_text(yaml.safe_dump(self.changes), encoding="utf-8")
        layers = ["gsm8k", f"hardware/{self._layer}", *(["hardware/cpu_smoke"] if self.cpu else [])]
        configs = [word for layer in (*layers, str(self._file)) for word in ("--config", layer)]
        return started(self._log, self._device, command, *configs, *more)

    def finish(self, figures: Figures, command: str, *more: str, seconds: float) -> None:
        """Run a command to its end, reporting what it logs as it is written."""
        began = time.perf_counter()
        with self.started(command, *more) as ended:
            finished(ended, self._log, seconds, lambda: self.report(figures))
        self.report(figures)
        figures(command, time.perf_counter() - began, "s", "the whole command")

    def logged(self) -> dict[str, dict[int, float]]:
        """By key, the values of steps that are written so far."""
        return logged(self.folder) if (self.folder / "metrics.csv").exists() else {}

    def steps(self) -> int:
        """The last optimizer step of which something is logged, or 0."""
        return max((max(values) for values in self.logged().values()), default=0)

    def report(self, figures: Figures) -> None:
        """The values of everything that is logged, by step, where there are new ones."""
        for key, values in self.logged().items():
            if key.startswith(SHOWN) and self._reported.get(key) != len(values):
                self._reported[key] = len(values)
                figures(key, values, note="by step")


def eager_engine(cpu: bool) -> dict[str, Any]:
    """An engine that compiles nothing."""
    if cpu or find_spec("vllm") is None:
        return {"class_path": "svr_lightning.engines.transformers.TransformersEngine"}
    options = {"options": {"enforce_eager": True}}
    return {"class_path": "svr_lightning.engines.vllm.VLLMEngine", "init_args": options}
