"""A configuration as the simulation reads it, and what a run of it has measured."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from svr_lightning.engines.vllm import MOST_SEQUENCES
from svr_lightning.errors import require
from tools.memory.plan import Plan
from tools.scale.cost import Assumptions, costs_on, on_ranks
from tools.scale.predict import Lengths, Prediction, Workload, simulate
from tools.scale.schedule import Places


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A training on cards of one kind.

    Raises:
        ConfigError: for what is not simulated, and for unknown names.
    """

    plan: Plan
    resolved: Mapping[str, Any]
    """The configuration behind the plan."""
    card: str
    steps: int
    seed: int
    given: Mapping[str, float] = field(default_factory=dict)
    """In place of defaults of :class:`Lengths` and :class:`Assumptions`."""

    def __post_init__(self) -> None:
        engine = self.resolved["model"].get("engine")
        require(
            self.plan.device == "cuda"
            and (not engine or engine["class_path"].endswith("VLLMEngine")),
            "only vLLM in the training processes, on GPUs, is simulated",
        )
        known = {one.name for kind in (Lengths, Assumptions) for one in fields(kind)}
        for name in self.given:
            require(name in known, f"--assume {name}: unknown; known: {', '.join(sorted(known))}")

    def values(self, kind: Any) -> Any:
        """The :class:`Lengths` or :class:`Assumptions`."""
        names = {one.name for one in fields(kind)}
        return kind(**{name: value for name, value in self.given.items() if name in names})

    def on(self, gpus: int) -> Prediction:
        """The prediction for a number of GPUs.

        Raises:
            ConfigError: if the problems of a step cannot be split among them.
        """
        model, problems = self.resolved["model"], self.resolved["data"]["problems_per_step"]
        recipe = model["recipe"]["init_args"]
        together = self.plan.tensor_parallel
        require(
            problems % gpus == 0 == gpus % together,
            f"data.problems_per_step={problems} and engines on {together} GPUs each do not fit "
            f"{gpus} GPUs; give --gpus or --data.problems_per_step",
        )
        work = Workload(
            problems=problems,
            group=recipe["group_size"],
            turns=recipe.get("horizon", 1),
            carry_over=bool(model["carry_over"]),
            limit=self.plan.completion,
            longest_prompt=self.plan.prompt,
            lengths=self.values(Lengths),
        )
        trajectories = problems * together // gpus * work.group
        options = ((model.get("engine") or {}).get("init_args") or {}).get("options") or {}
        slots = options.get("max_num_seqs", min(trajectories, MOST_SEQUENCES))
        costs = costs_on(on_ranks(self.plan, gpus), self.card, self.values(Assumptions))
        places = Places(slots=slots)
        some = {"together": together, "steps": self.steps, "seed": self.seed}
        return simulate(work, costs, places, gpus=gpus, **some)


def measured_points(run: Path, setting: Setting) -> dict[str, float]:
    """What can be learned of a run of the same configuration from what it has logged.

    Lengths come from ``rollouts.jsonl``, all else from ``metrics.csv``. The seconds of an engine
    step beside arithmetic and traffic are what is left of ``time/rollout`` per step.

    Raises:
        ConfigError: if the folder lacks either file.
    """
    names = ("rollouts.jsonl", "metrics.csv")
    rollouts, metrics = (run / name for name in names)
    for path in (rollouts, metrics):
        require(path.is_file(), f"--run {run}: there is no {path.name}")
    lines = [json.loads(line) for line in rollouts.read_text(encoding="utf-8").splitlines()]
    logged = logged_values(metrics)
    found = fitted_lengths([t["completion_tokens"] for line in lines for t in line["turns"]])
    if "speed/mfu" in logged:
        found["mfu"] = fmean(logged["speed/mfu"])
    plain = replace(setting, given={**found, "overhead": 0.0, "sync": 0.0})
    predicted = plain.on(setting.plan.ranks)
    seconds = sum(logged["time/rollout"]) / sum(logged["engine/steps"])
    found["overhead"] = max(0.0, seconds - predicted.rollout / predicted.engine_steps)
    if "time/sync" in logged:
        found["sync"] = max(0.0, median(logged["time/sync"]) - predicted.sync)
    return found


def logged_values(metrics: Path) -> dict[str, list[float]]:
    """What a run's ``metrics.csv`` has of each key."""
    logged: dict[str, list[float]] = {}
    with metrics.open(newline="") as stream:
        for row in csv.DictReader(stream):
            if row["value"]:
                logged.setdefault(row["key"], []).append(float(row["value"]))
    return logged


def fitted_lengths(tokens: Sequence[int]) -> dict[str, float]:
    """Median and spread of log-normal lengths, from their lower half: the upper one may be cut.

    Example:
        >>> fitted_lengths([10] * 17 + [20] * 33 + [40] * 50)  # at one deviation, at the median
        {'median': 30.0, 'spread': 1.0986122886681098}
    """
    shares = quantiles(tokens, n=50)
    return {"median": shares[24], "spread": math.log(shares[24] / shares[7])}
