"""The figures of a report. Of each, one function gives the numbers, plain JSON, and one draws them.

A data set that is in no average of the paper's has figures of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from svr_lightning.analysis.intervals import effective_size, wilson_interval
from svr_lightning.analysis.metrics import Summary, columns_of, groups
from svr_lightning.analysis.table import Bools, Ints, TurnTable, cluster_codes, pool
from svr_lightning.core.metrics import VERDICT_CODES
from svr_lightning.core.stopping import Confident
from svr_lightning.report.drawing import (
    BLUE,
    FAINT,
    GREY,
    METHODS,
    OLIVE,
    ORANGE,
    Draw,
    legend,
    new_figure,
    share_axis,
    shown,
    token_axis,
)
from svr_lightning.report.runs import Method, Numbers, data_sets


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure: ``draw(numbers)`` draws it."""

    name: str
    """Name of its files, without extension."""
    caption: str
    numbers: Numbers
    """Plain JSON."""
    draw: Draw


def all_figures(methods: Sequence[Method]) -> tuple[list[Plot], list[str]]:
    """Every figure that the runs allow, and why others are missing."""
    several = any(len(method.runs) > 1 for method in methods)
    spread = "; with several seeds, mean \u00b1 standard deviation" if several else ""
    caption = f"Accuracy over tokens. Bars are 95 % intervals over problems{spread}."
    numbers = frontier_numbers(methods)
    figures = [Plot(name="1_tokens", caption=caption, numbers=numbers, draw=draw_frontier)]
    notes = []
    if not set.intersection(*(set(data_sets([method])) for method in methods)):
        notes.append("No data set is common to all methods, so they cannot be compared.")
    for number, method in enumerate(methods, start=1):
        checked = [run for run in method.runs if run.self_checks]
        for run in checked[:1]:
            seed = f", seed {run.seed}" if len(method.runs) > 1 else ""
            parts = groups(run.tables)
            for place, (part, names) in enumerate(parts.items(), start=1):
                suffix = f"_{number}_{place}" if len(parts) > 1 else f"_{number}"
                reliability = Plot(
                    name=f"2_reliability{suffix}",
                    caption=f"{method.name}{seed}, {part}: share of right answers at each stated "
                    "confidence, and calibration error (ECE).",
                    numbers=reliability_numbers(pool({name: run.tables[name] for name in names})),
                    draw=draw_reliability,
                )
                figures.append(reliability)
        if method.at_thresholds:
            figures.append(
                Plot(
                    name=f"3_thresholds_{number}",
                    caption=f"{method.name}: accuracy and premature stop error (PSE) at other "
                    "confidence thresholds \u03b3. Dashed: the threshold of its rule.",
                    numbers=threshold_numbers(method),
                    draw=draw_thresholds,
                )
            )
        complete = all(run.budget for run in method.runs)
        if not complete and any(table.max_turns > 1 for table in method.tables):
            notes.append(
                f"{method.name}: no fixed budgets and no thresholds, because its trajectories end "
                "where they stopped; record every turn with --record."
            )
        if not checked:
            notes.append(f"{method.name}: no figures of confidence, because no turn states one.")
    for method in methods:
        calibration = [one.calibration_note for run in method.runs for one in run.sources]
        notes += [f"{method.name}: {note}." for note in calibration if note is not None]
    return figures, notes


# --- accuracy over tokens ---------------------------------------------------------------------


def frontier_numbers(methods: Sequence[Method]) -> Numbers:
    """Where methods lie on each average or data set, and the lines to compare them with.

    Lines are the fixed budgets of the first method that was recorded whole, and majority voting. A
    point's bar is over problems, or over seeds where a method has several.
    """
    every = data_sets(methods)
    shared = any(all(run.tables.keys() == set(every) for run in one.runs) for one in methods)
    panels = []
    for part in groups(every) if shared else columns_of(every):
        there = [
            (number, method)
            for number, method in enumerate(methods)
            if method.summary(part, "accuracy").seeds
        ]
        if not there:
            continue
        whole = [method for _, method in there if method.budgets]
        lines = [_line(method, "fixed budgets", method.budgets, part) for method in whole[:1]]
        for _, method in there:
            if method.votes:
                lines.append(_line(method, "votes", [*method.votes.values()], part))
        points = []
        for number, method in there:
            accuracy = method.summary(part, "accuracy")
            interval = accuracy.interval
            if accuracy.mean is not None and accuracy.deviation is not None:
                interval = [accuracy.mean - accuracy.deviation, accuracy.mean + accuracy.deviation]
            points.append(
                {
                    "method": number,
                    "name": method.name,
                    "tokens": method.summary(part, "avg_total_tokens").mean,
                    "accuracy": accuracy.mean,
                    "accuracy_interval": interval,
                }
            )
        panels.append({"name": part, "points": points, "lines": lines})
    return {"panels": panels}


def _line(method: Method, what: str, rows: Sequence[Summary], part: str) -> Numbers:
    """Accuracy over tokens of operating points of one policy; tokens count every prompt."""
    return {
        "name": f"{shown(method.name, 20)}, {what}",
        "accuracy": [row(part, "accuracy").mean for row in rows],
        "tokens": [row(part, "avg_total_tokens").mean for row in rows],
    }


def draw_frontier(data: Numbers) -> Figure:
    """Points and lines of accuracy over tokens, a panel for each average or data set."""
    panels = data["panels"]
    figure = new_figure(2.9 * len(panels) + 0.6)
    for axes, panel in zip(
        figure.subplots(len(panels), 1, squeeze=False).flat, panels, strict=True
    ):
        for line, colour in zip(panel["lines"], cycle((GREY, OLIVE)), strict=False):
            axes.plot(
                line["tokens"],
                line["accuracy"],
                "o-",
                color=colour,
                linewidth=1.1,
                label=line["name"],
            )
        for point in panel["points"]:
            colour, marker = METHODS[point["method"] % len(METHODS)]
            x = point["tokens"]
            axes.plot([x, x], point["accuracy_interval"], color=colour, linewidth=1)
            axes.plot(
                x,
                point["accuracy"],
                marker=marker,
                color=colour,
                markersize=8,
                zorder=5,
                label=shown(point["name"]),
                linestyle="",
            )
        token_axis(axes)
        share_axis(axes)
        axes.set_title(shown(panel["name"]))
        axes.set_ylabel("accuracy")
    legend(figure)
    return figure


# --- how much depends on the threshold? -------------------------------------------------------


def threshold_numbers(method: Method) -> Numbers:
    """Accuracy and PSE of a method at every threshold, on each average or data set."""
    rules = [table.rule for table in method.tables]
    return {
        "own": sorted({rule.threshold for rule in rules if isinstance(rule, Confident)}),
        "thresholds": [*method.at_thresholds],
        "lines": [
            {"name": part}
            | {
                metric: [summary(part, metric).mean for summary in method.at_thresholds.values()]
                for metric in ("accuracy", "pse")
            }
            for part in groups(data_sets([method]))
        ],
    }


def draw_thresholds(data: Numbers) -> Figure:
    """Two panels over the threshold, with a line for each average or data set."""
    figure = new_figure(4.4)
    panels = figure.subplots(2, 1, sharex=True)
    for axes, metric, title in zip(panels, ("accuracy", "pse"), ("accuracy", "PSE"), strict=True):
        for line, (colour, marker) in zip(data["lines"], cycle(METHODS), strict=False):
            values = [np.nan if value is None else value for value in line[metric]]
            name = shown(line["name"])
            axes.plot(data["thresholds"], values, color=colour, marker=marker, label=name)
        for threshold in data["own"]:
            axes.axvline(threshold, color=FAINT, linestyle="--", zorder=0)
        share_axis(axes)
        axes.set_ylabel(title)
    panels[1].set_xlabel("confidence threshold \u03b3")
    legend(figure)
    return figure


# --- is the confidence honest? ----------------------------------------------------------------

_VERDICTS = {"CORRECT": BLUE, "INCORRECT": ORANGE, "UNSURE": GREY}
_CODES = VERDICT_CODES.items()
BINS = 10


def bin_of(confidence: NDArray[Any]) -> Ints:
    """The bin of each confidence: [k/10, (k+1)/10), and the last one holds 1 too."""
    return np.searchsorted(np.arange(1, BINS) / BINS, confidence, side="right")


def reliability_numbers(table: TurnTable) -> Numbers:
    """Reliability of ``observed`` turns, and of those alone that ``stopped`` a trajectory."""
    stopped = table.stopped_early[table.checks["row"]] & table.checks["returned"]
    return {
        "observed": _reliability(table, np.ones(len(stopped), dtype=bool)),
        "stopped": _reliability(table, stopped),
    }


def _reliability(table: TurnTable, rows: Bools) -> Numbers:
    """The bins of some turns, with Wilson intervals and verdicts, and their calibration error.

    Turns of one problem, or of one cluster of problems, are not independent.
    """
    chosen = {name: column[rows] for name, column in table.checks.items()}
    clusters = table.cluster[chosen["row"]]
    confidence, correct, verdict = (chosen[k] for k in ("confidence", "correct", "verdict"))
    bins, gap = [], 0.0
    for k in range(BINS):
        here = bin_of(confidence) == k
        row: Numbers = {"low": k / BINS, "high": (k + 1) / BINS, "n": int(here.sum())}
        row |= dict.fromkeys(("confidence", "accuracy", "accuracy_ci95"))
        row["verdicts"] = {v.value: int((verdict[here] == c).sum()) for v, c in _CODES}
        if row["n"]:
            row["confidence"] = float(confidence[here].mean())
            row["accuracy"] = float(correct[here].mean())
            size = effective_size(correct[here], cluster_codes(clusters[here].tolist()))
            row["accuracy_ci95"] = wilson_interval(row["accuracy"], size)
            gap += abs(float(correct[here].sum() - confidence[here].sum()))
        bins.append(row)
    n = len(confidence)
    return {"n": n, "ece": gap / n if n else None, "bins": bins}


def draw_reliability(data: Numbers) -> Figure:
    """Accuracy against stated confidence, over a histogram coloured by verdict."""
    figure = new_figure(4.4)
    grid = figure.subplots(2, 2, sharex=True, height_ratios=(2.4, 1))
    columns = (("observed", "all observed turns"), ("stopped", "turns that stopped"))
    for (top, bottom), (key, title) in zip(grid.T, columns, strict=True):
        part = data[key]
        ece = "" if part["ece"] is None else f", ECE {part['ece']:.3f}"
        top.set_title(f"{title}\nn = {part['n']:,}{ece}")
        top.plot([0, 1], [0, 1], color=FAINT, zorder=0)
        top.set_ylim(-0.03, 1.03)
        rows = [row for row in part["bins"] if row["n"]]
        x = [row["confidence"] for row in rows]
        for row in rows:
            top.plot([row["confidence"]] * 2, row["accuracy_ci95"], color=GREY, linewidth=1)
        top.plot(x, [row["accuracy"] for row in rows], "o-", color=BLUE)
        middles = [(row["low"] + row["high"]) / 2 for row in part["bins"]]
        base = np.zeros(BINS)
        for verdict, colour in _VERDICTS.items():
            counts = [row["verdicts"][verdict] for row in part["bins"]]
            bottom.bar(middles, counts, 0.09, base, color=colour, linewidth=0, label=verdict)
            base += counts
        bottom.set_ylim(0, max(1, 1.05 * base.max()))  # from 0 also where nothing stopped
        bottom.set_xlabel("stated confidence")
        bottom.set_xticks(np.linspace(0, 1, 6))
        bottom.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    grid[0, 0].set_ylabel("share of right answers")
    grid[1, 0].set_ylabel("turns")
    legend(figure, 3)
    return figure
