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
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
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
from svr_lightning.training.config import OptimizerConfig, PolicyConfig, SamplingConfig
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.logs import CSVLog
from svr_lightning.training.module import SVRModule
from svr_lightning.training.sources import DataSource
from svr_lightning.training.trainer import SVRTrainer
from tools.bench.machine import hardware, versions
from tools.bench.rollout import EMBEDDED, SPREAD, TYPICAL, make_engine
from tools.bench.workloads import LongTailed, stale_tokens
from tools.scale.cost import StepCost
from tools.scale.predict import Lengths, Workload
from tools.scale.schedule import (
    Places,
    Rolled,
    Span,
    Trajectory,
    Turn,
    engine_steps,
    idle_share,
    optimizer_steps,
)
from tools.scale.setting import fitted_lengths, logged_values

GROUP, LONGEST_PROMPT = 8, 512
RUNS = 40
"""Simulated runs per fit, each of as many optimizer steps."""


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
OWN, VLLM = replace(CALIBRATION, drawn=False), replace(CALIBRATION, engine="vllm")
FITS = {
    "calibration": CALIBRATION,
    "two processes": replace(CALIBRATION, processes=2, slots=16),
    "carry-over": replace(CALIBRATION, carry_over=1),
    "carry-over, two processes": replace(CALIBRATION, carry_over=1, processes=2, slots=16),
    "few places": replace(CALIBRATION, slots=12),
    "longer turns": replace(CALIBRATION, limit=256),
    "five turns": replace(CALIBRATION, turns=5),
    "twice the problems": replace(CALIBRATION, problems=8, slots=64),
    "own lengths": OWN,
    "vLLM": VLLM,
    "vLLM, few places": replace(VLLM, slots=12),
    "vLLM, carry-over": replace(VLLM, carry_over=1),
}
"""The first of each engine and kind of lengths calibrates the others."""

# --- one fit --------------------------------------------------------------------------------------


class Timed(LongTailed):
    """Notes the processor seconds of each step of each rollout."""

    def __init__(self, engine: Any, fit: Fit) -> None:
        super().__init__(engine, TYPICAL, SPREAD)
        self.seconds: list[list[float]] = []
        self._drawn = fit.drawn

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Without stop tokens, where lengths are drawn."""
        self._engine.start(model, () if self._drawn else stop_token_ids, max_model_len)

    def sync(self, model: Any, version: int) -> None:
        """A rollout begins."""
        self.seconds.append([])
        self._engine.sync(model, version)

    def submit(self, request: Any) -> None:
        """With a length drawn for it, or as it is."""
        (super().submit if self._drawn else self._engine.submit)(request)

    def interrupt(self) -> Any:
        """Remember what is left of lengths that were drawn."""
        return super().interrupt() if self._drawn else self._engine.interrupt()

    def step(self) -> Any:
        """Time and pass on."""
        began = time.process_time()
        outputs = super().step()
        self.seconds[-1].append(time.process_time() - began)
        return outputs


class Notes(Callback):
    """What a rank has trained on, and the processor seconds of its updates."""

    def __init__(self) -> None:
        self.trajectories: list[list[list[Turn]]] = []
        self.stale: list[int] = []
        self.updates: list[float] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """One micro-batch is a whole optimizer step here."""
        chains = [one for group in pl_module.groups for one in group.trajectories]
        sampled = [[turn.sampled for turn in chain.turns] for chain in chains]
        self.trajectories.append(
            [[Turn(len(t.prompt_ids), len(t.token_ids)) for t in turns] for turns in sampled]
        )
        self.stale.append(stale_tokens(pl_module.groups, trainer.global_step))
        self._began = time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:
        """The optimizer has stepped."""
        self.updates.append(time.process_time() - self._began)


def train(fit: Fit, folder: Path) -> None:
    """Run a fit; each rank leaves ``rank-N.json`` in the folder."""
    engine: Any = Timed(make_engine(fit.engine, fit.slots), fit)
    notes = Notes()
    module = SVRModule(
        policy=PolicyConfig(path=EMBEDDED, max_prompt_tokens=LONGEST_PROMPT, max_model_len=1024),
        recipe=SVR(
            group_size=GROUP, horizon=fit.turns, loss=LossSpec(behaviour_correction="token")
        ),
        sampling=SamplingConfig(max_completion_tokens=fit.limit),
        optimizer=OptimizerConfig(lr=1e-9),  # so that all fits roll out the same policy
        resample="off",
        carry_over=fit.carry_over,
        micro_batch_size=fit.problems * GROUP,
        engine=engine,
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
    found = {"seconds": engine.seconds, "updates": notes.updates, "stale": notes.stale}
    found["trajectories"] = notes.trajectories
    write_json(folder / f"rank-{trainer.global_rank}.json", found)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A fit that has run."""

    fit: Fit
    figures: dict[str, float]
    """Those that are predicted."""
    trajectories: list[list[list[Trajectory]]]
    """By rank and optimizer step."""
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
        ranks = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        fill = logged_values(Path(folder) / "metrics.csv")["engine/batch_fill"]
    trajectories = [
        [[[Turn(*turn) for turn in turns] for turns in step] for step in rank["trajectories"]]
        for rank in ranks
    ]
    counted = zip(*(map(len, rank["seconds"]) for rank in ranks), strict=True)
    tokens = sum(t.drawn for rank in trajectories for its in rank for one in its for t in one)
    found = {
        "engine_steps": sum(map(max, counted)),
        "idle": 1 - fmean(fill),
        "stale": sum(sum(rank["stale"]) for rank in ranks) / tokens,
        "rollout_seconds": sum(sum(map(sum, rank["seconds"])) for rank in ranks),
        "update_seconds": sum(sum(rank["updates"]) for rank in ranks),
    }
    seconds = [rank["seconds"] for rank in ranks]
    return Measured(fit=fit, figures=found, trajectories=trajectories, seconds=seconds)


# --- what is learned of one, and said of another --------------------------------------------------


def replayed(fit: Fit, steps: Sequence[Sequence[Trajectory]]) -> list[Rolled]:
    """The rollouts of one rank, from its trajectories."""
    batches = [[step] for step in steps]
    return list(optimizer_steps(batches, fit.places, carry_over=bool(fit.carry_over)))


def figures(fit: Fit, ranks: Sequence[Sequence[Rolled]]) -> dict[str, float]:
    """What is predicted of all ranks: steps of the slowest ones, idle places, stale tokens."""
    by_step = [[engine_steps(one.spans) for one in its] for its in zip(*ranks, strict=True)]
    rolled = [one for rank in ranks for one in rank]
    return {
        "engine_steps": sum(map(max, by_step)),
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
        ((steps,), (seconds,)) = found.trajectories, found.seconds
        spans, times = [], []
        for rolled, its in zip(replayed(found.fit, steps), seconds, strict=True):
            at = 0
            for span in rolled.spans:
                spans.append(span)
                times.append(sum(its[at : at + span.steps]))
                at += span.steps
        chains = [one for step in steps for one in step]
        tokens = [turn.drawn for one in chains for turn in one]
        more = [
            turn.prompt - one[0].prompt - min(before.drawn, Lengths.draft)
            for one in chains
            for before, turn in pairwise(one)
        ]
        lengths = Lengths(
            prompt=round(fmean(one[0].prompt for one in chains)),
            refinement=round(fmean(more)),
            **fitted_lengths(tokens),
        )
        update = found.figures["update_seconds"] / trained_tokens(steps)
        cost = fitted_cost(spans, times)
        return cls(fit=found.fit, lengths=lengths, cost=cost, update=update)

    def says(self, fit: Fit, ranks: Sequence[Sequence[Sequence[Trajectory]]]) -> dict[str, float]:
        """The figures of a fit with these trajectories by rank and optimizer step."""
        rolled = [replayed(fit, steps) for steps in ranks]
        seconds = sum(self.cost.seconds(one.spans) for rank in rolled for one in rank)
        trained = sum(map(trained_tokens, ranks))
        times = {"rollout_seconds": seconds, "update_seconds": self.update * trained}
        return {**figures(fit, rolled), **times}

    def predicts(self, fit: Fit) -> dict[str, dict[str, float]]:
        """Mean figures of simulated runs, and between what 90 % of them lie."""
        work = Workload(
            problems=fit.problems,
            group=GROUP,
            turns=fit.turns,
            carry_over=bool(fit.carry_over),
            limit=fit.limit,
            longest_prompt=LONGEST_PROMPT,
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


def trained_tokens(steps: Iterable[Iterable[Trajectory]]) -> int:
    """Prompts and completions of last turns."""
    return sum(sum(turns[-1]) for step in steps for turns in step)


def compare(name: str, found: Measured, calibrated: Calibrated) -> dict[str, Any]:
    """What was measured of a fit, and what was predicted; printed too."""
    fit = found.fit
    schedule = figures(fit, [replayed(fit, steps) for steps in found.trajectories])
    result: dict[str, Any] = {
        "fit": asdict(fit),
        "measured": found.figures,
        "scheduled": schedule,
        "predicted": calibrated.predicts(fit),
    }
    print(name, "(calibrates)" if calibrated.fit == fit else "", flush=True)
    for key, value in found.figures.items():
        drawn = result["predicted"][key]
        own = f"{schedule[key]:10.3f}" if key in schedule else " " * 10
        between = f"{drawn['low']:.3f} to {drawn['high']:.3f}"
        print(f"  {key:16}{value:10.3f}{own}{drawn['mean']:10.3f}  {between}")
    return result


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
        about = {"versions": versions(), "hardware": hardware()}
        by = [asdict(one) for one in calibrated.values()]
        if options.out:  # after each fit, since they take a while
            write_json(options.out, {**about, "calibrations": by, "fits": found})


if __name__ == "__main__":
    main()
