"""Choices on the development problems: a learning rate per row, and SVR+'s options."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import yaml

from experiments.miniature import plan
from experiments.miniature.plan import Cell, Settings
from svr_lightning.errors import ConfigError
from svr_lightning.files import write_json

TUNED = "tuned.json"
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    name: {
        "model": {
            "recipe": {
                "class_path": "svr_lightning.recipes.svr_plus.SVRPlus",
                "init_args": {"turns": turns, "sections": sections, "proper": proper},
            }
        }
    }
    for name, (turns, sections, proper) in {
        "drawn": ("drawn", False, False),
        "drawn_proper": ("drawn", False, True),
        "drawn_sections": ("drawn", True, False),
        "drawn_sections_proper": ("drawn", True, True),
        "all": ("all", False, False),
        "all_sections": ("all", True, False),
    }.items()
}
"""Configuration layers among which ``svr_plus`` is chosen, on both tasks' development problems."""
_SHOWN = ("accuracy", "avg_total_tokens", "turns")
Scores = dict[str, Any]
T = TypeVar("T")


def tuned_rows(settings: Settings, names: Sequence[str]) -> list[str]:
    """Rows of ``names`` with a learning rate of their own, and those that others take it from."""
    wanted = {plan.BY_NAME[name].rate_of or plan.BY_NAME[name].policy_of or name for name in names}
    on_task = {row.name for row in plan.rows_of(settings.task)}
    return [name for name in plan.TUNED_ROWS if name in wanted & on_task]


def grid(name: str, settings: Settings) -> list[float]:
    """The learning rates that a row has to try, given what was tried already.

    Doubled or halved beyond the end at which the best one lies, so that it ends up inside.
    """
    rates = list(plan.RATES)
    for _ in range(plan.MORE_RATES):
        if not all(_is_judged(rate_cell(name, rate, settings)) for rate in rates):
            return rates
        best = best_rate(scores_of(name, rates, settings))
        if best == rates[-1]:
            rates.append(2 * best)
        elif best == rates[0]:
            rates.insert(0, best / 2)
    return rates


def rate_cell(name: str, rate: float, settings: Settings) -> Cell:
    """A training that tries a learning rate for a row."""
    folder = f"{settings.out}/tune/{name}-{rate:g}"
    row, seed = plan.BY_NAME[name], plan.TUNING_SEED
    command = plan.fit(row, seed, rate, folder, settings, plan.TUNING_FLAGS)
    return Cell(name=f"tune/{name}-{rate:g}", commands=(command,))


def candidate_cell(name: str, seed: int, settings: Settings) -> Cell:
    """A training of a candidate for ``svr_plus``."""
    row = replace(plan.BY_NAME["svr"], layers=(candidate_layer(name, settings),))
    folder = f"{settings.out}/tune/{name}-{seed}"
    command = plan.fit(row, seed, plan.CANDIDATE_RATE, folder, settings)
    return Cell(name=f"tune/{name}-{seed}", commands=(command,))


def candidate_layer(name: str, settings: Settings) -> str:
    """The file that a candidate's layer is written to."""
    return f"{settings.out}/tune/{name}.yaml"


def rate_cells(settings: Settings, names: Sequence[str]) -> list[Cell]:
    """Trainings of every row at every learning rate that it has to try."""
    return [rate_cell(name, rate, settings) for name in names for rate in grid(name, settings)]


def candidate_cells(settings: Settings) -> list[Cell]:
    """Trainings of each candidate. Writes the candidates' layers."""
    for name, layer in CANDIDATES.items():
        write_json(candidate_layer(name, settings), layer)  # JSON is YAML
    return [
        candidate_cell(name, seed, settings) for name in CANDIDATES for seed in plan.CANDIDATE_SEEDS
    ]


def tuned_rates(settings: Settings, names: Sequence[str]) -> dict[str, Any]:
    """For each row every learning rate's development figures, and the choice."""
    tried = {name: scores_of(name, grid(name, settings), settings) for name in names}
    return {name: {"tried": scores, "lr": best_rate(scores)} for name, scores in tried.items()}


def scores_of(name: str, rates: Sequence[float], settings: Settings) -> dict[str, Scores]:
    """Development figures of a row by learning rate."""
    return {f"{rate:g}": development_scores(rate_cell(name, rate, settings)) for rate in rates}


def best_rate(tried: Mapping[str, Scores]) -> float:
    """The learning rate with the highest accuracy; of equal ones the smallest."""
    return min((-scores["accuracy"], float(rate)) for rate, scores in tried.items())[1]


def judged_candidates(settings: Settings) -> dict[str, Any]:
    """Every candidate's development figures on this task, averaged over seeds."""
    tried = {}
    for name in CANDIDATES:
        runs = [
            development_scores(candidate_cell(name, seed, settings))
            for seed in plan.CANDIDATE_SEEDS
        ]
        tried[name] = {"seeds": runs, **{key: fmean(run[key] for run in runs) for key in _SHOWN}}
    return tried


def chosen_candidate(outs: Sequence[str]) -> str:
    """The highest accuracy on average over the tasks; of equal ones the fewest tokens.

    Args:
        outs: the folder of each task.

    Raises:
        ConfigError: if a task's candidates are not judged.
    """
    tried = [
        _read_tuned(out, "figures of the candidates", lambda tuned: dict(tuned["candidates"]))
        for out in outs
    ]

    def mean(name: str, key: str) -> float:
        return fmean(task[name][key] for task in tried)

    judged = [name for name in CANDIDATES if all(name in task for task in tried)]
    if not judged:
        raise ConfigError(f"{', '.join(outs)}: candidates are not judged; run --stage tune on both")
    return min((-mean(n, "accuracy"), mean(n, "avg_total_tokens"), n) for n in judged)[2]


def development_scores(cell: Cell) -> Scores:
    """The results of a training's last validation.

    Raises:
        ConfigError: if there is none.
    """
    found = _validations(cell)
    if not found:
        raise ConfigError(f"{cell.commands[0].folder}: no validation results; run --stage tune")
    (values,) = json.loads(found[-1].read_text(encoding="utf-8"))["datasets"].values()
    return {name: values[name] for name in _SHOWN}


def _validations(cell: Cell) -> list[Path]:
    return sorted(Path(cell.commands[0].folder).glob("eval/step-*/results.json"))


def _is_judged(cell: Cell) -> bool:
    return bool(_validations(cell))


def take_over(published: Path, out: str) -> None:
    """Go on with the choices that are published, unless this experiment has its own."""
    source, target = published / TUNED, Path(out) / TUNED
    if source.is_file() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def read_rates(out: str) -> dict[str, float]:
    """The learning rates that ``tuned.json`` holds, and that of SVR+.

    Raises:
        ConfigError: if there is no such file, or it lacks one.
    """

    def rates(tuned: Any) -> dict[str, float]:
        found = {name: float(found["lr"]) for name, found in tuned["rates"].items()}
        return {**found, plan.CHOSEN: plan.CANDIDATE_RATE}

    return _read_tuned(out, "tuned learning rates", rates)


def check_choice(outs: Sequence[str]) -> None:
    """Check that SVR+'s layer is the chosen candidate.

    Raises:
        ConfigError: if it holds another candidate, or candidates are not judged.
    """
    name = chosen_candidate(outs)
    wanted = CANDIDATES[name]["model"]["recipe"]["init_args"]
    (layer,) = plan.BY_NAME[plan.CHOSEN].layers
    held = yaml.safe_load(Path(layer).read_text(encoding="utf-8"))["model"]["recipe"]["init_args"]
    if any(held.get(option) != value for option, value in wanted.items()):
        raise ConfigError(
            f"{layer} is not the candidate {name!r} of {', '.join(outs)}; set {dict(wanted)}"
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


def write_tuned(out: str, rates: Mapping[str, Any], candidates: Mapping[str, Any]) -> None:
    """Write every choice with its figures; rows that were tuned before and not now keep theirs."""
    path = Path(out) / TUNED
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    value = {
        "settings": {"rate_seed": plan.TUNING_SEED, "candidate_seeds": plan.CANDIDATE_SEEDS},
        "rates": {**before.get("rates", {}), **rates},
        "candidates": candidates or before.get("candidates", {}),
    }
    write_json(path, value)
