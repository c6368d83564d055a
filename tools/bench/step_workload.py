"""What both sides of ``tools.bench.step`` compute, and how each notes its steps.

One optimizer step is 12 problems x 8 completions (or trajectories) of at most 96 tokens, sampled at
temperature 0.9, and one update on 96 completions in fp32. The learning rate is so small that every
step of both sides samples from the same policy, and the problems of each step are the same ones:
the sides differ in their draws alone.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from svr_lightning.core.losses import LossSpec
from svr_lightning.core.types import Problem, Trajectory
from svr_lightning.recipes.svr import SVR
from svr_lightning.scoring import score_turns
from svr_lightning.training.data import SVRDataModule, TrainingOrder
from svr_lightning.training.sources import DataSource

POLICY = "embedded:countdown-tiny"
PROBLEMS = 12
GROUP = 8
MAX_TOKENS = 96
TEMPERATURE = 0.9
BETA = 0.1
CLIP_EPS = 0.2
GRADIENT_CLIP = 2.0
LEARNING_RATE = 1e-7
WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.95)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step of one side; seconds of wall clock."""

    seconds: float
    """From the end of the step before to the end of this one."""
    processor_seconds: float
    """Processor time of the same span, which other work on the machine disturbs less."""
    rollout: float
    """Of these: prompts, generation and rewards."""
    prompt_tokens: int
    """Of all prompts that were completed, padding left out."""
    generated_tokens: int
    trained_tokens: int
    """Completion tokens in the loss."""


class Notebook:
    """Notes a side's steps; a side calls :meth:`end_step` wherever its optimizer step is over."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.rollout = 0.0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.trained_tokens = 0
        self._last, self._last_cpu = time.perf_counter(), time.process_time()

    def end_step(self) -> None:
        """Close one step and begin the next."""
        step = Step(
            seconds=time.perf_counter() - self._last,
            processor_seconds=time.process_time() - self._last_cpu,
            rollout=self.rollout,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            trained_tokens=self.trained_tokens,
        )
        self.steps.append(step)
        self.rollout = 0.0
        self.prompt_tokens = self.generated_tokens = self.trained_tokens = 0
        self._last, self._last_cpu = time.perf_counter(), time.process_time()

    def write(self, path: Path, versions: dict[str, str]) -> None:
        """Leave everything in one file."""
        steps = [asdict(step) for step in self.steps]
        path.write_text(json.dumps({"versions": versions, "steps": steps}, indent=1))


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The command line of either side; the defaults are the embedded configuration's."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--turns", type=int, default=3, help="turns per trajectory")
    parser.add_argument(
        "--full-length", action="store_true", help="nothing stops a completion before its limit"
    )
    parser.add_argument("--micro-batches", type=int, default=4, help="per optimizer step")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps, warm-up included")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", type=Path, required=True, help="where the steps are noted")
    return parser


def recipe(turns: int) -> SVR:
    """The embedded default's recipe with this horizon."""
    loss = LossSpec(clip_eps=CLIP_EPS, beta=BETA)
    return SVR(group_size=GROUP, horizon=turns, length_scale=256, loss=loss)


def data_module(seed: int) -> SVRDataModule:
    """The embedded training problems, ``PROBLEMS`` of them to a step."""
    source = DataSource(name="train", task="countdown", path=POLICY, split="train")
    return SVRDataModule(train=source, problems_per_step=PROBLEMS, seed=seed)


def problems_in_order(steps: int, seed: int) -> list[Problem]:
    """The problems of the first ``steps`` steps, as :func:`data_module` serves them."""
    problems = data_module(seed).problems("train")[0]
    order = TrainingOrder(problems, batch_size=PROBLEMS, seed=seed, rank=0, ranks=1)
    wanted = [problems[index] for index in order][: steps * PROBLEMS]
    if len(wanted) < steps * PROBLEMS:
        raise SystemExit(f"--steps {steps}: one epoch holds {len(wanted) // PROBLEMS} steps")
    return wanted


def returns(trajectories: Sequence[Trajectory], method: SVR) -> list[float]:
    """The reward of each trajectory."""
    scored = [score_turns(trajectory.problem, trajectory.turns) for trajectory in trajectories]
    return method.returns([method.reward(turns) for turns in scored])
