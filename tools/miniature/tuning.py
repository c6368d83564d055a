"""Choices on the development problems: a learning rate per family, and SVR+'s options."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar, cast

import yaml

from svr_lightning.errors import ConfigError
from svr_lightning.files import write_json
from tools.miniature import plan
from tools.miniature.plan import Cell, Family, Settings

TUNED = "tuned.json"
_SHOWN = ("accuracy", "avg_total_tokens", "turns")
Scores = dict[str, Any]
T = TypeVar("T")


def rate_cells(settings: Settings) -> list[Cell]:
    """Trainings of each family's representative at each learning rate."""
    return [
        plan.rate_cell(family, rate, settings)
        for family in plan.REPRESENTATIVES
        for rate in plan.RATES
    ]


def candidate_cells(settings: Settings) -> list[Cell]:
    """Trainings of each candidate. Writes the candidates' layers."""
    for name, layer in plan.CANDIDATES.items():
        write_json(plan.candidate_layer(name, settings), layer)  # JSON is YAML
    return [
        plan.candidate_cell(name, seed, settings)
        for name in plan.CANDIDATES
        for seed in plan.CANDIDATE_SEEDS
    ]


def tuned_rates(settings: Settings) -> dict[str, Any]:
    """For each family every learning rate's development figures, and the choice."""
    families: dict[str, Any] = {}
    for family, name in plan.REPRESENTATIVES.items():
        tried = {
            f"{rate:g}": development_scores(plan.rate_cell(family, rate, settings))
            for rate in plan.RATES
        }
        families[family] = {"row": name, "tried": tried, "lr": best_rate(tried)}
    return families


def best_rate(tried: Mapping[str, Scores]) -> float:
    """The learning rate with the highest accuracy; of equal ones the smallest."""
    return min((-scores["accuracy"], float(rate)) for rate, scores in tried.items())[1]


def judged_candidates(settings: Settings) -> dict[str, Any]:
    """Every candidate's development figures, averaged over seeds, and the best one."""
    tried = {}
    for name in plan.CANDIDATES:
        runs = [
            development_scores(plan.candidate_cell(name, seed, settings))
            for seed in plan.CANDIDATE_SEEDS
        ]
        tried[name] = {"seeds": runs, **{key: fmean(run[key] for run in runs) for key in _SHOWN}}
    return {"tried": tried, "chosen": best_candidate(tried)}


def best_candidate(tried: Mapping[str, Scores]) -> str:
    """The highest accuracy; of equal ones the fewest tokens."""
    return min((-s["accuracy"], s["avg_total_tokens"], name) for name, s in tried.items())[2]


def development_scores(cell: Cell) -> Scores:
    """The results of a training's last validation.

    Raises:
        ConfigError: if there is none.
    """
    folder = Path(cell.commands[0].folder)
    found = sorted(folder.glob("eval/step-*/results.json"))
    if not found:
        raise ConfigError(f"{folder}: no validation results; run --stage tune")
    (values,) = json.loads(found[-1].read_text(encoding="utf-8"))["datasets"].values()
    return {name: values[name] for name in _SHOWN}


def read_rates(out: str) -> dict[Family, float]:
    """The learning rates that ``tuned.json`` holds.

    Raises:
        ConfigError: if there is no such file, or it lacks one.
    """

    def rates(tuned: Any) -> dict[Family, float]:
        return {name: float(tuned["families"][name]["lr"]) for name in plan.REPRESENTATIVES}

    return _read_tuned(out, "tuned learning rates", rates)


def check_choice(out: str) -> None:
    """Check that SVR+'s layer is the chosen candidate.

    Raises:
        ConfigError: if it holds another candidate, or there is no choice.
    """

    def chosen(tuned: Any) -> tuple[str, Mapping[str, Any]]:
        name = tuned["candidates"]["chosen"]
        return name, plan.CANDIDATES[name]["model"]["recipe"]["init_args"]

    name, wanted = _read_tuned(out, "choice of a candidate", chosen)
    (layer,) = plan.BY_NAME[plan.CHOSEN].layers
    held = yaml.safe_load(Path(layer).read_text(encoding="utf-8"))["model"]["recipe"]["init_args"]
    if any(held.get(option) != value for option, value in wanted.items()):
        raise ConfigError(
            f"{layer} is not the candidate {name!r} of {Path(out) / TUNED}; set {dict(wanted)}"
        )


def _read_tuned(out: str, what: str, read: Callable[[Any], T]) -> T:
    """``read`` of ``tuned.json``; one clear error if it fails."""
    path = Path(out) / TUNED
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: no {what} ({type(error).__name__}: {error}); run --stage tune"
        ) from error


def write_tuned(out: str, families: Mapping[str, Any], candidates: Mapping[str, Any]) -> None:
    """Write every choice with its figures."""
    rates = [cast(Sequence[float], plan.RATES), plan.TUNING_SEED, plan.CANDIDATE_SEEDS]
    names = ("rates", "rate_seed", "candidate_seeds")
    settings = dict(zip(names, rates, strict=True))
    value = {"settings": settings, "families": families, "candidates": candidates}
    write_json(Path(out) / TUNED, value)
