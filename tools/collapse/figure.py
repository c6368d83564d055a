"""The figures of the study: what doubt pays, and how the conditions went."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure

from svr_lightning.report.drawing import BLUE, GREY, INK, ORANGE, new_figure

SHOWN = (
    ("verdict/correct", "says CORRECT"),
    ("auroc", "AUROC of the confidence"),
    ("confidence/right", "confidence when right"),
    ("confidence/wrong", "confidence when wrong"),
    ("accuracy", "accuracy of the turns"),
)
_COLOURS = (BLUE, INK, ORANGE, "#f0965a", GREY)


def paid(expected: Mapping[str, Any]) -> Figure:
    """The best verification reward of a self-check that says the same of every answer.

    Args:
        expected: ``curve``, rows with ``accuracy``, ``correct`` and ``incorrect`` (``confidence``
            and ``reward``); ``break_even_accuracy``.
    """
    figure = new_figure(3.6)
    axes = figure.add_subplot()
    curve: Sequence[Mapping[str, Any]] = expected["curve"]
    accuracy = [row["accuracy"] for row in curve]
    for name, colour in (("correct", BLUE), ("incorrect", ORANGE)):
        rewards = [row[name]["reward"] for row in curve]
        axes.plot(accuracy, rewards, color=colour, label=f"always {name.upper()}")
    even = expected["break_even_accuracy"]
    axes.axvline(even, color=GREY, linewidth=0.8, linestyle=":")
    axes.annotate(f"{even:.2f}", (even, axes.get_ylim()[0]), (3, 3), textcoords="offset points")
    axes.set_xlabel("accuracy of the answers")
    axes.set_ylabel("verification reward per turn")
    axes.legend(frameon=False)
    return figure


def courses(conditions: Sequence[Mapping[str, Any]]) -> Figure:
    """The mean over seeds and five steps, one panel for each condition that has runs.

    Args:
        conditions: ``name``, ``runs`` and ``mean_log``, whose rows hold the values of a step.
    """
    ran = [condition for condition in conditions if condition["runs"]]
    columns = min(3, len(ran))
    lines = -(-len(ran) // columns)
    figure = new_figure(2.6 * lines)
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes, condition in zip(panels.flat, ran, strict=False):
        for (key, label), colour in zip(SHOWN, _COLOURS, strict=True):
            values = _smooth([row[key] for row in condition["mean_log"]])
            axes.plot(range(1, len(values) + 1), values, color=colour, label=label, linewidth=1.1)
        seeds = len(condition["runs"])
        title = f"{fill(condition['name'], 26)}\n{seeds} seed{'s' * (seeds > 1)}"
        axes.set_title(title, fontsize=8)
        axes.set_ylim(0, 1)
    for axes in panels.flat[len(ran) :]:
        axes.set_visible(False)
    for axes in panels[-1]:
        axes.set_xlabel("optimizer step")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _smooth(values: Sequence[float | None], width: int = 5) -> list[float | None]:
    """The mean of the last ``width`` values that are there."""
    windows = (
        [v for v in values[max(0, k - width + 1) : k + 1] if v is not None]
        for k in range(len(values))
    )
    return [fmean(window) if window else None for window in windows]
