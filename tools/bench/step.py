"""One whole optimizer step against TRL's GRPOTrainer: rollout, rewards, update.

    pip install trl==1.16.0      # beside the project; it changes none of the project's versions
    python -m tools.bench step --out step.json

    python3 -m venv trl && trl/bin/pip install -e . trl==1.16.0      # or apart from it
    python -m tools.bench step --out step.json --trl-python trl/bin/python

Both sides train the embedded policy with the same problems, rewards, limits, loss, reference (beta
0.1), clipping and AdamW, in fp32: 96 trajectories of three turns of at most 96 tokens, trained on
the last turn. Each side uses its own ordinary trainer: ``SVRTrainer.fit`` with ``SVRModule``, and
``GRPOTrainer.train`` with transformers generation as in examples/train_with_trl.py. Neither logs,
evaluates or saves. The learning rate is so small that every step samples from the same policy.

Processes alternate (ours, TRL, ours, ...). A pair's ratio is that of the medians over the steps
after the warm-up; below 1 ours is faster. TRL's colocated vLLM is not compared: on a CPU it cannot
push weights, because vLLM has packed its linear layers by then.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from lightning.pytorch import Callback, seed_everything
from transformers import TrainerCallback

from svr_lightning.core.losses import LossSpec
from svr_lightning.core.types import Decoding
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.recipes.svr import SVR
from svr_lightning.training.config import OptimizerConfig, ReferenceConfig
from svr_lightning.training.data import SVRDataModule, TrainingOrder
from svr_lightning.training.module import SVRModule
from svr_lightning.training.sources import DataSource
from svr_lightning.training.trainer import SVRTrainer
from tools.bench.workloads import EMBEDDED, SIZES, TEMPERATURE

ROOT = Path(__file__).resolve().parents[2]
TOKENS = ("prompt_tokens", "generated_tokens", "trained_tokens")
PROBLEMS, GROUP, MAX_TOKENS = 12, 8, 96
SEED, LEARNING_RATE = 42, 1e-7
WARMUP, MICRO_BATCHES = 2, 4
"""Steps before the measured ones, and micro-batches of each, on both sides."""
RECIPE = SVR(group_size=GROUP, horizon=3, length_scale=256, loss=LossSpec(clip_eps=0.2, beta=0.1))


class Notebook:
    """Seconds and tokens of each optimizer step; a side calls :meth:`end_step` after each."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._begin()

    def _begin(self) -> None:
        self.now: dict[str, float] = dict.fromkeys(("rollout", *TOKENS), 0)
        self._began = time.perf_counter()

    def count(self, kind: str, sequences: Any) -> None:
        """Add the tokens of sequences."""
        self.now[f"{kind}_tokens"] += sum(map(len, sequences))

    @contextmanager
    def rolling_out(self) -> Any:
        """Around what belongs to the rollout: prompts, generation and rewards."""
        began = time.perf_counter()
        yield
        self.now["rollout"] += time.perf_counter() - began

    def end_step(self) -> None:
        """Close one step and begin the next."""
        taken = time.perf_counter() - self._began
        parts = {"seconds": taken, "update": taken - self.now["rollout"]}
        self.steps.append({**self.now, **parts})
        self._begin()


def data_module() -> SVRDataModule:
    """The embedded training problems, ``PROBLEMS`` of them to a step."""
    source = DataSource(name="train", task="countdown", path=EMBEDDED, split="train")
    return SVRDataModule(train=source, problems_per_step=PROBLEMS, seed=SEED)


# --- the two sides ------------------------------------------------------------------------------


class Noting(Callback):
    """Notes each optimizer step."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook

    def on_train_batch_end(self, _: Any, __: Any, ___: Any, batch: Any, *____: Any) -> None:
        """The optimizer has stepped; the batch is the rollout before it, timed."""
        self.notebook.now["rollout"] = batch.stats["time/rollout"]
        for trajectory in (one for group in batch.groups for one in group.trajectories):
            completions = [turn.sampled for turn in trajectory.turns]
            self.notebook.count("prompt", (c.prompt_ids for c in completions))
            self.notebook.count("generated", (c.token_ids for c in completions))
            self.notebook.count("trained", [completions[-1].token_ids])
        self.notebook.end_step()


def ours(steps: int, folder: str, notebook: Notebook) -> None:
    """A plain fit."""
    seed_everything(SEED, verbose=False)
    optimizer = {"lr": LEARNING_RATE, "weight_decay": 0.1, "betas": (0.9, 0.95)}
    module = SVRModule(
        policy=PolicyConfig(path=EMBEDDED, **SIZES),
        recipe=RECIPE,
        sampling=Decoding(temperature=TEMPERATURE, max_completion_tokens=MAX_TOKENS),
        optimizer=OptimizerConfig(**optimizer, gradient_clip_val=2.0),  # type: ignore[arg-type]
        reference=ReferenceConfig(every=0),
        engine=TransformersEngine(max_batch=128),
        resample="off",
        seed=SEED,
        micro_batch_size=PROBLEMS * GROUP // MICRO_BATCHES,
    )
    SVRTrainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        logger=False,
        callbacks=[Noting(notebook)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    ).fit(module, datamodule=data_module())


class TRLNoting(TrainerCallback):
    """Notes each optimizer step."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimizer has stepped."""
        self.notebook.end_step()


def trl(steps: int, folder: str, notebook: Notebook) -> None:
    """GRPOTrainer with this package's prompts and rewards; what would only slow it down is off."""
    from examples import train_with_trl

    train_with_trl.RECIPE, train_with_trl.MAX_PROMPT_TOKENS = RECIPE, SIZES["max_prompt_tokens"]
    problems = data_module().problems("train")[0]
    order = TrainingOrder(problems, batch_size=PROBLEMS, seed=SEED, rank=0, ranks=1)
    chosen = [problems[index] for index in order][: steps * PROBLEMS]
    if len(chosen) < steps * PROBLEMS:
        raise SystemExit(f"{steps} steps: one epoch holds {len(chosen) // PROBLEMS} steps")
    trainer: Any = train_with_trl.make_trainer(
        chosen,
        folder,
        seed=SEED,
        max_steps=steps,
        per_device_train_batch_size=PROBLEMS * GROUP // MICRO_BATCHES,
        gradient_accumulation_steps=MICRO_BATCHES,
        max_completion_length=MAX_TOKENS,
        learning_rate=LEARNING_RATE,
        logging_strategy="no",
    )
    generate, turn, rewards = (
        getattr(trainer, name)
        for name in ("_generate", "_generate_single_turn", "_calculate_rewards")
    )

    def noted_turn(prompt_ids: Any, *rest: Any) -> Any:
        found = turn(prompt_ids, *rest)
        notebook.count("prompt", prompt_ids)
        notebook.count("generated", found[0])
        return found

    def noted_rollout(*arguments: Any) -> Any:
        with notebook.rolling_out():
            found = generate(*arguments)
        notebook.count("trained", found[1])
        return found

    def noted_rewards(*arguments: Any) -> Any:
        with notebook.rolling_out():
            return rewards(*arguments)

    trainer._generate, trainer._generate_single_turn = noted_rollout, noted_turn
    trainer._calculate_rewards = noted_rewards
    trainer.add_callback(TRLNoting(notebook))
    trainer.train()


SIDES = {"ours": ours, "trl": trl}


# --- the comparison -----------------------------------------------------------------------------


def run(side: str, options: argparse.Namespace) -> Any:
    """What one side, in a process of its own, noted of its steps."""
    python = options.trl_python if side == "trl" else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "step.json")
        own = (f"--side={side}", f"--out={out}", f"--steps={options.steps}")
        command = [python, "-m", "tools.bench", "step", *own]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        return json.loads(out.read_text())["steps"]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Alternate the two sides and report; or one side alone."""
    if options.side:
        notebook = Notebook()
        with tempfile.TemporaryDirectory() as folder:
            SIDES[options.side](WARMUP + options.steps, folder, notebook)
        return {"steps": notebook.steps}
    pairs = []
    for _ in range(options.pairs):
        steps = {side: run(side, options) for side in SIDES}
        pair: dict[str, Any] = {side: medians(found[WARMUP:]) for side, found in steps.items()}
        ratio = {key: value / pair["trl"][key] for key, value in pair["ours"].items()}
        pairs.append({**pair, "ratio": ratio, "steps": steps})
    whole = {one: medians([pair[one] for pair in pairs]) for one in (*SIDES, "ratio")}
    return {"pairs": pairs, "median": whole}


def medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each value."""
    return {key: median(one[key] for one in found) for key in found[0]}
