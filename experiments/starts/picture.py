"""The figure of README: every way before and after training."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from experiments.starts.outcomes import AFTER, BEFORE
from svr_lightning.analysis.check_value import WITH_CHECK
from svr_lightning.report.drawing import BLUE, GREY, legend, new_figure


def draw(found: Mapping[str, Any]) -> Figure:
    """Accuracy with its interval of every way of a table, from the first down.

    Before training is a hollow point.
    """
    ways = list(found["ways"].items())
    figure = new_figure(0.52 * len(ways) + 0.9)
    axes = figure.subplots()
    around: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    for place, (name, arms) in enumerate(reversed(ways)):
        point = arms[AFTER]["mean"]
        low, high = arms[AFTER]["over_starts"]
        colour = BLUE if name in WITH_CHECK else GREY
        left = ("axes fraction", "data")
        axes.annotate(name, (0, place), xytext=(0, 13), xycoords=left, **around)
        if BEFORE in arms:
            was = arms[BEFORE]["mean"]
            axes.plot([was, point], [place, place], color=colour, linewidth=0.8)
            axes.plot(was, place, "o", color=colour, markerfacecolor="none", markersize=6)
            if was < low:
                look = {**around, "color": colour, "ha": "right"}
                axes.annotate(f"{was:.0%}", (was, place), xytext=(-6, 0), **look)
        axes.plot([low, high], [place, place], color=colour, linewidth=3, alpha=0.4)
        axes.plot(point, place, "o", color=colour, markersize=7)
        axes.annotate(f"{point:.0%}", (high, place), xytext=(6, 0), color=colour, **around)
    axes.plot([], [], "o", color=GREY, label="after training, bar: 95 % over starts")
    axes.plot([], [], "o", color=GREY, markerfacecolor="none", label="before training")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylim(-0.4, len(ways) - 0.2)
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(PercentFormatter(1, 0))
    axes.set_xlabel(f"solved within {found['budget']:.0f} tokens per problem")
    legend(figure)
    return figure
