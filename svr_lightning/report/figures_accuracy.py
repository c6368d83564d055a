"""Figures of accuracy: against tokens, budgets, thresholds, and per data set."""

from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from svr_lightning.evaluation.sweep import THRESHOLDS
from svr_lightning.report.figures_style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    METHODS,
    ORANGE,
    PAPER,
    SMALL,
    Label,
    halo,
    label_right,
    name_points,
    new_figure,
    shown,
    styled,
)
from svr_lightning.report.names import averages, display
from svr_lightning.report.numbers import (
    Numbers,
    average,
    data_sets,
    token_interval,
    vote_counts,
    vote_point,
)
from svr_lightning.report.runs import Method, Run

# --- accuracy against tokens ------------------------------------------------------------------


def frontier_numbers(methods: Sequence[Method], votes: Mapping[str, Any] | None) -> Numbers:
    """Where every method lies that has all data sets, and the lines to compare it with."""
    label, sets = next(iter(averages(data_sets(methods)).items()))
    complete = [method for method in methods if set(sets) <= method.runs[0].tables.keys()]
    fixed = next((method for method in complete if method.runs[0].complete), None)
    line = None
    if fixed:
        rows = [average(row, sets) for row in fixed.runs[0].budgets]
        line = {
            "name": fixed.name,
            "budgets": list(range(1, len(rows) + 1)),
            "accuracy": [row["accuracy"] for row in rows],
            "tokens": [row["avg_total_tokens"] for row in rows],
        }
    return {
        "average": label,
        "methods": [_point(method, sets) for method in complete],
        "fixed": line,
        "votes": _vote_line(votes, sets) if votes else None,
    }


def _point(method: Method, sets: Sequence[str]) -> Numbers:
    """Where a method lies; its cross is over problems, or over seeds where it has several."""
    whole = [run for run in method.runs if set(sets) <= run.tables.keys()]
    rows = [average(run.datasets, sets) for run in whole]
    accuracies = [row["accuracy"] for row in rows]
    tokens = [row["avg_total_tokens"] for row in rows]
    intervals = [rows[0]["accuracy_ci95"], token_interval(whole[0], sets)]
    if len(rows) > 1:
        intervals = [
            [fmean(values) - stdev(values), fmean(values) + stdev(values)]
            for values in (accuracies, tokens)
        ]
    return {
        "name": method.name,
        "seeds": len(rows),
        "accuracy": fmean(accuracies),
        "tokens": fmean(tokens),
        "accuracy_interval": intervals[0],
        "tokens_interval": intervals[1],
    }


def _vote_line(votes: Mapping[str, Any], sets: Sequence[str]) -> Numbers | None:
    points = {k: point for k in vote_counts(votes) if (point := vote_point(votes, sets, k))}
    if not points:
        return None
    accuracy, tokens = (list(column) for column in zip(*points.values(), strict=True))
    return {"k": list(points), "accuracy": accuracy, "tokens": tokens}


@styled
def frontier(data: Numbers) -> Figure:
    """Accuracy against tokens per problem, on a logarithmic axis."""
    figure = new_figure(3.9)
    axes = figure.add_subplot()
    names, labels, points = [], [], []
    for method, (colour, marker) in _styled_methods(data["methods"]):
        x, y = method["tokens"], method["accuracy"]
        axes.plot(method["tokens_interval"], [y, y], color=colour, linewidth=1)
        axes.plot([x, x], method["accuracy_interval"], color=colour, linewidth=1)
        axes.plot(x, y, marker, color=colour, markersize=8, markeredgecolor=PAPER, zorder=5)
        names.append(Label(x, y, shown(method["name"]), colour, 9, "bold"))
        points += [(x, y), *((x, edge) for edge in method["accuracy_interval"])]
    if data["fixed"]:
        line = data["fixed"]
        labels += _line(axes, line, "budgets", "K = ", GREY)
        labels.append(_line_name(line, f"{shown(line['name'], 20)}, fixed budgets", GREY))
    if data["votes"]:
        labels += _line(axes, data["votes"], "k", "Maj@", INK)
        labels.append(_line_name(data["votes"], "majority vote", INK))
    for line in filter(None, (data["fixed"], data["votes"])):
        points += _along(line["tokens"], line["accuracy"])
    axes.set_xscale("log")
    token_axis(axes)
    axes.set_ylabel(f"accuracy ({shown(data['average'])})")
    axes.margins(x=0.12, y=0.12)
    axes.grid(axis="y")
    name_points(axes, [*names, *labels], points)
    return figure


def _line(axes: Axes, line: Numbers, key: str, prefix: str, colour: str) -> list[Label]:
    """Draw a line; the labels of its first, best and last points."""
    x, y, keys = line["tokens"], line["accuracy"], line[key]
    axes.plot(x, y, "o-", color=colour, markersize=4, linewidth=1.1)
    chosen = sorted({0, int(np.argmax(y)), len(keys) - 1})
    return [Label(x[index], y[index], f"{prefix}{keys[index]}", colour) for index in chosen]


def _along(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    """The points of a line, and some between them, on a logarithmic axis."""
    places = np.linspace(0, len(x) - 1, 6 * len(x) - 5)
    steps = np.arange(len(x))
    across = np.exp(np.interp(places, steps, np.log(x)))
    return list(zip(across.tolist(), np.interp(places, steps, y).tolist(), strict=True))


def _line_name(line: Numbers, name: str, colour: str) -> Label:
    """The name of a line, for its middle."""
    middle = len(line["tokens"]) // 2
    return Label(line["tokens"][middle], line["accuracy"][middle], name, colour)


def token_axis(axes: Axes) -> None:
    """A logarithmic axis of tokens per problem."""
    low, high = axes.get_xlim()
    every = [1.0, 2.0, 5.0] if high / low > 4 else np.arange(1, 10, 0.5).tolist()
    axes.xaxis.set_major_locator(LogLocator(subs=every))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}"))
    axes.set_xlabel("tokens per problem, all turns (thousands, log scale)")


# --- fixed budgets ----------------------------------------------------------------------------


def budget_numbers(run: Run) -> Numbers:
    """Accuracy of every fixed budget and of adaptive inference, on each average."""
    panels = []
    for name, sets in averages(list(run.tables)).items():
        adaptive = average(run.datasets, sets)
        panels.append(
            {
                "name": name,
                "budgets": list(range(1, len(run.budgets) + 1)),
                "accuracy": [average(row, sets)["accuracy"] for row in run.budgets],
                "turns": adaptive["turns"],
                "adaptive": adaptive["accuracy"] if run.self_checks else None,
                "adaptive_ci95": adaptive["accuracy_ci95"],
            }
        )
    return {"panels": panels}


@styled
def budgets(data: Numbers) -> Figure:
    """Every fixed budget of one policy, and adaptive inference with it."""
    panels = data["panels"]
    figure = new_figure(2.7 * len(panels))
    grid = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, panel in zip(grid, panels, strict=True):
        axes.plot(panel["budgets"], panel["accuracy"], "o-", color=GREY, markersize=4)
        shown_values = list(panel["accuracy"])
        if panel["adaptive"] is not None:
            shown_values += panel["adaptive_ci95"]
            _adaptive(axes, panel)
        low, high = min(shown_values), max(shown_values)
        pad = max((high - low) * 0.1, 0.01)
        axes.set_ylim(low - pad, high + 2.5 * pad)
        best = int(np.argmax(panel["accuracy"]))
        axes.annotate(
            f"best fixed K = {panel['budgets'][best]}: {panel['accuracy'][best]:.3f}",
            (panel["budgets"][best], panel["accuracy"][best]),
            xytext=(0, 6),
            textcoords="offset points",
            ha=_side(best, len(panel["budgets"])),
            va="bottom",
            color=GREY,
            fontsize=SMALL,
            path_effects=halo(),
        )
        axes.set_xticks(panel["budgets"])
        axes.set_xlabel("turns per problem")
        axes.set_title(shown(panel["name"], 16), loc="left")
        axes.grid(axis="y")
        axes.set_ylabel("accuracy")
    return figure


def _adaptive(axes: Axes, panel: Numbers) -> None:
    """Where adaptive inference lies among fixed budgets."""
    axes.axhline(panel["adaptive"], color=BLUE, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.plot([panel["turns"]] * 2, panel["adaptive_ci95"], color=BLUE, linewidth=1.2)
    axes.plot(panel["turns"], panel["adaptive"], "*", color=BLUE, markersize=14, zorder=5)
    title = f"adaptive {panel['adaptive']:.3f} at {panel['turns']:.2f} turns"
    axes.set_title(title, loc="right", color=BLUE, fontsize=SMALL)


def _side(index: int, count: int) -> str:
    """How to align a label so that it stays inside."""
    return "left" if index < count / 4 else "right" if index >= count * 3 / 4 else "center"


# --- thresholds -------------------------------------------------------------------------------


def threshold_numbers(run: Run) -> Numbers:
    """Accuracy, stops and turns at each threshold of the grid, on each average."""
    panels = []
    for name, sets in averages(list(run.tables)).items():
        rows = [average(row, sets) for row in run.at_thresholds]
        columns = {key: [row[key] for row in rows] for key in ("accuracy", "esr", "pse", "turns")}
        panels.append({"name": name, "thresholds": list(THRESHOLDS), **columns})
    return {"threshold": run.rule.threshold, "panels": panels}


@styled
def thresholds(data: Numbers) -> Figure:
    """Accuracy, stopping and turns over thresholds."""
    panels = data["panels"]
    figure = new_figure(4.6)
    grid = figure.subplots(3, len(panels), sharex=True, squeeze=False, height_ratios=(3, 2, 2))
    for column, panel in zip(grid.T, panels, strict=True):
        top, middle, bottom = column
        x = panel["thresholds"]
        top.plot(x, panel["accuracy"], "o-", color=BLUE, markersize=4)
        top.set_title(shown(panel["name"]), loc="left")
        middle.plot(x, panel["esr"], color=GREY, linewidth=1.2)
        middle.plot(x, panel["pse"], color=ORANGE, linewidth=1.2)
        middle.set_ylim(-0.04, 1.04)
        bottom.plot(x, panel["turns"], "o-", color=INK, markersize=3)
        bottom.set_xlabel("confidence threshold")
        for axes in column:
            axes.axvline(data["threshold"], color=FAINT, linewidth=1.2, linestyle=(0, (2, 2)))
            axes.grid(axis="y")
            axes.margins(y=0.2)
        top.set_ylim(top=min(top.get_ylim()[1], 1.004))
        bottom.annotate(
            f"{data['threshold']:.2f}",
            (data["threshold"], 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -2),
            textcoords="offset points",
            va="top",
            color=GREY,
            fontsize=SMALL,
        )
    ends = ((panels[-1]["esr"], "stopped early", GREY), (panels[-1]["pse"], "and wrong", ORANGE))
    label_right(grid[1, -1], [(line[-1], name, colour) for line, name, colour in ends])
    for axes, name in zip(grid[:, 0], ("accuracy", "share of problems", "turns"), strict=True):
        axes.set_ylabel(name)
    figure.align_ylabels(list(grid[:, 0]))
    return figure


# --- data sets --------------------------------------------------------------------------------


def dataset_numbers(methods: Sequence[Method]) -> Numbers:
    """Accuracy of each method's first seed on every data set; None where it was not run."""
    names = data_sets(methods)
    sizes = {n: len(table.ids) for m in methods for n, table in m.runs[0].tables.items()}
    found = [(method.name, method.runs[0].datasets) for method in methods]
    return {
        "datasets": [{"name": display(name), "n": sizes[name]} for name in names],
        "methods": [
            {
                "name": method,
                **{
                    key: [values[name][key] if name in values else None for name in names]
                    for key in ("accuracy", "accuracy_ci95")
                },
            }
            for method, values in found
        ],
    }


@styled
def datasets(data: Numbers) -> Figure:
    """Accuracy per data set and method, with 95 % intervals."""
    names, methods = data["datasets"], data["methods"]
    step = 0.72 / max(len(methods), 1)
    height = 0.9 + len(names) * max(0.34, 0.17 * len(methods)) + 0.19 * len(methods)
    figure = new_figure(height)
    axes = figure.add_subplot()
    handles = []
    for number, (method, (colour, marker)) in enumerate(_styled_methods(methods)):
        offset = (number - (len(methods) - 1) / 2) * step
        places = np.arange(len(names)) + offset
        for place, value, interval in zip(
            places, method["accuracy"], method["accuracy_ci95"], strict=True
        ):
            if value is not None:
                axes.plot(interval, [place, place], color=colour, linewidth=1.2)
                axes.plot(value, place, marker, color=colour, markersize=5.5)
        handle = axes.plot([], [], marker, color=colour, label=shown(method["name"], 40))[0]
        handles.append(handle)
    for place in np.arange(len(names) - 1) + 0.5:
        axes.axhline(place, color=FAINT, linewidth=0.6)
    axes.set_yticks(range(len(names)), [f"{shown(d['name'])}\nn = {d['n']:,}" for d in names])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.grid(axis="x")
    axes.set_xlabel("accuracy of the returned answer")
    if len(methods) > 1:
        figure.legend(
            handles=handles, loc="outside upper left", frameon=False, ncols=min(len(methods), 3)
        )
    return figure


def _styled_methods(methods: Sequence[Any]) -> list[tuple[Any, tuple[str, str]]]:
    return list(zip(methods, islice(cycle(METHODS), len(methods)), strict=True))
