"""The figures of a report: which there are, from which numbers, and what stands under them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.sweep import THRESHOLDS
from svr_lightning.report import figure_accuracy as accuracy
from svr_lightning.report import figure_confidence as confidence
from svr_lightning.report import figure_data as data
from svr_lightning.report import figure_training as training
from svr_lightning.report import figure_turns as turns
from svr_lightning.report.figure_names import averages, display, ordered
from svr_lightning.report.runs import Method, Run
from svr_lightning.report.tables import vote_counts, vote_point
from svr_lightning.report.values import seed_name

Numbers = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class FigureSpec:
    """One figure: a file name without its ending, a caption, the numbers, and how to draw them."""

    name: str
    caption: str
    numbers: Numbers
    draw: Callable[[Any], Figure]
    method: int | None = None
    """Which method it is about, from 0; None for a comparison."""


def all_pictures(
    methods: Sequence[Method], votes: Mapping[str, Any] | None
) -> tuple[list[FigureSpec], list[str]]:
    """Every figure that the runs allow, and why others are not there."""
    pictures, notes = [frontier(methods, votes), datasets(methods)], []
    for number, method in enumerate(methods):
        pictures += of_recording(method, number)
        if not method.runs[0].complete and method.runs[0].max_turns > 1:
            notes.append(
                f"{method.name}: no fixed budgets and no thresholds, because its trajectories end "
                "where they stopped; record every turn with --model.evaluation.adaptive false."
            )
        if not method.runs[0].self_checks:
            notes.append(f"{method.name}: no figures of confidence, because no turn states one.")
    without: list[str] = []
    shown_logs: set[Path | None] = set()
    for number, method in enumerate(methods):
        logs = {source.metrics for run in method.runs for source in run.sources}
        if logs & shown_logs - {None}:
            continue  # several evaluations of one training run
        shown_logs |= logs
        try:
            found = of_training(method, number)
        except ConfigError as error:
            notes.append(f"{method.name}: no training curves; {error}.")
            continue
        pictures += found
        without += [] if found else [method.name]
    if without:
        notes.append(
            f"No training curves, for want of a metrics.csv of a fit: {', '.join(without)}."
        )
    return pictures, notes


def frontier(methods: Sequence[Method], votes: Mapping[str, Any] | None) -> FigureSpec:
    """Figure 1: every method that has all data sets; of several seeds, their mean and spread."""
    names = ordered(n for method in methods for n in method.runs[0].tables)
    label, sets = next(iter(averages(names).items()))
    complete = [method for method in methods if set(sets) <= method.runs[0].tables.keys()]
    fixed = next((method for method in complete if method.runs[0].complete), None)
    line = None
    if fixed:
        rows = [data.average(row, sets) for row in fixed.runs[0].budgets]
        line = {
            "name": fixed.name,
            "budgets": list(range(1, len(rows) + 1)),
            "accuracy": [row["accuracy"] for row in rows],
            "tokens": [row["avg_total_tokens"] for row in rows],
        }
    numbers = {
        "average": label,
        "methods": [_point(method, sets) for method in complete],
        "fixed": line,
        "votes": _vote_line(votes, sets) if votes else None,
    }
    several = any(len(method.runs) > 1 for method in complete)
    spread = "; of several seeds, mean \u00b1 standard deviation" if several else ""
    return FigureSpec(
        name="01_frontier",
        caption=f"Accuracy against tokens. Crosses are 95 % intervals over problems{spread}.",
        numbers=numbers,
        draw=accuracy.frontier,
    )


def _point(method: Method, sets: Sequence[str]) -> Numbers:
    """Where a method lies; its cross is over problems, or over seeds where it has several."""
    whole = [run for run in method.runs if set(sets) <= run.tables.keys()]
    rows = [data.average(run.datasets, sets) for run in whole]
    accuracies = [row["accuracy"] for row in rows]
    tokens = [row["avg_total_tokens"] for row in rows]
    first = whole[0]
    intervals = {
        "accuracy_interval": rows[0]["accuracy_ci95"],
        "tokens_interval": data.token_interval(first.tables, first.outcomes, sets),
    }
    if len(rows) > 1:
        intervals = {"accuracy_interval": _band(accuracies), "tokens_interval": _band(tokens)}
    return {
        "name": method.name,
        "seeds": len(rows),
        "accuracy": fmean(accuracies),
        "tokens": fmean(tokens),
        **intervals,
    }


def _band(values: Sequence[float]) -> list[float]:
    middle, half = fmean(values), stdev(values)
    return [middle - half, middle + half]


def _vote_line(votes: Mapping[str, Any], sets: Sequence[str]) -> Numbers | None:
    points = {k: point for k in vote_counts(votes) if (point := vote_point(votes, sets, k))}
    if not points:
        return None
    return {
        "k": list(points),
        "accuracy": [point[0] for point in points.values()],
        "tokens": [point[1] for point in points.values()],
    }


def datasets(methods: Sequence[Method]) -> FigureSpec:
    """Figure 11."""
    names = ordered(n for method in methods for n in method.runs[0].tables)
    sizes = {n: len(table.ids) for m in methods for n, table in m.runs[0].tables.items()}
    found = [(method.name, method.runs[0].datasets) for method in methods]
    return FigureSpec(
        name="11_datasets",
        caption="Accuracy on each data set, with 95 % Wilson intervals"
        + (" (of several seeds, the first)." if any(len(m.runs) > 1 for m in methods) else "."),
        numbers={
            "datasets": [{"name": display(name), "n": sizes[name]} for name in names],
            "methods": [
                {
                    "name": name,
                    **{
                        key: [values[one][key] if one in values else None for one in names]
                        for key in ("accuracy", "accuracy_ci95")
                    },
                }
                for name, values in found
            ],
        },
        draw=accuracy.datasets,
    )


def of_recording(method: Method, number: int) -> list[FigureSpec]:
    """Figures 2 to 7 and 10, of a method's first seed."""
    run = method.runs[0]
    table, outcome = data.pooled(run.tables, run.outcomes)
    pool = f", {len(run.tables)} data sets pooled" if len(run.tables) > 1 else ""
    seed = f", seed {seed_name(run, 1)}" if len(method.runs) > 1 else ""
    turned = "all recorded turns" if run.complete else "turns up to the stop"
    entries: list[tuple[str, str, Numbers, Callable[[Any], Figure]]] = []
    if run.complete:
        what = "Fixed budgets and adaptive inference" if run.self_checks else "Fixed budgets"
        entries.append(("02_budgets", what, _budgets(run), accuracy.budgets))
    if run.complete and run.self_checks:
        entries.append(("03_thresholds", "Other thresholds", _thresholds(run), accuracy.thresholds))
    risk = {**data.risk_coverage(table, outcome), "threshold": run.rule.threshold}
    checking = [
        (
            "04_reliability",
            f"Is the confidence honest? Share of right answers at each stated confidence{pool}",
            data.reliability_of(table, outcome),
            confidence.reliability,
        ),
        (
            "05_risk_coverage",
            f"Does confidence rank answers? Errors among the most confident ones{pool}",
            risk,
            confidence.risk_coverage,
        ),
    ]
    entries += checking if run.self_checks else []
    several = [
        (
            "06_transitions",
            f"Does refinement mend or break? {turned.capitalize()}{pool}",
            data.transitions(table),
            turns.transitions,
        ),
    ]
    stopping = [
        (
            "07_stop_times",
            f"Where trajectories end{pool}; orange is the premature stop error",
            data.stop_times(table, outcome),
            turns.stop_times,
        ),
        (
            "10_confidence_by_turn",
            f"Does confidence follow correctness over turns? {turned.capitalize()}{pool}",
            data.confidence_by_turn(table),
            confidence.by_turn,
        ),
    ]
    entries += several if run.max_turns > 1 else []
    entries += stopping if run.stops else []
    return [
        FigureSpec(
            name=f"{name}_{number + 1}",
            caption=f"{method.name}{seed}: {caption}.",
            numbers=numbers,
            draw=draw,
            method=number,
        )
        for name, caption, numbers, draw in entries
    ]


def _budgets(run: Run) -> Numbers:
    panels = []
    for name, sets in averages(list(run.tables)).items():
        adaptive = data.average(run.datasets, sets)
        panels.append(
            {
                "name": name,
                "budgets": list(range(1, len(run.budgets) + 1)),
                "accuracy": [data.average(row, sets)["accuracy"] for row in run.budgets],
                "turns": adaptive["turns"],
                "adaptive": adaptive["accuracy"] if run.self_checks else None,
                "adaptive_ci95": adaptive["accuracy_ci95"],
            }
        )
    return {"panels": panels}


def _thresholds(run: Run) -> Numbers:
    panels = []
    for name, sets in averages(list(run.tables)).items():
        rows = [data.average(row, sets) for row in run.at_thresholds]
        columns = {key: [row[key] for row in rows] for key in ("accuracy", "esr", "pse", "turns")}
        panels.append({"name": name, "thresholds": list(THRESHOLDS), **columns})
    return {"threshold": run.rule.threshold, "panels": panels}


def of_training(method: Method, number: int) -> list[FigureSpec]:
    """Figures 8 and 9, from the training logs near the samples; none where there is no log.

    Raises:
        ConfigError: naming a log that cannot be read.
    """
    logs = [log for run in method.runs for source in run.sources[:1] if (log := source.metrics)]
    curves = [training.read_curves(log) for log in logs]
    trained = [curve for curve in curves if "train/reward/mean" in curve]
    if not trained:
        return []
    reward = training.reward_data(trained[0])
    health = training.health_data(trained)
    seeds = f" Bands are least to greatest of {len(trained)} seeds." if len(trained) > 1 else ""
    entries = [
        ("09_training", f"Training health.{seeds}", health, training.health),
    ]
    if reward["terms"]:
        entries.insert(0, ("08_rewards", "Reward terms over training.", reward, training.rewards))
    return [
        FigureSpec(
            name=f"{name}_{number + 1}",
            caption=f"{method.name}: {caption}",
            numbers=numbers,
            draw=draw,
            method=number,
        )
        for name, caption, numbers, draw in entries
    ]
