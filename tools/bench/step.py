"""One whole optimizer step against TRL's GRPOTrainer: rollout, rewards, update.

    pip install trl==1.16.0      # beside the project; it changes none of the project's versions
    python -m tools.bench step --out step.json

    python3 -m venv trl && trl/bin/pip install -e . trl==1.16.0      # or apart from it
    python -m tools.bench step --out step.json --trl-python trl/bin/python

Both sides train the embedded policy with the same problems, rewards, limits, loss, reference (beta
0.1), clipping and AdamW, in fp32: 96 trajectories of three turns of at most 96 tokens, trained on
the last turn. Each side uses its own ordinary trainer: ``SVRTrainer.fit`` with ``SVRModule``
(:mod:`tools.bench.step_svr`), and ``GRPOTrainer.train`` with transformers generation, a
``rollout_func`` for the turns and gradient checkpointing off (:mod:`tools.bench.step_trl`). Neither
logs, evaluates or saves. The learning rate is so small that every step samples from the same
policy.

Processes alternate (ours, TRL, ours, ...). A pair's ratio is that of the medians over the steps
after the warm-up; below 1 ours is faster. Processor seconds tell more than seconds where the
machine has other work. TRL's colocated vLLM is not compared: on a CPU it cannot push weights,
because vLLM has packed its linear layers by then.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from svr_lightning.core.losses import LossSpec
from svr_lightning.files import write_json
from svr_lightning.recipes.svr import SVR
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.sources import DataSource
from tools.bench.machine import hardware
from tools.bench.workloads import EMBEDDED

ROOT = Path(__file__).resolve().parents[2]
SIDES = {"ours": "tools.bench.step_svr", "trl": "tools.bench.step_trl"}
TOKENS = ("prompt_tokens", "generated_tokens", "trained_tokens")
SECONDS = (
    *("seconds", "rollout", "update"),
    *("processor_seconds", "rollout_processor", "update_processor"),
)

PROBLEMS, GROUP, TURNS, MAX_TOKENS = 12, 8, 3, 96
BETA, CLIP_EPS, GRADIENT_CLIP = 0.1, 0.2, 2.0
LEARNING_RATE, WEIGHT_DECAY, BETAS = 1e-7, 0.1, (0.9, 0.95)


@dataclass(kw_only=True)
class Step:
    """One optimizer step of one side; seconds of wall clock."""

    seconds: float = 0.0
    """From the end of the step before to the end of this one."""
    processor_seconds: float = 0.0
    """Of the same span."""
    rollout: float = 0.0
    """Of these: prompts, generation and rewards."""
    rollout_processor: float = 0.0
    prompt_tokens: int = 0
    """Of all prompts that were completed, without padding."""
    generated_tokens: int = 0
    trained_tokens: int = 0
    """Completion tokens in the loss."""


class Notebook:
    """Collects a side's steps; the side fills ``now`` and calls :meth:`end_step` after each."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._begin()

    def _begin(self) -> None:
        self.now = Step()
        self._last, self._last_cpu = time.perf_counter(), time.process_time()

    @contextmanager
    def rolling_out(self) -> Iterator[None]:
        """Around what belongs to the rollout."""
        began, began_cpu = time.perf_counter(), time.process_time()
        yield
        self.now.rollout += time.perf_counter() - began
        self.now.rollout_processor += time.process_time() - began_cpu

    def end_step(self) -> None:
        """Close one step and begin the next."""
        self.now.seconds = time.perf_counter() - self._last
        self.now.processor_seconds = time.process_time() - self._last_cpu
        self.steps.append(self.now)
        self._begin()

    def write(self, path: Path, versions: dict[str, str]) -> None:
        """Leave everything in one file."""
        write_json(path, {"versions": versions, "steps": [asdict(step) for step in self.steps]})


def side_options(description: str | None) -> argparse.Namespace:
    """The command line of either side."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--micro-batches", type=int, default=4, help="per optimizer step")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps, warm-up included")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", type=Path, required=True, help="where the steps are noted")
    return parser.parse_args()


def recipe() -> SVR:
    """The embedded default's recipe."""
    loss = LossSpec(clip_eps=CLIP_EPS, beta=BETA)
    return SVR(group_size=GROUP, horizon=TURNS, length_scale=256, loss=loss)


def data_module(seed: int) -> SVRDataModule:
    """The embedded training problems, ``PROBLEMS`` of them to a step."""
    source = DataSource(name="train", task="countdown", path=EMBEDDED, split="train")
    return SVRDataModule(train=source, problems_per_step=PROBLEMS, seed=seed)


# --- the comparison -----------------------------------------------------------------------------


def side_command(side: str, options: argparse.Namespace) -> list[str]:
    """The command of one process, without its output file."""
    return [
        *(options.trl_python if side == "trl" else sys.executable, "-m", SIDES[side]),
        *("--micro-batches", str(options.micro_batches)),
        *("--steps", str(options.warmup + options.steps), "--seed", str(options.seed)),
    ]


def run(command: list[str]) -> dict[str, Any]:
    """Run one process and read what it noted; its output is shown if it fails."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "steps.json"
        done = subprocess.run(
            [*command, "--out", str(out)],
            env={**os.environ, **settings},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not out.is_file():
            raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr[-4000:]}")
        return dict(json.loads(out.read_text()))


def figures(steps: list[dict[str, Any]]) -> dict[str, float]:
    """Median times and mean token counts of one process's steps."""
    rows = [
        {
            **step,
            "update": step["seconds"] - step["rollout"],
            "update_processor": step["processor_seconds"] - step["rollout_processor"],
        }
        for step in steps
    ]
    result = {key: median(row[key] for row in rows) for key in SECONDS}
    return result | {key: sum(row[key] for row in rows) / len(rows) for key in TOKENS}


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Alternate the two sides and sum up."""
    commands = {side: side_command(side, options) for side in SIDES}
    versions, pairs = {}, []
    for number in range(1, options.pairs + 1):
        pair: dict[str, Any] = {}
        for side, command in commands.items():
            noted = run(command)
            versions[side] = noted["versions"]
            pair[side] = {"steps": noted["steps"], **figures(noted["steps"][options.warmup :])}
        ours, trl = pair["ours"], pair["trl"]
        pair["ratio"] = {key: ours[key] / trl[key] for key in (*SECONDS, *TOKENS)}
        pairs.append(pair)
        print(
            f"pair {number}: ours {ours['seconds']:.2f} s, TRL {trl['seconds']:.2f} s, "
            f"ratio {pair['ratio']['seconds']:.2f}",
            flush=True,
        )
    medians = {
        side: {key: median(pair[side][key] for pair in pairs) for key in (*SECONDS, *TOKENS)}
        for side in (*SIDES, "ratio")
    }
    lines = {side: shlex.join(command) for side, command in commands.items()}
    return {"commands": lines, "versions": versions, "pairs": pairs, "median": medians}


def add_options(parser: argparse.ArgumentParser) -> None:
    """How many steps of which kind, and where TRL is."""
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="measured steps per process")
    parser.add_argument("--warmup", type=int, default=2, help="steps before these")
    parser.add_argument("--micro-batches", type=int, default=4, help="per step, on both sides")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--trl-python", default=sys.executable, help="interpreter that has TRL")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Alternate the two sides and report."""
    machine = hardware()
    result = compare(options)
    print(*result["commands"].values(), sep="\n")
    print(f"{'median per step':20}{'ours':>10}{'TRL':>10}{'ratio':>8}")
    for key in (*SECONDS, *TOKENS):
        ours, trl, ratio = (result["median"][side][key] for side in ("ours", "trl", "ratio"))
        digits = "10.2f" if key in SECONDS else "10.0f"
        print(f"{key.replace('_', ' '):20}{ours:{digits}}{trl:{digits}}{ratio:8.2f}")
    return {"hardware": machine, **result}
