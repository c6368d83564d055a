"""A real training of a few steps under DeepSpeed ZeRO-2, through the command line."""

import csv
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import Callback

from svr_lightning.core.types import Sample
from svr_lightning.recipes.base import Group
from svr_lightning.recipes.svr import SVR
from tools.bench.workloads import GIB, release, wait_for
from tools.gpu_check.models import build_tokenizer, random_model, shapes
from tools.gpu_check.settings import Emit, Settings, SkippedError

STEPS = 3
ACCUMULATE = 2
CLOCK = "clock.json"
ZERO_2 = {
    "class_path": "svr_lightning.training.distributed.SVRDeepSpeedStrategy",
    "init_args": {"stage": 2},
}
SHOWN = {
    "train/loss": "",
    "train/grad_norm": "",
    "engine/logprob_diff": "nats",
    "engine/changed_frac": "",
    "time/rollout": "s",
    "time/update": "s",
    "time/sync": "s",
}
"""Keys of ``metrics.csv`` that are reported, of the last step, and their units."""


@dataclass(frozen=True, kw_only=True)
class Alternating(SVR):
    """SVR with advantages of +1 and -1 in turns.

    What random weights write all earns the same, and a step without gradient would show nothing.
    """

    def credit(self, group: Group) -> list[Sample]:
        """The samples of SVR with other advantages."""
        samples = super().credit(group)
        return [replace(s, advantage=(-1.0) ** index) for index, s in enumerate(samples)]


class StepClock(Callback):
    """Writes down how long each micro-batch took, from its start to its end.

    Args:
        path: of a JSON file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._began = 0.0
        self._seconds: list[float] = []

    def on_train_batch_start(self, trainer: Any, *_: Any, **__: Any) -> None:
        """The rollout is done, the update begins."""
        wait_for(trainer.strategy.root_device.type)
        self._began = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """After every second micro-batch the optimizer has stepped."""
        device = trainer.strategy.root_device.type
        wait_for(device)
        self._seconds.append(time.perf_counter() - self._began)
        peak = torch.cuda.max_memory_allocated() / GIB if device == "cuda" else None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"seconds": self._seconds, "peak_gib": peak}))


def run(emit: Emit, settings: Settings) -> None:
    """Train with the transformers engine first, which lets DeepSpeed stand alone, then vLLM."""
    if find_spec("deepspeed") is None:
        raise SkippedError("DeepSpeed is not installed; pip install 'deepspeed>=0.19.8,<0.20'")
    if find_spec("jsonargparse") is None:
        raise SkippedError("jsonargparse, which the command line needs, is not installed")
    engines = ["transformers", "vllm"] if settings.engine == "vllm" else ["transformers"]
    failed = []
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        policy = Path(folder) / "policy"
        save_policy(policy, settings)
        for engine in engines:
            if engine == "vllm" and find_spec("vllm") is None:
                emit("vllm", None, note="vLLM is not installed")
                continue
            config = configuration(policy, Path(folder) / engine, engine, ZERO_2, settings)
            failed += [engine] if not train(emit, engine, config, Path(folder)) else []
    if failed:
        raise RuntimeError(f"the training failed with {' and '.join(failed)}; see the log")


def configuration(
    policy: Path, root: Path, engine: str, strategy: str | dict[str, Any], settings: Settings
) -> dict[str, Any]:
    """The run: the embedded problems, 4 trajectories of 2 turns each, few tokens."""
    cuda = settings.device == "cuda"
    classes = {"vllm": "vllm.VLLMEngine", "transformers": "transformers.TransformersEngine"}
    arguments = {"options": {"enforce_eager": True}} if engine == "vllm" else {}
    trainer = {
        "default_root_dir": str(root),
        "accelerator": "gpu" if cuda else "cpu",
        "devices": 1,
        "strategy": strategy,
        "precision": "bf16-true",
        "max_steps": STEPS,
        "max_epochs": -1,
        "gradient_clip_val": 2.0,
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
        "log_every_n_steps": 1,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "callbacks": [
            {
                "class_path": "tools.gpu_check.training_run.StepClock",
                "init_args": {"path": str(root / CLOCK)},
            }
        ],
    }
    model = {
        "policy": {
            "path": str(policy),
            "gradient_checkpointing": True,
            "chat_template_kwargs": {},
            "max_prompt_tokens": 768,
            "max_model_len": 1024,
        },
        "recipe": {
            "class_path": "tools.gpu_check.training_run.Alternating",
            "init_args": {"group_size": 4, "horizon": 2},
        },
        "engine": {
            "class_path": f"svr_lightning.engines.{classes[engine]}",
            "init_args": arguments,
        },
        # bf16 weights against those of an engine in another precision: shown, not judged.
        "sampling": {"max_completion_tokens": 16, "max_logprob_noise": 1e6},
        "optimizer": {"lr": 1e-3, "warmup_fraction": 0.0, "decay_fraction": 0.0},
        "resample": "off",
        "micro_batch_size": 4 * 4 // ACCUMULATE,
    }
    source = {"name": "tiny", "task": "countdown", "path": "embedded:countdown-tiny"}
    data = {"problems_per_step": 4, "train": {**source, "split": "train", "limit": 64}}
    return {"seed_everything": 42, "trainer": trainer, "model": model, "data": data}


def save_policy(folder: Path, settings: Settings) -> None:
    """A shallow random policy in bf16, as a checkpoint folder."""
    shape = shapes(settings.small)["shallow"]
    model = random_model(shape, settings.device).to(torch.bfloat16)
    model.save_pretrained(folder)
    build_tokenizer(shape.dims["vocab_size"]).save_pretrained(folder)
    del model
    release(settings.device)


def train(emit: Emit, name: str, config: dict[str, Any], folder: Path) -> bool:
    """Run the command and report its figures; returns whether it succeeded."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [sys.executable, "-m", "svr_lightning", "fit", "--config", str(path)]
    started = time.perf_counter()
    output = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line.strip())
    emit(f"{name}.command", time.perf_counter() - started, "s", "start-up and all steps")
    if process.returncode:
        emit(f"{name}.steps", None, note=reason(process.returncode, output))
        return False
    root = Path(config["trainer"]["default_root_dir"])
    with (root / "metrics.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    emit(f"{name}.steps", max(int(row["step"]) for row in rows), note="optimizer steps")
    for key, unit in SHOWN.items():
        values = [float(row["value"]) for row in rows if row["key"] == key and row["value"]]
        emit(f"{name}.{key}", values[-1] if values else None, unit)
    clock = json.loads((root / CLOCK).read_text())
    emit(f"{name}.step", sum(clock["seconds"][-ACCUMULATE:]), "s", "the last, without rollout")
    emit(f"{name}.peak_memory", clock["peak_gib"], "GiB", "of tensors, over the run")
    return True


def reason(code: int, output: list[str]) -> str:
    """The last output line that names an error, else the last line."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = [line for line in output if line]
    named = [line for line in lines if re.search("[Ee]rror:", line)]
    return (named or lines or ["it wrote nothing"])[-1][:300]
