"""Fits on this machine's processor, and what the simulation says of them.

    OMP_NUM_THREADS=1 python -m tools.scale.measure --out tools/scale/results/cpu.json

The embedded policy trains for some optimizer steps through the package's own loop, in one process
and in two over gloo. Completion lengths are log-normal or the policy's own. The first fit of each
engine and kind of lengths calibrates: distribution of lengths, seconds of an engine step, seconds
of an update. Each fit's schedule is simulated from its own lengths, and all of it is predicted from
the calibration alone. Engine steps are counted; seconds are the processor's, since those of the
clock depend on what else runs here.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from lightning.pytorch import Callback

from svr_lightning.core.losses import LossSpec
from svr_lightning.engines.transformers import MAX_WAIT
from svr_lightning.files import write_json
from svr_lightning.recipes.svr import SVR
from svr_lightning.report.figures_training import read_curves
from svr_lightning.training.config import OptimizerConfig, PolicyConfig, SamplingConfig
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.logs import CSVLog
from svr_lightning.training.module import SVRModule
from svr_lightning.training.sources import DataSource
from svr_lightning.training.trainer import SVRTrainer
from tools.bench.machine import this_machine
from tools.bench.rollout import SPREAD, TYPICAL, make_engine
from tools.bench.workloads import EMBEDDED, SIZES, LongTailed, stale_tokens
from tools.scale.cost import StepCost
from tools.scale.schedule import Places, Rolled, Span, Trajectory, Turn, idle_share, optimizer_steps
from tools.scale.workload import Lengths, Workload, fitted_lengths

GROUP = 8
RUNS = 40
"""Simulated runs per fit, each of as many optimizer steps."""
Steps = Sequence[Sequence[Trajectory]]
"""The trajectories of each optimizer step on one rank."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A short training."""

    processes: int = 1
    problems: int = 4
    turns: int = 3
    slots: int = 32
    """Of each process's engine."""
    limit: int = 128
    """Tokens of a completion at most."""
    carry_over: int = 0
    drawn: bool = True
    """Whether lengths are log-normal; else the policy's own."""
    engine: str = "transformers"
    """Or ``vllm``."""
    steps: int = 6

    @property
    def places(self) -> Places:
        """How the engine takes up requests."""
        if self.engine == "vllm":
            return Places(slots=self.slots)
        group = max(1, self.slots // 8)
        return Places(slots=self.slots, group=group, patience=MAX_WAIT, first=2)


CALIBRATION = Fit()
VLLM = replace(CALIBRATION, engine="vllm")
FITS = {
    "calibration": CALIBRATION,
    "two processes": replace(CALIBRATION, processes=2, slots=16),
    "carry-over": replace(CALIBRATION, carry_over=1),
    "carry-over, two processes": replace(CALIBRATION, carry_over=1, processes=2, slots=16),
    "few places": replace(CALIBRATION, slots=12),
    "longer turns": replace(CALIBRATION, limit=256),
    "five turns": replace(CALIBRATION, turns=5),
    "twice the problems": replace(CALIBRATION, problems=8, slots=64),
    "own lengths": replace(CALIBRATION, drawn=False),
    "vLLM": VLLM,
    "vLLM, few places": replace(VLLM, slots=12),
    "vLLM, carry-over": replace(VLLM, carry_over=1),
}
"""The first of each engine and kind of lengths calibrates the others."""

# --- one fit --------------------------------------------------------------------------------------


class Timed:
    """An engine that notes the processor seconds of each step of each rollout."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.seconds: list[list[float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def sync(self, model: Any, version: int) -> None:
        """A rollout begins."""
        self.seconds.append([])
        self._engine.sync(model, version)

    def step(self) -> Any:
        """Time and pass on."""
        began = time.process_time()
        outputs = self._engine.step()
        self.seconds[-1].append(time.process_time() - began)
        return outputs


class Notes(Callback):
    """What a rank has trained on, and the processor seconds of its updates."""

    def __init__(self) -> None:
        self.found: dict[str, list[Any]] = {"trajectories": [], "stale": [], "updates": []}

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """One micro-batch is a whole optimizer step here."""
        chains = [
            [Turn(len(t.sampled.prompt_ids), len(t.sampled.token_ids)) for t in one.turns]
            for group in pl_module.groups
            for one in group.trajectories
        ]
        self.found["trajectories"].append(chains)
        self.found["stale"].append(stale_tokens(pl_module.groups, trainer.global_step))
        self._began = time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:
        """The optimizer has stepped."""
        self.found["updates"].append(time.process_time() - self._began)


def train(fit: Fit, folder: Path) -> None:
    """Run a fit; each rank leaves ``rank-N.json`` in the folder."""
    engine: Any = make_engine(fit.engine, fit.slots)
    timed: Any = Timed(LongTailed(engine, TYPICAL, SPREAD) if fit.drawn else engine)
    notes = Notes()
    module = SVRModule(
        policy=PolicyConfig(path=EMBEDDED, **SIZES),
        recipe=SVR(
            group_size=GROUP, horizon=fit.turns, loss=LossSpec(behaviour_correction="token")
        ),
        sampling=SamplingConfig(max_completion_tokens=fit.limit),
        optimizer=OptimizerConfig(lr=1e-9),  # so that all fits roll out the same policy
        resample="off",
        carry_over=fit.carry_over,
        micro_batch_size=fit.problems * GROUP,
        engine=timed,
    )
    source = DataSource(
        name="train", task="countdown", path=EMBEDDED, limit=fit.problems * fit.steps
    )
    trainer = SVRTrainer(
        default_root_dir=str(folder),
        accelerator="cpu",
        devices=fit.processes,
        strategy="ddp" if fit.processes > 1 else "auto",
        max_epochs=1,
        callbacks=[notes],
        logger=CSVLog(folder),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(module, SVRDataModule(train=source, problems_per_step=fit.problems))
    found = notes.found | {"seconds": timed.seconds}
    write_json(folder / f"rank-{trainer.global_rank}.json", found)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A fit that has run."""

    fit: Fit
    figures: dict[str, float]
    """Those that are predicted."""
    ranks: Sequence[Steps]
    seconds: list[list[list[float]]]
    """Of the processor, by rank, optimizer step and engine step."""


def run(fit: Fit) -> Measured:
    """Train here, or in several processes."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tools.scale.measure", "--fit", json.dumps(asdict(fit))]
        if fit.processes == 1:
            train(fit, Path(folder))
        else:
            subprocess.run([*command, "--folder", folder], check=True, stdout=subprocess.DEVNULL)
        paths = [Path(folder) / f"rank-{rank}.json" for rank in range(fit.processes)]
        noted = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        _, fill = read_curves(Path(folder) / "metrics.csv")["engine/batch_fill"]
    ranks = [
        [[[Turn(*turn) for turn in turns] for turns in step] for step in its["trajectories"]]
        for its in noted
    ]
    seconds = [its["seconds"] for its in noted]
    tokens = sum(turn.drawn for steps in ranks for its in steps for one in its for turn in one)
    found = {
        "engine_steps": sum(max(map(len, its)) for its in zip(*seconds, strict=True)),
        "idle": 1 - fmean(fill),
        "stale": sum(sum(its["stale"]) for its in noted) / tokens,
        "rollout_seconds": sum(sum(map(sum, its)) for its in seconds),
        "update_seconds": sum(sum(its["updates"]) for its in noted),
    }
    return Measured(fit=fit, figures=found, ranks=ranks, seconds=seconds)


# --- what is learned of one, and said of another --------------------------------------------------


def replayed(fit: Fit, ranks: Sequence[Steps]) -> list[list[Rolled]]:
    """The rollouts of each rank, from its trajectories."""
    carry_over = bool(fit.carry_over)
    return [
        list(optimizer_steps([[step] for step in steps], fit.places, carry_over=carry_over))
        for steps in ranks
    ]


def figures(fit: Fit, ranks: Sequence[Sequence[Rolled]]) -> dict[str, float]:
    """What is predicted of all ranks: steps of the slowest ones, idle places, stale tokens."""
    rolled = [one for rank in ranks for one in rank]
    return {
        "engine_steps": sum(max(one.steps for one in its) for its in zip(*ranks, strict=True)),
        "idle": fmean(idle_share(one.spans, fit.slots) for one in rolled),
        "stale": sum(one.stale for one in rolled) / sum(one.tokens for one in rolled),
    }


def fitted_cost(spans: Sequence[Span], seconds: Sequence[float]) -> StepCost:
    """Least squares over spans and the seconds of each; no part of a step takes less than none."""
    rows = np.array([(s.steps, s.steps * s.rows, s.read, s.steps * s.context) for s in spans])
    kept, found = list(range(rows.shape[1])), np.zeros(0)
    while (found := np.linalg.lstsq(rows[:, kept], np.array(seconds), rcond=None)[0]).min() < 0:
        kept.pop(int(found.argmin()))
    parts = dict.fromkeys(range(4), 0.0) | dict(zip(kept, found.tolist(), strict=True))
    token = min(parts[2], parts[1])
    return StepCost(overhead=parts[0], token=token, row=parts[1] - token, context=parts[3])


def trained_tokens(steps: Steps) -> int:
    """Prompts and completions of last turns."""
    return sum(sum(turns[-1]) for step in steps for turns in step)


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """What one fit on one process says of others."""

    fit: Fit
    lengths: Lengths
    cost: StepCost
    update: float
    """Seconds per token."""

    @classmethod
    def by(cls, found: Measured) -> "Calibrated":
        """Its lengths, the seconds of an engine step by what it does, and of an update."""
        fit, (steps,), (seconds,) = found.fit, found.ranks, found.seconds
        spans, times = [], []
        for one, its in zip(*replayed(fit, [steps]), seconds, strict=True):
            clock = iter(its)
            spans += one.spans
            times += [sum(islice(clock, span.steps)) for span in one.spans]
        chains = [one for step in steps for one in step]
        more = [
            turn.prompt - one[0].prompt - min(before.drawn, Lengths.draft)
            for one in chains
            for before, turn in pairwise(one)
        ]
        lengths = Lengths(
            prompt=round(fmean(one[0].prompt for one in chains)),
            refinement=round(fmean(more)),
            **fitted_lengths([turn.drawn for one in chains for turn in one]),
        )
        update = found.figures["update_seconds"] / trained_tokens(steps)
        cost = fitted_cost(spans, times)
        return cls(fit=fit, lengths=lengths, cost=cost, update=update)

    def says(self, fit: Fit, ranks: Sequence[Steps]) -> dict[str, float]:
        """The figures of a fit with these trajectories."""
        rolled = replayed(fit, ranks)
        return {
            **figures(fit, rolled),
            "rollout_seconds": sum(self.cost.seconds(o.spans) for its in rolled for o in its),
            "update_seconds": self.update * sum(map(trained_tokens, ranks)),
        }

    def predicts(self, fit: Fit) -> dict[str, dict[str, float]]:
        """Mean figures of simulated runs, and between what 90 % of them lie."""
        work = Workload(
            problems=fit.problems,
            group=GROUP,
            turns=fit.turns,
            carry_over=bool(fit.carry_over),
            limit=fit.limit,
            longest_prompt=SIZES["max_prompt_tokens"],
            lengths=self.lengths,
        )
        runs = []
        for seed in range(RUNS):
            batches = work.batches(fit.processes, fit.steps, seed)
            runs.append(self.says(fit, [[first for (first,) in steps] for steps in batches]))
        found = {}
        for name in runs[0]:
            values = [one[name] for one in runs]
            low, *_, high = quantiles(values, n=20)
            found[name] = {"mean": fmean(values), "low": low, "high": high}
        return found


def compare(name: str, found: Measured, calibrated: Calibrated) -> dict[str, Any]:
    """What was measured of a fit, and what was predicted; printed too."""
    fit = found.fit
    scheduled = figures(fit, replayed(fit, found.ranks))
    predicted = calibrated.predicts(fit)
    print(name, "(calibrates)" if calibrated.fit == fit else "", flush=True)
    for key, value in found.figures.items():
        drawn = predicted[key]
        own = f"{scheduled[key]:10.3f}" if key in scheduled else " " * 10
        between = f"{drawn['low']:.3f} to {drawn['high']:.3f}"
        print(f"  {key:16}{value:10.3f}{own}{drawn['mean']:10.3f}  {between}")
    about = {"fit": asdict(fit), "measured": found.figures}
    return {**about, "scheduled": scheduled, "predicted": predicted}


def main() -> None:
    """Train, predict, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        train(Fit(**json.loads(options.fit)), options.folder)
        return
    print("figures: measured, scheduled from own lengths, predicted, 90 % of the runs")
    calibrated: dict[tuple[str, bool], Calibrated] = {}
    found = {}
    for name, fit in FITS.items():
        ran = run(fit)
        kind = fit.engine, fit.drawn
        if kind not in calibrated:
            calibrated[kind] = Calibrated.by(ran)
        found[name] = compare(name, ran, calibrated[kind])
        by = [asdict(one) for one in calibrated.values()]
        if options.out:  # after each fit, since they take a while
            write_json(options.out, this_machine() | {"calibrations": by, "fits": found})


if __name__ == "__main__":
    main()
