"""Figures of accuracy: against tokens, budgets, thresholds, and per data set.

Of each figure one function gives the numbers, plain JSON, and one draws them.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from svr_lightning.analysis.intervals import Z_95, mean_variance
from svr_lightning.analysis.replay import THRESHOLDS, replay
from svr_lightning.analysis.stops import ORACLE
from svr_lightning.analysis.table import pool, problem_table
from svr_lightning.report import drawing
from svr_lightning.report.numbers import (
    Datasets,
    Numbers,
    average,
    averages,
    values_of,
)
from svr_lightning.report.runs import Method, Run, Votes, data_sets

# --- accuracy against tokens ------------------------------------------------------------------


def frontier_numbers(methods: Sequence[Method], votes: Votes) -> Numbers:
    """Where every method lies that has all data sets, and the lines to compare it with.

    Lines are the fixed budgets of the first method that was recorded whole, and majority voting.
    """
    name, sets = next(iter(averages(data_sets(methods)).items()))
    complete = [method for method in methods if set(sets) <= method.runs[0].tables.keys()]
    lines = []
    fixed = next((method for method in complete if method.runs[0].complete), None)
    if fixed:
        rows = dict(enumerate(fixed.runs[0].budgets, start=1))
        lines.append(_line(f"{drawing.shown(fixed.name, 20)}, fixed budgets", "K = ", rows, sets))
    voted = {k: row for k, row in votes.items() if set(sets) <= row.keys()}
    if voted:
        lines.append(_line("majority vote", "Maj@", voted, sets))
    return {"average": name, "points": [_point(one, sets) for one in complete], "lines": lines}


def _point(method: Method, sets: Sequence[str]) -> Numbers:
    """Where a method lies; its cross is over problems, or over seeds where it has several."""
    runs = [run for run in method.runs if set(sets) <= run.tables.keys()]
    seeds = [run.datasets for run in runs]
    columns = [values_of(seeds, sets, metric) for metric in ("accuracy", "avg_total_tokens")]
    means = [fmean(values) for values in columns]
    intervals = [average(runs[0].datasets, sets)["accuracy_ci95"], token_interval(runs[0], sets)]
    if len(runs) > 1:
        half = [stdev(values) for values in columns]
        intervals = [[m - h, m + h] for m, h in zip(means, half, strict=True)]
    return {
        "name": method.name,
        "seeds": len(runs),
        "accuracy": means[0],
        "tokens": means[1],
        "accuracy_interval": intervals[0],
        "tokens_interval": intervals[1],
    }


def token_interval(run: Run, names: Sequence[str]) -> list[float]:
    """A 95 % interval of the macro average of tokens per problem (normal approximation)."""
    means, variances = [], []
    for name in names:
        table = problem_table(run.tables[name], run.tables[name].outcome)
        tokens = table.problems["total_tokens"]
        means.append(tokens.mean())
        variances.append(mean_variance(tokens, table.cluster))
    half = Z_95 * np.sqrt(np.sum(variances)) / len(names)
    return [float(np.mean(means) - half), float(np.mean(means) + half)]


def _line(name: str, prefix: str, rows: Mapping[int, Datasets], sets: Sequence[str]) -> Numbers:
    return {
        "name": name,
        "labels": [f"{prefix}{key}" for key in rows],
        "accuracy": [fmean(row[one]["accuracy"] for one in sets) for row in rows.values()],
        "tokens": [fmean(row[one]["avg_total_tokens"] for one in sets) for row in rows.values()],
    }


def draw_frontier(data: Numbers) -> Figure:
    """Points and lines of accuracy against tokens per problem, on a logarithmic axis.

    The first, the best and the last point of a line are labelled, and its middle has its name.
    """
    figure, axes = drawing.one_axes(3.9)
    names: list[drawing.Label] = []
    labels: list[drawing.Label] = []
    drawn: list[drawing.Line] = []
    for point, (colour, marker) in zip(data["points"], cycle(drawing.METHODS), strict=False):
        x, y = point["tokens"], point["accuracy"]
        cross = [(point["tokens_interval"], [y, y]), ([x, x], point["accuracy_interval"])]
        for line in cross:
            axes.plot(*line, color=colour, linewidth=1)
        axes.plot(x, y, marker, color=colour, markersize=8, markeredgecolor=drawing.PAPER, zorder=5)
        names.append(drawing.Label(x, y, drawing.shown(point["name"]), colour, 9, "bold"))
        drawn += cross
    for line, colour in zip(data["lines"], cycle((drawing.GREY, drawing.INK)), strict=False):
        x, y = line["tokens"], line["accuracy"]
        axes.plot(x, y, "o-", color=colour, markersize=4, linewidth=1.1)
        chosen = sorted({0, int(np.argmax(y)), len(x) - 1})
        labels += [drawing.Label(x[i], y[i], line["labels"][i], colour) for i in chosen]
        labels.append(drawing.Label(x[len(x) // 2], y[len(x) // 2], line["name"], colour))
        drawn.append((x, y))
    axes.set_ylabel(f"accuracy ({drawing.shown(data['average'])})")
    axes.margins(x=0.12, y=0.12)
    drawing.token_axis(axes)
    drawing.name_points(axes, [*names, *labels], drawn)
    return figure


# --- stopping rules ---------------------------------------------------------------------------

_RULES = (
    *((drawing.GREY, "o"), (drawing.ORANGE, "s"), (drawing.LIGHT_ORANGE, "D"), (drawing.RUST, "^")),
    *(
        (drawing.LIGHT_BLUE, "v"),
        (drawing.BLUE, "."),
        *((colour, "x") for colour in drawing.OTHERS),
    ),
)


def rule_numbers(run: Run, rules: Numbers | None) -> Numbers:
    """Where a run's own rule lies, under every T_max, and the frontiers of other stopping rules.

    Args:
        run: with a rule of this package; its data sets are pooled.
        rules: of :func:`~svr_lightning.analysis.stops.compare_stops`; None if the run was not
            recorded whole, so that other rules cannot be replayed.
    """
    assert run.rule is not None
    table = pool(run.tables)
    own = []
    for turns in range(1, run.max_turns + 1):
        found = problem_table(table, replay(table, run.rule, turns))
        own.append({"tokens": found.value("avg_total_tokens"), "accuracy": found.value("accuracy")})
    rows = rules["rows"] if rules else []
    lines = [{"name": row["name"], "points": row["points"]} for row in rows]
    return {"own": own, "lines": lines}


def draw_rules(data: Numbers) -> Figure:
    """Accuracy of stopping rules over tokens, at their best settings; the own rule is a star."""
    figure, axes = drawing.one_axes(4.6)
    for line, (colour, marker) in zip(data["lines"], cycle(_RULES), strict=False):
        look: dict[str, Any] = {"color": colour, "marker": marker}
        if line["name"] == ORACLE:
            look = {"color": drawing.INK, "linestyle": drawing.DASHED}
        _trace(axes, line["points"], line["name"], markersize=4, linewidth=1.1, **look)
    name = "its own rule, at most 1 to T_max turns"
    _trace(axes, data["own"], name, color=drawing.BLUE, linewidth=1.8)
    end = data["own"][-1]
    axes.plot(end["tokens"], end["accuracy"], "*", color=drawing.BLUE, markersize=14, zorder=5)
    axes.axvline(end["tokens"], color=drawing.FAINT, linewidth=1.2, linestyle=(0, (2, 2)), zorder=0)
    axes.set_ylabel("accuracy")
    drawing.token_axis(axes)
    figure.legend(loc="outside lower left", ncols=2, fontsize=drawing.SMALL)
    return figure


def _trace(axes: Axes, points: Sequence[Numbers], name: str, **style: Any) -> None:
    x, y = ([point[key] for point in points] for key in ("tokens", "accuracy"))
    axes.plot(x, y, label=name, **style)


# --- fixed budgets and thresholds -------------------------------------------------------------


def budget_numbers(run: Run) -> Numbers:
    """Accuracy of every fixed budget and of adaptive inference, on each average."""
    panels = []
    for name, sets in averages(run.tables).items():
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


def draw_budgets(data: Numbers) -> Figure:
    """Every fixed budget of one policy, and adaptive inference with it."""
    figure = drawing.new_figure(2.7 * len(data["panels"]))
    grid = figure.subplots(len(data["panels"]), 1, squeeze=False)[:, 0]
    for axes, panel in zip(grid, data["panels"], strict=True):
        budgets, accuracy, adaptive = (panel[k] for k in ("budgets", "accuracy", "adaptive"))
        axes.plot(budgets, accuracy, "o-", color=drawing.GREY, markersize=4)
        values = list(accuracy)
        if adaptive is not None:
            values += panel["adaptive_ci95"]
            axes.axhline(adaptive, color=drawing.BLUE, linewidth=0.9, linestyle=drawing.DASHED)
            axes.plot(
                [panel["turns"]] * 2, panel["adaptive_ci95"], color=drawing.BLUE, linewidth=1.2
            )
            axes.plot(panel["turns"], adaptive, "*", color=drawing.BLUE, markersize=14, zorder=5)
            title = f"adaptive {adaptive:.3f} at {panel['turns']:.2f} turns"
            axes.set_title(title, loc="right", color=drawing.BLUE, fontsize=drawing.SMALL)
        axes.set_ylim(*drawing.padded([*values, max(values) + 0.15 * np.ptp(values)], 0.1))
        best = int(np.argmax(accuracy))
        place = best / len(budgets)
        side = "left" if place < 0.25 else "right" if place >= 0.75 else "center"
        text = f"best fixed K = {budgets[best]}: {accuracy[best]:.3f}"
        style = {"ha": side, "va": "bottom", "color": drawing.GREY, "path_effects": drawing.halo()}
        drawing.label(axes, text, (budgets[best], accuracy[best]), (0, 6), **style)
        drawing.turn_axis(axes, budgets, "turns per problem")
        axes.set_title(drawing.shown(panel["name"], 16), loc="left")
        axes.grid(axis="y")
        axes.set_ylabel("accuracy")
    return figure


def threshold_numbers(run: Run) -> Numbers:
    """Accuracy, stops and turns at each threshold of the grid, on each average."""
    panels = []
    for name, sets in averages(run.tables).items():
        rows = [average(row, sets) for row in run.at_thresholds]
        columns = {key: [row[key] for row in rows] for key in ("accuracy", "esr", "pse", "turns")}
        panels.append({"name": name, "thresholds": list(THRESHOLDS), **columns})
    return {"threshold": run.gate.threshold, "panels": panels}


def draw_thresholds(data: Numbers) -> Figure:
    """Accuracy, stopping and turns over thresholds."""
    panels, threshold = data["panels"], data["threshold"]
    figure = drawing.new_figure(4.6)
    grid = figure.subplots(3, len(panels), sharex=True, squeeze=False, height_ratios=(3, 2, 2))
    for column, panel in zip(grid.T, panels, strict=True):
        top, middle, bottom = column
        x = panel["thresholds"]
        top.plot(x, panel["accuracy"], "o-", color=drawing.BLUE, markersize=4)
        top.set_title(drawing.shown(panel["name"]), loc="left")
        middle.plot(x, panel["esr"], color=drawing.GREY, linewidth=1.2)
        middle.plot(x, panel["pse"], color=drawing.ORANGE, linewidth=1.2)
        middle.set_ylim(-0.04, 1.04)
        bottom.plot(x, panel["turns"], "o-", color=drawing.INK, markersize=3)
        bottom.set_xlabel("confidence threshold")
        for axes in column:
            axes.axvline(threshold, color=drawing.FAINT, linewidth=1.2, linestyle=(0, (2, 2)))
            axes.grid(axis="y")
            axes.margins(y=0.2)
        top.set_ylim(top=min(top.get_ylim()[1], 1.004))
        place, units = (threshold, 1), ("data", "axes fraction")
        drawing.label(
            bottom,
            f"{threshold:.2f}",
            place,
            (3, -2),
            coordinates=units,
            va="top",
            color=drawing.GREY,
        )
    ends = (
        (panels[-1]["esr"], "stopped early", drawing.GREY),
        (panels[-1]["pse"], "and wrong", drawing.ORANGE),
    )
    drawing.label_right(grid[1, -1], [(line[-1], name, colour) for line, name, colour in ends])
    for axes, name in zip(grid[:, 0], ("accuracy", "share of problems", "turns"), strict=True):
        axes.set_ylabel(name)
    figure.align_ylabels(list(grid[:, 0]))
    return figure
