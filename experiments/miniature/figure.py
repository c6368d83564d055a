"""The figure of the experiment: the best accuracy of each row within a budget of tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from svr_lightning.report.drawing import BLUE, GREY, LIGHT_BLUE, ORANGE, new_figure

_CHECKED = {"svr": BLUE, "svr_plus": LIGHT_BLUE, "rlcr": ORANGE}
"""Colours of the policies that state a self-check; the others are grey."""
_MARKERS = {"warm_start": "P", "grpo": "s", "grpo_mt": "D", "murphy": "^"}
_SHOWN = (*_MARKERS, "svr", "svr_plus", "rlcr_fresh", "svr_fresh", "svr_plus_fresh")
"""More rows would make it unreadable."""


def budgets(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """Policies with a self-check have colours, fresh turns are dashed.

    Args:
        curves: ``name``, ``title`` and ``points`` with ``tokens`` and ``accuracy``.
    """
    figure = new_figure(4.6)
    axes = figure.add_subplot()
    for curve in curves:
        if curve["name"] not in _SHOWN:
            continue
        policy = curve["name"].removesuffix("_fresh")
        axes.plot(
            [point["tokens"] for point in curve["points"]],
            [point["accuracy"] for point in curve["points"]],
            color=_CHECKED.get(policy, GREY),
            linestyle="--" if policy != curve["name"] else "-",
            linewidth=2.0 if policy in _CHECKED else 1.2,
            marker=_MARKERS.get(curve["name"], "."),
            label=curve["title"],
        )
    axes.set_xscale("log")
    axes.set_xticks(ticks := (50, 100, 200, 400, 800), [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("tokens per problem")
    axes.set_ylabel("accuracy")
    axes.grid(axis="y")
    figure.legend(loc="outside upper left", ncols=3)
    return figure
