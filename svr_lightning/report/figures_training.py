"""Figures of a training run, from its ``metrics.csv``."""

import csv
import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from svr_lightning.errors import ConfigError
from svr_lightning.report import drawing
from svr_lightning.report.numbers import Numbers

Curves = Mapping[str, tuple[Sequence[int], Sequence[float]]]
TERMS = {
    "correct": ("correct", drawing.BLUE),
    "abs": ("absolute", drawing.BLUE),
    "prog": ("progress", drawing.LIGHT_BLUE),
    "trunc": ("truncation", drawing.PALE_BLUE),
    "cal": ("calibration", drawing.ORANGE),
    "over": ("overconfidence", drawing.LIGHT_ORANGE),
    "detect": ("detection", drawing.PALE_ORANGE),
    "ready": ("readiness", drawing.RUST),
    "task_format": ("task format", drawing.GREY),
    "self_check_format": ("self-check format", drawing.FAINT),
}
"""Names and colours of known reward terms: solving blue, verifying orange, format grey."""
_PREFIX = "train/reward/"
_SUMS = ("mean", "solve", "verify", "format")
"""Logged sums of several terms."""
HEALTH = (
    ("train/reward/mean", "mean return"),
    ("train/kl", "KL to the reference\n(nats per token)"),
    ("train/completion_tokens", "completion length\n(tokens)"),
    ("train/clip_frac", "clipped\n(share of tokens)"),
    ("train/grad_norm", "gradient norm\n(before clipping)"),
    ("engine/logprob_diff", "engine and trainer differ\n(nats per token)"),
)
"""Keys and names of the health panels, always in this order."""


def read_trainings(logs: Sequence[Path]) -> list[Curves]:
    """The curves of each log that is of a training.

    Raises:
        ConfigError: naming a log that cannot be read.
    """
    return [curves for log in logs if "train/reward/mean" in (curves := read_curves(log))]


def read_curves(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Steps and values of every key of a ``metrics.csv``; a value that is nan is left out.

    Raises:
        ConfigError: naming the file, if it cannot be read as one.
    """
    curves: dict[str, tuple[list[int], list[float]]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream):
                if row["value"]:
                    steps, values = curves.setdefault(row["key"], ([], []))
                    steps.append(int(row["step"]))
                    values.append(float(row["value"]))
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise ConfigError(
            f"{path}: not a metrics.csv of a run ({error}); fix or remove it"
        ) from error
    return curves


def reward_numbers(runs: Sequence[Curves]) -> Numbers | None:
    """The terms of the first run's reward, each a running mean over a fortieth of the run.

    A term that is 0 at every step is left out. None where the run logged none.
    """
    if not runs:
        return None
    terms = {key.removeprefix(_PREFIX): runs[0][key] for key in runs[0] if key.startswith(_PREFIX)}
    names = [name for name in sorted(terms, key=_place) if name not in _SUMS]
    steps = list(terms[names[0]][0]) if names else []
    window = max(1, math.ceil(len(steps) / 40))
    means = {
        name: _running_mean(terms[name][1], window)
        for name in names
        if list(terms[name][0]) == steps and np.any(terms[name][1])
    }
    return {"steps": steps, "window": window, "terms": means} if means else None


def _place(name: str) -> tuple[int, str]:
    """Known terms in their order, then others by name."""
    return (list(TERMS).index(name) if name in TERMS else len(TERMS)), name


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    """Each value's mean with up to ``window`` - 1 before it."""
    return [float(np.mean(values[max(0, end - window) : end])) for end in range(1, len(values) + 1)]


def health_numbers(runs: Sequence[Curves]) -> Numbers | None:
    """Per health panel the mean, least and greatest value over runs, at the steps all runs have."""
    if not runs:
        return None
    panels = {}
    for key, _ in HEALTH:
        found = [dict(zip(*run[key], strict=True)) for run in runs if key in run]
        steps = sorted(set.intersection(*map(set, found))) if found else []
        values = np.array([[one[step] for step in steps] for one in found])
        finite = np.isfinite(values).all(0) if found else np.zeros(0, dtype=bool)
        panels[key] = {
            "steps": [step for step, good in zip(steps, finite, strict=True) if good],
            **{
                name: function(values[:, finite], axis=0).tolist() if found else []
                for name, function in (("mean", np.mean), ("min", np.min), ("max", np.max))
            },
        }
    return {"runs": len(runs), "panels": panels}


def draw_rewards(data: Numbers) -> Figure:
    """The mean reward per turn, term by term; penalties hang below zero."""
    figure, axes = drawing.one_axes(3.7)
    steps, terms = data["steps"], data["terms"]
    others = cycle(drawing.OTHERS)
    looks = {key: TERMS.get(key) or (key.replace("_", " "), next(others)) for key in terms}
    ends = []
    for sign in (1, -1):
        base = np.zeros(len(steps))
        for key, (name, colour) in looks.items():
            part = np.maximum(np.array(terms[key]) * sign, 0) * sign
            axes.fill_between(steps, base, base + part, color=colour, linewidth=0)
            if (terms[key][-1] >= 0) == (sign > 0):
                middle = float(base[-1] + part[-1] / 2)
                ends.append((middle, f"{drawing.shown(name, 20)} {terms[key][-1]:+.2f}", colour))
            base = base + part
    total = np.sum([terms[key] for key in terms], axis=0)
    axes.plot(steps, total, color=drawing.INK, linewidth=1.4)
    axes.axhline(0, color=drawing.INK, linewidth=0.7)
    axes.set_xlim(steps[0], steps[-1] if len(steps) > 1 else steps[0] + 1)
    window = f", running mean over {data['window']} steps" if data["window"] > 1 else ""
    axes.set_xlabel(f"optimizer step{window}")
    axes.set_ylabel("mean reward per turn (line: sum)")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    drawing.label_right(axes, ends, areas=True)
    return figure


def draw_health(data: Numbers) -> Figure:
    """Six curves that show whether a run is healthy; bands are least to greatest."""
    figure = drawing.new_figure(5.2)
    for axes, (key, name) in zip(figure.subplots(3, 2).flat, HEALTH, strict=True):
        panel = data["panels"][key]
        if panel["steps"]:
            if data["runs"] > 1:
                axes.fill_between(
                    panel["steps"],
                    panel["min"],
                    panel["max"],
                    color=drawing.BLUE,
                    alpha=0.2,
                    linewidth=0,
                )
            axes.plot(panel["steps"], panel["mean"], color=drawing.BLUE, linewidth=1.1)
            if np.ptp(panel["mean"]) == 0:
                axes.set_ylim(*drawing.padded(panel["mean"], 0))
        else:
            drawing.note(axes, "not logged")
        axes.set_title(name, loc="left", fontsize=drawing.SMALL)
        axes.grid(axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel("optimizer step", fontsize=drawing.SMALL)
    return figure
