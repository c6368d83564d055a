"""Real trainings through the command line, on every visible GPU.

``fit`` is a shipped configuration at full depth with the engine that it chooses itself, compiled:
two steps with a validation after each. ``resume`` is a shallow policy under DeepSpeed with nothing
compiled, killed within a step and resumed.
"""

import json
import os
import re
import signal
import subprocess
import sys
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
from tools.bench.workloads import release
from tools.gpu_check.models import question, save_checkpoint, shapes
from tools.gpu_check.settings import FOLDER, Emit, SkippedError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
PROBLEMS = 128
KILLED_AFTER = 3
"""Step; the last checkpoint is of the one before."""
LOG: dict[str, Any] = {"class_path": "svr_lightning.callbacks.RolloutLog"}
"""The only callback of both: nothing is exported, and ``resume`` alone saves checkpoints."""
SHOWN = ("train/loss", "train/grad_norm", "engine/", "time/", "speed/", "memory/")
"""Beginnings of the logged keys that are reported."""
ENGINES = {
    True: {
        "class_path": "svr_lightning.engines.vllm.VLLMEngine",
        "init_args": {"options": {"enforce_eager": True}},
    },
    False: {"class_path": "svr_lightning.engines.transformers.TransformersEngine"},
}
"""With nothing compiled, by whether vLLM is installed."""


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
        device: ``cuda`` or ``cpu``.
        depth: name of the policy's shape.

    Raises:
        RuntimeError: if the checkpoint is not loaded as it was saved.
    """

    def __init__(self, emit: Emit, device: str, depth: str) -> None:
        folder = Path(os.environ[FOLDER])
        self.run, self._file = folder / "run", folder / "changes.yaml"
        self._emit, self._told = emit, dict[str, tuple[float, str]]()
        self._cpu = device == "cpu"
        self.vllm = find_spec("vllm") is not None and not self._cpu
        self.gpus = 1 if self._cpu else torch.cuda.device_count()
        emit("gpus", 0 if self._cpu else self.gpus)
        policy = str(folder / "policy")
        saved = save_checkpoint(folder / "policy", shapes(self._cpu)[depth], device)
        release(device)  # the training is another process and needs the GPU's memory
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
                "callbacks": [LOG],
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
            "data": {
                "problems_per_step": 2 if self._cpu else problems_per_step(self.gpus),
                "eval_batch_size": 4,
                "local_files": files,
            },
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
            self.follow(process)
            if process.returncode:
                raise RuntimeError(reason(process.returncode, output.read_text(errors="replace")))

    def follow(self, process: "subprocess.Popen[str]", step: int | None = None) -> None:
        """Report what is logged as it is written, to the command's end or the end of a step."""
        while process.poll() is None and (step is None or self.steps() < step):
            self._report()
            time.sleep(0.05)
        self._report()

    def logged(self) -> Curves:
        """What ``metrics.csv`` has, as far as it is written."""
        file = self.run / "metrics.csv"
        return read_curves(file) if file.exists() else {}

    def steps(self) -> int:
        """The last optimizer step of which something is logged, or 0."""
        return max((steps[-1] for steps, _ in self.logged().values()), default=0)

    def _report(self) -> None:
        """The last value of everything that is logged, where it is new."""
        last: dict[str, tuple[float, str]] = {"steps": (self.steps(), "optimizer steps")}
        for key, (steps, values) in self.logged().items():
            if key.startswith(SHOWN):
                last[key] = (values[-1], f"step {steps[-1]}")
        for key, told in last.items():
            if self._told.get(key) != told:
                self._told[key] = told
                self._emit(key, told[0], note=told[1])

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
    fit = Fit(emit, device, "hybrid")
    # Lightning would add a callback that saves; what is saved takes more time than the steps.
    fit.changes["trainer"] |= {"max_steps": 2, "enable_checkpointing": False}
    began = time.perf_counter()
    try:
        fit.finish()
    except RuntimeError as error:
        if fit.steps() or not fit.vllm:
            raise
        emit("compiled", False, note=f"eagerly once more, after: {error}")
        fit.changes["model"]["engine"] = ENGINES[True]
        fit.finish()
    emit("command", time.perf_counter() - began, "s", "start-up, steps, validations")
    results = sorted(fit.run.glob("eval/*/results.json"))
    emit("validations", [path.parent.name for path in results])


def resume(emit: Emit, device: str) -> None:
    """The part ``resume``."""
    import psutil  # comes with vLLM

    _require_command_line()
    fit = Fit(emit, device, "shallow")
    zero = find_spec("deepspeed") is not None
    emit("deepspeed", zero, note="" if zero else "not installed: DDP")
    emit("engine", "vllm, eager" if fit.vllm else "transformers")
    saving = {"every_n_train_steps": 2, "save_top_k": 0, "save_last": True}
    saver = {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": saving | {"enable_version_counter": False},
    }
    fit.changes["trainer"] |= {
        "max_steps": KILLED_AFTER + 1,
        "limit_val_batches": 0,
        "strategy": "deepspeed_stage_2" if zero else "auto" if fit.gpus == 1 else "ddp",
        "precision": "bf16-true" if zero else "32-true" if device == "cpu" else "bf16-mixed",
        "callbacks": [LOG, saver],
    }
    fit.changes["model"] |= {
        "engine": ENGINES[fit.vllm],
        "sampling": {"max_completion_tokens": 16},
    }
    with fit.started() as (process, output):
        fit.follow(process, KILLED_AFTER)
        if process.returncode is not None:
            raise RuntimeError(reason(process.returncode, output.read_text()))
        for one in (*psutil.Process(process.pid).children(recursive=True), process):
            one.kill()  # other ranks would wait for the first one and hold their GPUs
    emit("killed", KILLED_AFTER, note="step that was done; the checkpoint is of the one before")
    before = fit.sampled(KILLED_AFTER)
    fit.finish("--ckpt_path", "last")
    again = fit.sampled(KILLED_AFTER)
    same = sum(again[key] == texts for key, texts in before.items()) / len(before)
    emit("same_rollouts", same, note="share of the killed step's trajectories, drawn once more")


def problems_per_step(gpus: int) -> int:
    """The 16 of the configuration, or the next number below that all GPUs share evenly.

    Example:
        >>> [problems_per_step(gpus) for gpus in (1, 3, 4, 6, 32)]
        [16, 15, 16, 12, 32]
    """
    return gpus * max(1, 16 // gpus)


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
