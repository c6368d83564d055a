"""The figures of an experiment: the accuracy of every row, and the best within each budget."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from svr_lightning.report.drawing import (
    BLUE,
    GREY,
    INK,
    LIGHT_BLUE,
    ORANGE,
    SMALL,
    Label,
    Line,
    name_points,
    new_figure,
    shown,
    token_axis,
)

_KINDS = {
    "reference": (BLUE, "o", ""),
    "variant": (LIGHT_BLUE, "v", "variants of SVR"),
    "ablation": (GREY, "D", "ablations of SVR"),
    "method": (ORANGE, "s", "other methods"),
    "privileged": (INK, "^", "privileged: labels in prompts"),
    "control": (INK, "P", "controls without training"),
}
"""Colour, marker and name of each kind of rows, from top to bottom."""
_CHECKED = {"svr": BLUE, "svr_plus": LIGHT_BLUE, "rlcr": ORANGE}
"""Colours of the policies that state a self-check; the others are grey."""


def rows(entries: Sequence[Mapping[str, Any]]) -> Figure:
    """Each row's accuracy with its interval, best first within its kind; its tokens stand beside.

    Args:
        entries: ``title``, ``kind`` (``reference``, ``method``, ``ablation``, ``variant``,
            ``control`` or ``privileged``), ``accuracy``, ``interval`` and ``tokens``.
    """
    order = [*_KINDS]
    entries = sorted(entries, key=lambda row: (order.index(row["kind"]), -row["accuracy"]))
    figure = new_figure(0.9 + 0.2 * len(entries))
    axes = figure.add_subplot()
    for place, row in enumerate(entries):
        colour, marker, _ = _KINDS[row["kind"]]
        axes.plot(row["interval"], [place, place], color=colour, linewidth=1.0, alpha=0.6)
        axes.plot(row["accuracy"], place, marker, color=colour, markersize=5.0)
        if row["kind"] == "reference":
            axes.axvline(row["accuracy"], color=colour, linewidth=0.8, linestyle=":")
    axes.set_ylim(len(entries) - 0.4, -0.6)
    axes.set_yticks(range(len(entries)), [shown(row["title"], 40) for row in entries])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("accuracy")
    axes.grid(axis="x")
    beside = axes.twinx()
    beside.set_ylim(axes.get_ylim())
    beside.set_yticks(range(len(entries)), [f"{row['tokens']:,.0f}" for row in entries])
    beside.tick_params(axis="y", length=0)
    beside.set_ylabel("tokens per problem")
    kinds = {row["kind"] for row in entries}
    handles = [
        axes.plot([], [], marker, color=colour, markersize=5.0, label=name)[0]
        for kind, (colour, marker, name) in _KINDS.items()
        if kind in kinds and name
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=2)
    return figure


def budgets(data: Mapping[str, Any]) -> Figure:
    """The best option of each row within a budget, against its tokens.

    Policies with a self-check have colours, and fresh turns are dashed.

    Args:
        data: ``curves``: ``name``, ``title`` and ``points`` with ``tokens`` and ``accuracy``.
    """
    figure = new_figure(5.4)
    axes = figure.add_subplot()
    drawn: list[Line] = []
    labels: list[Label] = []
    for curve in data["curves"]:
        policy = curve["name"].removesuffix("_fresh")
        fresh, checked = policy != curve["name"], policy in _CHECKED
        tokens = [point["tokens"] for point in curve["points"]]
        accuracy = [point["accuracy"] for point in curve["points"]]
        if not tokens:
            continue
        colour = _CHECKED.get(policy, GREY)
        style, width = ".--" if fresh else ".-", 2.0 if checked else 1.2
        axes.plot(tokens, accuracy, style, color=colour, linewidth=width)
        drawn.append((tokens, accuracy))
        weight = "bold" if checked else "normal"
        end = (tokens[-1], accuracy[-1])
        labels.append(Label(*end, shown(curve["title"], 40), colour, SMALL, weight))
    token_axis(axes)
    axes.set_ylabel("accuracy")
    axes.margins(x=0.12, y=0.08)
    axes.grid(axis="y")
    name_points(axes, labels, drawn)
    return figure
