"""The figure of what a self-check is worth."""

from typing import Any

from matplotlib.figure import Figure

from svr_lightning.analysis.check_value import FRESH, REFINING
from svr_lightning.report.drawing import BLUE, GREY, new_figure


def draw_check_value(found: Any) -> Figure:
    """Accuracy with its interval of every way that is within the budget, from the first row down.

    Args:
        found: of :func:`~svr_lightning.analysis.check_value.check_value`.
    """
    figure = new_figure(2.2)
    axes = figure.subplots()
    rows = [row for row in found["rows"] if row["accuracy"] is not None]
    for place, row in enumerate(reversed(rows)):
        colour = BLUE if row["name"] in (FRESH, REFINING) else GREY
        axes.plot(row["ci95"], [place, place], color=colour, linewidth=3, alpha=0.4)
        axes.plot(row["accuracy"], place, "o", color=colour, markersize=7)
        label = f"{row['accuracy']:.3f}"
        axes.annotate(
            label, (row["accuracy"], place), (0, 6), textcoords="offset points", ha="center"
        )
    axes.set_yticks(range(len(rows)), [row["name"] for row in reversed(rows)])
    axes.set_ylim(-0.5, len(rows) - 0.2)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"accuracy within {found['budget']:.0f} tokens per problem")
    return figure
