"""Real trainings through the command line, on every visible GPU.

``fit`` is a shipped configuration at full depth with the engine that it chooses itself, compiled:
two steps with a validation after each. ``resume`` is a shallow policy under DeepSpeed with nothing
compiled, killed within a step and resumed.
"""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml

from svr_lightning.core.types import Sample
from svr_lightning.recipes.base import Group
from svr_lightning.recipes.svr import SVR
from svr_lightning.report.figures_training import Curves, read_curves
from svr_lightning.training.config import PolicyConfig
from svr_lightning.training.policy import load_policy, weights_fingerprint
from tools.gpu_check.models import question, save_checkpoint, shapes
from tools.gpu_check.settings import Emit, SkippedError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
PROBLEMS = 128
KILLED_AFTER = 3
"""Step; the last checkpoint is of the one before."""
SHOWN = ("train/loss", "train/grad_norm", "engine/", "time/", "speed/", "memory/")
"""Beginnings of the logged keys that are reported."""
ENGINES = {
    True: {
        "class_path": "svr_lightning.engines.vllm.VLLMEngine",
        "init_args": {"options": {"enforce_eager": True}},
    },
    False: {"class_path": "svr_lightning.engines.transformers.TransformersEngine"},
}
"""For the resumed run, by whether vLLM is installed."""


@dataclass(frozen=True, kw_only=True)
class Alternating(SVR):
    """SVR with advantages of +1 and -1 in turns.

    What random weights write all earns the same, and a step without gradient would show nothing.
    """

    def credit(self, group: Group) -> list[Sample]:
        """The samples of SVR with other advantages."""
        samples = super().credit(group)
        return [replace(s, advantage=(-1.0) ** index) for index, s in enumerate(samples)]


class Fit:
    """One training: its configuration, its processes, its log.

    Args:
        emit: takes the figures.
        folder: for the checkpoint, the problems and the run.
        device: ``cuda`` or ``cpu``.
        depth: name of the policy's shape.

    Raises:
        RuntimeError: if the checkpoint is not loaded as it was saved.
    """

    def __init__(self, emit: Emit, folder: Path, device: str, depth: str) -> None:
        self.run, self._file = folder / "run", folder / "changes.yaml"
        self._cpu = device == "cpu"
        self.gpus = 1 if self._cpu else torch.cuda.device_count()
        emit("gpus", 0 if self._cpu else self.gpus)
        policy = str(folder / "policy")
        saved = save_checkpoint(folder / "policy", shapes(self._cpu)[depth], device)
        loaded = weights_fingerprint(load_policy(PolicyConfig(path=policy), seed=0)[0].state_dict())
        emit("loaded_as_saved", loaded == saved, note="under the names of Qwen3.5's checkpoints")
        if loaded != saved:
            raise RuntimeError(f"{policy} is loaded with other weights than it was saved with")
        problems = folder / "problems.jsonl"
        rows = [{"question": question(n), "answer": f"#### {n}"} for n in range(PROBLEMS)]
        problems.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        files = {"gsm8k_train": str(problems), "gsm8k": str(problems)}
        self.changes: dict[str, Any] = {
            "trainer": {
                "default_root_dir": str(self.run),
                "devices": self.gpus,
                "max_epochs": -1,
                "limit_train_batches": 1.0,
                "val_check_interval": 1,
                "limit_val_batches": 1,
                "enable_progress_bar": False,
            },
            "model": {
                "policy": {"path": policy},
                "recipe": {
                    "class_path": f"{__name__}.Alternating",
                    "init_args": {"group_size": 2 if self._cpu else 8},
                },
                "optimizer": {"lr": 1e-4, "warmup_fraction": 0.0},
                "evaluation": {"max_turns": 2},
                "resample": "off",
            },
            "data": {"eval_batch_size": 4, "local_files": files},
        }

    @contextmanager
    def started(self, *extra: str) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
        """The command, and the file that takes what it prints."""
        layer = "cpu_smoke" if self._cpu else "1gpu" if self.gpus == 1 else "4gpu_zero2"
        self._file.write_text(yaml.safe_dump(self.changes), encoding="utf-8")
        files = [CONFIGS / "gsm8k.yaml", CONFIGS / "hardware" / f"{layer}.yaml", self._file]
        command = [sys.executable, "-m", "svr_lightning", "fit", *extra]
        command += [word for file in files for word in ("--config", str(file))]
        output = self._file.with_suffix(".log")
        with (
            output.open("w") as stream,
            subprocess.Popen(command, stdout=stream, stderr=stream, text=True) as process,
        ):
            try:
                yield process, output
            finally:
                process.kill()
        print(output.read_text(errors="replace"), flush=True)

    def finish(self, *extra: str) -> None:
        """Run the command to its end.

        Raises:
            RuntimeError: if it fails.
        """
        with self.started(*extra) as (process, output):
            code = process.wait()
            if code:
                raise RuntimeError(reason(code, output.read_text(errors="replace")))

    def logged(self) -> Curves:
        """What ``metrics.csv`` has, as far as it is written."""
        file = self.run / "metrics.csv"
        return read_curves(file) if file.exists() else {}

    def steps(self) -> int:
        """The last optimizer step of which something is logged, or 0."""
        return max((steps[-1] for steps, _ in self.logged().values()), default=0)

    def report(self, emit: Emit) -> None:
        """The last value of everything that is logged."""
        emit("steps", self.steps(), note="optimizer steps")
        for key, (_, values) in self.logged().items():
            if key.startswith(SHOWN):
                emit(key, values[-1])

    def sampled(self, step: int) -> dict[tuple[str, int], list[str]]:
        """The texts of a step's trajectories, by problem and sample."""
        lines = [json.loads(line) for line in (self.run / "rollouts.jsonl").open()]
        return {
            (line["id"], line["sample"]): [turn["text"] for turn in line["turns"]]
            for line in lines
            if line["step"] == step
        }


def run(emit: Emit, device: str) -> None:
    """The part ``fit``."""
    _require_command_line()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        fit = Fit(emit, Path(folder), device, "hybrid")
        fit.changes["trainer"]["max_steps"] = 2
        began = time.perf_counter()
        fit.finish()
        emit("command", time.perf_counter() - began, "s", "start-up, steps, validations, export")
        fit.report(emit)
        results = sorted(fit.run.glob("eval/*/results.json"))
        emit("validations", [path.parent.name for path in results])


def resume(emit: Emit, device: str) -> None:
    """The part ``resume``."""
    _require_command_line()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        fit = Fit(emit, Path(folder), device, "shallow")
        zero = find_spec("deepspeed") is not None
        emit("deepspeed", zero, note="" if zero else "not installed: DDP")
        vllm = find_spec("vllm") is not None and device == "cuda"
        emit("engine", "vllm, eager" if vllm else "transformers")
        saving = {"every_n_train_steps": 2, "save_top_k": 0, "save_last": True}
        checkpoint = "lightning.pytorch.callbacks.ModelCheckpoint"
        fit.changes["trainer"] |= {
            "max_steps": KILLED_AFTER + 1,
            "limit_val_batches": 0,
            "strategy": "deepspeed_stage_2" if zero else "auto" if fit.gpus == 1 else "ddp",
            "precision": "bf16-true" if zero else "32-true" if device == "cpu" else "bf16-mixed",
            "callbacks": [
                {"class_path": "svr_lightning.callbacks.RolloutLog"},
                {
                    "class_path": checkpoint,
                    "init_args": saving | {"enable_version_counter": False},
                },
            ],
        }
        fit.changes["model"] |= {
            "engine": ENGINES[vllm],
            "sampling": {"max_completion_tokens": 16},
        }
        with fit.started() as (process, output):
            while fit.steps() < KILLED_AFTER:
                if process.poll() is not None:
                    raise RuntimeError(reason(process.returncode, output.read_text()))
                time.sleep(0.05)
            process.kill()
        emit("killed", KILLED_AFTER, note="step that was done; the checkpoint is of the one before")
        before = fit.sampled(KILLED_AFTER)
        fit.finish("--ckpt_path", "last")
        fit.report(emit)
        again = fit.sampled(KILLED_AFTER)
        same = sum(again[key] == texts for key, texts in before.items()) / len(before)
        emit("same_rollouts", same, note="share of the killed step's trajectories, drawn once more")


def _require_command_line() -> None:
    if find_spec("jsonargparse") is None:
        raise SkippedError("jsonargparse, which the command line needs, is not installed")


def reason(code: int, output: str) -> str:
    """The last output line that names an error, else the last line."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if re.search("[Ee]rror:", line)]
    return (named or lines or ["it wrote nothing"])[-1][:300]
