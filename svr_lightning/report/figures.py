"""Which figures a report has: each has a caption, and functions for its numbers and drawing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.table import Outcome, TurnTable, pool
from svr_lightning.report import figures_accuracy as accuracy
from svr_lightning.report import figures_confidence as confidence
from svr_lightning.report import figures_training as training
from svr_lightning.report import figures_turns as turns
from svr_lightning.report.numbers import Numbers, seed_name
from svr_lightning.report.runs import Method, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec:
    """A figure of one recording."""

    name: str
    """Name of its files, before the number of the method."""
    caption: str
    """``{turned}`` stands for which turns were recorded, ``{pool}`` for pooled data sets."""
    numbers: Callable[[Run, TurnTable, Outcome], Numbers]
    """From a run, and the table and the outcomes of all its data sets together."""
    draw: Callable[[Any], Figure]
    shown: Callable[[Run], bool]
    """Whether a run has what it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnFigure:
    """A figure with its numbers, which are plain JSON."""

    name: str
    """Name of its files, without extension."""
    caption: str
    numbers: Numbers
    draw: Callable[[Any], Figure]
    method: int | None = None
    """Which method it is about, from 0; None for a comparison."""


SPECS = (
    FigureSpec(
        name="02_budgets",
        caption="Every fixed budget, and adaptive inference where answers are self-checked",
        numbers=lambda run, *_: accuracy.budget_numbers(run),
        draw=accuracy.budgets,
        shown=lambda run: run.complete,
    ),
    FigureSpec(
        name="03_thresholds",
        caption="Other thresholds",
        numbers=lambda run, *_: accuracy.threshold_numbers(run),
        draw=accuracy.thresholds,
        shown=lambda run: run.complete and run.self_checks,
    ),
    FigureSpec(
        name="04_reliability",
        caption="Is the confidence honest? Share of right answers at each stated confidence{pool}",
        numbers=lambda _, table, outcome: confidence.reliability_numbers(table, outcome),
        draw=confidence.reliability,
        shown=lambda run: run.self_checks,
    ),
    FigureSpec(
        name="05_risk_coverage",
        caption="Does confidence rank answers? Errors among the most confident ones{pool}",
        numbers=lambda run, table, outcome: {
            **confidence.risk_numbers(table, outcome),
            "threshold": run.rule.threshold,
        },
        draw=confidence.risk_coverage,
        shown=lambda run: run.self_checks,
    ),
    FigureSpec(
        name="06_transitions",
        caption="Does refinement fix or break answers? {turned}{pool}",
        numbers=lambda _, table, __: turns.transition_numbers(table),
        draw=turns.transitions,
        shown=lambda run: run.max_turns > 1,
    ),
    FigureSpec(
        name="07_stop_times",
        caption="Where trajectories end{pool}; orange is the premature stop error",
        numbers=lambda _, table, outcome: turns.stop_numbers(table, outcome),
        draw=turns.stop_times,
        shown=lambda run: run.stops,
    ),
    FigureSpec(
        name="10_confidence_by_turn",
        caption="Does confidence follow correctness over turns? {turned}{pool}",
        numbers=lambda _, table, __: confidence.by_turn_numbers(table),
        draw=confidence.by_turn,
        shown=lambda run: run.stops and run.self_checks,
    ),
)
"""The figures of a method's first seed, in the order of the report."""


def all_figures(
    methods: Sequence[Method], votes: Mapping[str, Any] | None
) -> tuple[list[DrawnFigure], list[str]]:
    """Every figure that the runs allow, and why others are missing."""
    several = any(len(method.runs) > 1 for method in methods)
    spread = "; of several seeds, mean \u00b1 standard deviation" if several else ""
    figures = [
        DrawnFigure(
            name="01_frontier",
            caption=f"Accuracy against tokens. Crosses are 95 % intervals over problems{spread}.",
            numbers=accuracy.frontier_numbers(methods, votes),
            draw=accuracy.frontier,
        ),
        DrawnFigure(
            name="11_datasets",
            caption="Accuracy on each data set, with 95 % intervals"
            + (" (of several seeds, the first)." if several else "."),
            numbers=accuracy.dataset_numbers(methods),
            draw=accuracy.datasets,
        ),
    ]
    notes = []
    for number, method in enumerate(methods):
        figures += _of_recording(method, number)
        if not method.runs[0].complete and method.runs[0].max_turns > 1:
            notes.append(
                f"{method.name}: no fixed budgets and no thresholds, because its trajectories end "
                "where they stopped; record every turn with --model.evaluation.adaptive false."
            )
        if not method.runs[0].self_checks:
            notes.append(f"{method.name}: no figures of confidence, because no turn states one.")
    found, more = _of_trainings(methods)
    return figures + found, notes + more


def _of_recording(method: Method, number: int) -> list[DrawnFigure]:
    run = method.runs[0]
    table, outcome = pool(run.tables, run.outcomes)
    seed = f", seed {seed_name(run, 1)}" if len(method.runs) > 1 else ""
    words = {
        "pool": f", {len(run.tables)} data sets pooled" if len(run.tables) > 1 else "",
        "turned": "All recorded turns" if run.complete else "Turns up to the stop",
    }
    return [
        DrawnFigure(
            name=f"{spec.name}_{number + 1}",
            caption=f"{method.name}{seed}: {spec.caption.format(**words)}.",
            numbers=spec.numbers(run, table, outcome),
            draw=spec.draw,
            method=number,
        )
        for spec in SPECS
        if spec.shown(run)
    ]


def _of_trainings(methods: Sequence[Method]) -> tuple[list[DrawnFigure], list[str]]:
    """The training curves of each method, once for several evaluations of one training."""
    figures: list[DrawnFigure] = []
    notes: list[str] = []
    without: list[str] = []
    drawn: set[Path] = set()
    for number, method in enumerate(methods):
        logs = [log for run in method.runs for source in run.sources[:1] if (log := source.metrics)]
        if drawn & set(logs):
            continue
        drawn |= set(logs)
        try:
            found = training.read_trainings(logs)
        except ConfigError as error:
            notes.append(f"{method.name}: no training curves; {error}.")
            continue
        if not found:
            without.append(method.name)
        seeds = f" Bands are least to greatest of {len(found)} seeds." if len(found) > 1 else ""
        for name, caption, numbers, draw in (
            (
                "08_rewards",
                "Reward terms over training.",
                training.reward_numbers,
                training.rewards,
            ),
            ("09_training", f"Training health.{seeds}", training.health_numbers, training.health),
        ):
            values = numbers(found)
            if values:
                caption = f"{method.name}: {caption}"
                figures.append(
                    DrawnFigure(
                        name=f"{name}_{number + 1}",
                        caption=caption,
                        numbers=values,
                        draw=draw,
                        method=number,
                    )
                )
    if without:
        notes.append(
            f"No training curves, because no metrics.csv of a fit was found: {', '.join(without)}."
        )
    return figures, notes
