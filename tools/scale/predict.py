"""Many optimizer steps of a configuration on a number of GPUs, and what they take on average."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Any

from jsonargparse import ArgumentParser

from svr_lightning.engines.vllm import MOST_SEQUENCES
from svr_lightning.errors import require
from svr_lightning.recipes.base import Recipe
from svr_lightning.report.figures_training import read_curves
from tools.memory.plan import Plan, plan_of
from tools.scale.cost import Assumptions, Costs, costs_on, on_ranks
from tools.scale.schedule import Places, idle_share, optimizer_steps
from tools.scale.workload import Attempts, Workload, fitted_lengths


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Means over optimizer steps."""

    gpus: int
    step: float
    """Seconds, like the three parts below; of the slowest rank."""
    rollout: float
    update: float
    """Reference, update, and the exchange of gradients."""
    sync: float
    wait: float
    """Share of the step that a rank waits for the slowest rollout."""
    idle: float
    """Share of the engines' places without work while they roll out."""
    stale: float
    """Share of the tokens that were drawn by the weights of the step before."""
    tokens_per_second: float
    """Of the trajectories that are trained on, over all GPUs."""
    engine_steps: float
    """Of the engine with the most."""
    context: float
    """Tokens in the cache of one engine at most."""


def simulate(
    work: Workload, costs: Costs, places: Places, *, gpus: int, together: int, steps: int
) -> Prediction:
    """Predict a training on ``gpus`` GPUs, ``together`` of which share an engine.

    With carry-over the first and the last step are left out: nothing is carried into the one nor
    out of the other.
    """
    edge = int(work.carry_over)
    kept = slice(edge, edge + steps)
    batches = work.batches(gpus // together, steps + 2 * edge, seed=0)
    rolled = [
        list(optimizer_steps(its, places, carry_over=work.carry_over))[kept] for its in batches
    ]
    by_step, everything = list(zip(*rolled, strict=True)), list(chain(*rolled))
    seconds = [[costs.engine.seconds(one.spans) for one in its] for its in by_step]
    rollout = fmean(max(its) for its in seconds)
    trained = list(zip(*batches, strict=True))[kept]
    update = fmean(_update(costs, its, gpus) for its in trained) + costs.exchange
    step = rollout + update + costs.sync
    tokens = sum(one.tokens for one in everything)
    spans = [span for one in everything for span in one.spans]
    return Prediction(
        gpus=gpus,
        step=step,
        rollout=rollout,
        update=update,
        sync=costs.sync,
        wait=fmean(max(its) - fmean(its) for its in seconds) / step,
        idle=idle_share(spans, places.slots),
        stale=sum(one.stale for one in everything) / tokens,
        tokens_per_second=tokens / len(by_step) / step,
        engine_steps=fmean(max(one.steps for one in its) for its in by_step),
        context=max(span.context + span.rows for span in spans),
    )


def _update(costs: Costs, batches: tuple[Attempts, ...], gpus: int) -> float:
    """Seconds of the slowest rank's update on the last turns of a step."""
    sequences = [turns[-1] for first, *_ in batches for turns in first]
    size = len(sequences) // gpus
    return max(costs.update(sequences[i : i + size]) for i in range(0, len(sequences), size))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A training on cards of one kind.

    Raises:
        ConfigError: for what is not simulated.
    """

    resolved: Mapping[str, Any]
    """The configuration."""
    card: str
    steps: int
    assumed: Assumptions = field(default_factory=Assumptions)

    def __post_init__(self) -> None:
        engine = self.resolved["model"].get("engine")
        recipe = _recipe_of(self.resolved)
        require(
            recipe.samples_per_problem
            == self.resolved["model"]["recipe"]["init_args"]["group_size"],
            f"{type(recipe).__name__} trains on {recipe.samples_per_problem} sequences of a "
            "problem; only recipes that train on one of each trajectory are simulated",
        )
        require(
            self.plan.device == "cuda"
            and (not engine or engine["class_path"].endswith("VLLMEngine")),
            "only vLLM in the training processes, on GPUs, is simulated",
        )

    @property
    def plan(self) -> Plan:
        """What decides about memory and traffic."""
        return plan_of(self.resolved)

    def costs(self, gpus: int) -> Costs:
        """What everything takes on a number of GPUs."""
        return costs_on(on_ranks(self.plan, gpus), self.card, self.assumed)

    def on(self, gpus: int) -> Prediction:
        """The prediction for a number of GPUs.

        Raises:
            ConfigError: if the problems of a step cannot be split among them.
        """
        plan, model = self.plan, self.resolved["model"]
        recipe, problems = model["recipe"]["init_args"], self.resolved["data"]["problems_per_step"]
        together = plan.tensor_parallel
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
            limit=plan.completion,
            longest_prompt=plan.prompt,
            lengths=self.assumed,
        )
        trajectories = problems * together // gpus * work.group
        options = ((model.get("engine") or {}).get("init_args") or {}).get("options") or {}
        places = Places(slots=options.get("max_num_seqs", min(trajectories, MOST_SEQUENCES)))
        sizes = {"gpus": gpus, "together": together, "steps": self.steps}
        return simulate(work, self.costs(gpus), places, **sizes)


def measured_points(run: Path, setting: Setting) -> dict[str, float]:
    """What can be learned of a run of the same configuration from what it has logged.

    Lengths come from ``rollouts.jsonl``, all else from ``metrics.csv``. The seconds of an engine
    step beside arithmetic and traffic are what is left of ``time/rollout`` per step.

    Raises:
        ConfigError: if the folder lacks either file, or a file is none of a run.
    """
    rollouts, metrics = run / "rollouts.jsonl", run / "metrics.csv"
    for path in (rollouts, metrics):
        require(path.is_file(), f"--run {run}: there is no {path.name}")
    lines = [json.loads(line) for line in rollouts.read_text(encoding="utf-8").splitlines()]
    logged = {key: values for key, (_, values) in read_curves(metrics).items()}
    found = fitted_lengths([t["completion_tokens"] for line in lines for t in line["turns"]])
    if "speed/mfu" in logged:
        found["mfu"] = fmean(logged["speed/mfu"])
    plain = replace(setting.assumed, **found, overhead=0.0, sync=0.0)
    predicted = replace(setting, assumed=plain).on(setting.plan.ranks)
    syncs = sum(logged.get("time/sync", ()))  # a part of the rollouts
    seconds = (sum(logged["time/rollout"]) - syncs) / sum(logged["engine/steps"])
    found["overhead"] = max(0.0, seconds - predicted.rollout / predicted.engine_steps)
    if "time/sync" in logged:
        found["sync"] = max(0.0, median(logged["time/sync"]) - predicted.sync)
    return found


def _recipe_of(resolved: Mapping[str, Any]) -> Recipe:
    """The recipe of a resolved configuration."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Recipe, "recipe")
    parsed = parser.parse_object({"recipe": resolved["model"]["recipe"]})
    recipe: Recipe = parser.instantiate_classes(parsed).recipe
    return recipe
