"""The figure of an experiment: every row's accuracy against its tokens per problem."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from svr_lightning.report.drawing import (
    BLUE,
    GREY,
    INK,
    LIGHT_BLUE,
    ORANGE,
    PAPER,
    SMALL,
    Label,
    Line,
    name_points,
    new_figure,
    shown,
    token_axis,
)
from tools.miniature.budgets import OURS

_LOOK = {
    "reference": (BLUE, "o", 9.0, ""),
    "method": (ORANGE, "s", 5.0, "other methods"),
    "ablation": (GREY, "D", 4.5, "ablations of {}"),
    "variant": (LIGHT_BLUE, "v", 6.0, "variants of {}"),
    "control": (INK, "P", 6.0, "controls without training"),
    "privileged": (INK, "^", 6.0, "privileged: labels in prompts"),
}


def rows(data: Mapping[str, Any]) -> Figure:
    """Accuracy against tokens per problem, on a logarithmic axis.

    Args:
        data: ``rows``: ``name``, ``kind`` (``reference``, ``method``, ``ablation``, ``variant``,
            ``control`` or ``privileged``), ``accuracy``, ``tokens``, ``accuracy_interval`` and
            ``tokens_interval``; ``lines``: ``name``, ``kind``, ``accuracy`` and ``tokens`` of rows
            under every fixed budget.
    """
    figure = new_figure(6.2)
    axes = figure.add_subplot()
    drawn: list[Line] = []
    labels: list[Label] = []
    for line in data["lines"]:
        colour = _LOOK[line["kind"]][0]
        axes.plot(line["tokens"], line["accuracy"], ".-", color=colour, linewidth=0.9, alpha=0.5)
        drawn.append((line["tokens"], line["accuracy"]))
        end = (line["tokens"][-1], line["accuracy"][-1])
        labels.append(Label(*end, shown(line["name"], 40), colour))
    for row in sorted(data["rows"], key=lambda row: row["kind"] != "reference"):
        colour, marker, size, _ = _LOOK[row["kind"]]
        x, y = row["tokens"], row["accuracy"]
        axes.plot(row["tokens_interval"], [y, y], color=colour, linewidth=0.8, alpha=0.6)
        axes.plot([x, x], row["accuracy_interval"], color=colour, linewidth=0.8, alpha=0.6)
        axes.plot(x, y, marker, color=colour, markersize=size, markeredgecolor=PAPER, zorder=5)
        drawn.append(([x], [y]))
        weight = "bold" if row["kind"] == "reference" else "normal"
        name_colour = BLUE if row["kind"] == "variant" else colour
        labels.insert(
            0 if weight == "bold" else len(labels),
            Label(x, y, shown(row["name"]), name_colour, 9 if weight == "bold" else SMALL, weight),
        )
    token_axis(axes)
    axes.set_ylabel("accuracy")
    axes.margins(x=0.12, y=0.08)
    axes.grid(axis="y")
    kinds = [row["kind"] for row in data["rows"]]
    title = next((row["name"] for row in data["rows"] if row["kind"] == "reference"), "SVR")
    handles = []
    for kind, (colour, marker, size, name) in _LOOK.items():
        if kind in kinds and kind != "reference":
            handle = axes.plot([], [], marker, color=colour, markersize=size)[0]
            handle.set_label(name.format(shown(title)))
            handles.append(handle)
    figure.legend(handles=handles, loc="outside upper left", ncols=2)
    name_points(axes, labels, drawn)
    return figure


def budgets(data: Mapping[str, Any]) -> Figure:
    """The best option of each row within a budget, against its tokens; fresh turns are dashed.

    Args:
        data: ``curves``: ``name``, ``title`` and ``points`` with ``tokens`` and ``accuracy``.
    """
    figure = new_figure(5.4)
    axes = figure.add_subplot()
    drawn: list[Line] = []
    labels: list[Label] = []
    for curve in data["curves"]:
        policy = curve["name"].removesuffix("_fresh")
        fresh, ours = policy != curve["name"], policy in OURS
        tokens = [point["tokens"] for point in curve["points"]]
        accuracy = [point["accuracy"] for point in curve["points"]]
        if not tokens:
            continue
        colour = {"svr": BLUE, "svr_plus": LIGHT_BLUE}.get(policy, ORANGE)
        style, width = ".--" if fresh else ".-", 2.0 if ours else 1.0
        axes.plot(tokens, accuracy, style, color=colour, linewidth=width)
        drawn.append((tokens, accuracy))
        weight = "bold" if ours else "normal"
        end = (tokens[-1], accuracy[-1])
        labels.append(Label(*end, shown(curve["title"], 40), colour, SMALL, weight))
    token_axis(axes)
    axes.set_ylabel("accuracy")
    axes.margins(x=0.12, y=0.08)
    axes.grid(axis="y")
    name_points(axes, labels, drawn)
    return figure
