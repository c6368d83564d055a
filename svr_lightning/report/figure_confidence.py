"""Figures of stated confidence: is it honest, does it rank, does it follow correctness?"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from svr_lightning.report.figure_style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    ORANGE,
    SMALL,
    VERDICTS,
    label_right,
    new_figure,
    note,
    share_axis,
    styled,
    turn_axis,
)

Numbers = Mapping[str, Any]


@styled
def reliability(data: Numbers) -> Figure:
    """Figure 4: accuracy against stated confidence, over a histogram coloured by verdict.

    Args:
        data: ``observed`` and ``stopped``, each what
            :func:`svr_lightning.report.figure_data.reliability` returns.
    """
    figure = new_figure(4.3)
    grid = figure.subplots(2, 2, sharex=True, height_ratios=(2.4, 1))
    columns = (("observed", "all observed turns"), ("stopped", "turns that stopped"))
    for (top, bottom), (key, title) in zip(grid.T, columns, strict=True):
        part = data[key]
        ece = "" if part["ece"] is None else f", ECE {part['ece']:.3f}"
        top.set_title(f"{title}: n = {part['n']:,}{ece}", loc="left")
        if part["n"]:
            _bins(top, part["bins"])
            _verdicts(bottom, part["bins"])
        else:
            note(top, "no turn stopped early")
            bottom.set_yticks([])
        top.plot([0, 1], [0, 1], color=FAINT, linewidth=1.2, zorder=0)
        top.set_ylim(-0.03, 1.03)
        top.set_xlim(-0.01, 1.01)
        share_axis(top)
        bottom.set_xlabel("stated confidence")
        bottom.set_xticks(np.linspace(0, 1, 6))
    grid[0, 0].set_ylabel("share of right answers")
    grid[1, 0].set_ylabel("turns")
    x = 0.02
    for name, colour in VERDICTS.items():
        text = grid[1, 0].annotate(
            name, (x, 0.97), xycoords="axes fraction", va="top", color=colour, fontsize=SMALL
        )
        text.set_fontweight("bold")
        x += 0.055 * len(name) * 0.55 + 0.07
    figure.align_ylabels(list(grid[:, 0]))
    return figure


def _bins(axes: Axes, bins: list[Numbers]) -> None:
    rows = [row for row in bins if row["n"]]
    x = [row["confidence"] for row in rows]
    y = [row["accuracy"] for row in rows]
    for row in rows:
        axes.plot([row["confidence"]] * 2, row["accuracy_ci95"], color=INK, linewidth=1)
    axes.plot(x, y, "o-", color=INK, markersize=4.5, linewidth=1.1)


def _verdicts(axes: Axes, bins: list[Numbers]) -> None:
    centres = [(row["low"] + row["high"]) / 2 for row in bins]
    width = (bins[0]["high"] - bins[0]["low"]) * 0.9
    base = np.zeros(len(bins))
    for verdict, colour in VERDICTS.items():
        counts = np.array([row["verdicts"][verdict] for row in bins])
        axes.bar(centres, counts, width, bottom=base, color=colour, linewidth=0)
        base += counts
    for centre, count in zip(centres, base, strict=True):
        if count:
            axes.text(
                centre, count, f" {_short(int(count))}", ha="center", va="bottom", fontsize=SMALL
            )
    axes.set_ylim(0, base.max() * 1.55)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))


def _short(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1000:.0f}k"


@styled
def risk_coverage(data: Numbers) -> Figure:
    """Figure 5: share of wrong answers among the more confident ones that are kept.

    Args:
        data: what :func:`svr_lightning.report.figure_data.risk_coverage` returns, and ``threshold``.
    """
    figure = new_figure(3.3)
    axes = figure.add_subplot()
    oracle = data["oracle"]
    axes.plot(oracle["coverage"], oracle["risk"], color=GREY, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.plot(data["coverage"], data["risk"], "o-", color=BLUE, markersize=3)
    point = data["operating"]
    if point["risk"] is not None:
        axes.plot(point["coverage"], point["risk"], "*", color=ORANGE, markersize=13, zorder=5)
        beyond = point["coverage"] > 0.55
        axes.annotate(
            f"stopped at confidence ≥ {data['threshold']:.2f}:\n"
            f"{point['coverage']:.1%} kept, {point['risk']:.1%} of them wrong",
            (point["coverage"], point["risk"]),
            xytext=(-10 if beyond else 10, 12),
            textcoords="offset points",
            ha="right" if beyond else "left",
            va="bottom",
            color=ORANGE,
            fontsize=SMALL,
        )
    top = max([*data["risk"], oracle["risk"][-1], point["risk"] or 0])
    axes.set_ylim(-0.03 * max(top, 0.05), max(top * 1.45, 0.05))
    axes.set_xlim(0, 1.02)
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.grid(axis="y")
    axes.set_xlabel("coverage: share of problems kept, most confident first")
    axes.set_ylabel("risk: share of them wrong")
    lines = (
        (f"by stated confidence, AURC {data['aurc']:.3f}", BLUE),
        (f"right answers first, AURC {data['oracle_aurc']:.3f}", GREY),
    )
    for number, (text, colour) in enumerate(lines):
        place = (0.02, 0.98 - 0.075 * number)
        axes.annotate(text, place, xycoords="axes fraction", va="top", color=colour, fontsize=SMALL)
    return figure


@styled
def by_turn(data: Numbers) -> Figure:
    """Figure 10: quartiles of confidence at each turn, of right and of wrong answers.

    Args:
        data: what :func:`svr_lightning.report.figure_data.confidence_by_turn` returns.
    """
    figure = new_figure(3.2)
    axes = figure.add_subplot()
    ends = []
    for name, colour in (("right", BLUE), ("wrong", ORANGE)):
        rows = [row for row in data["turns"] if row[name]["n"]]
        turns = [row["turn"] for row in rows]
        if not turns:
            continue
        low, middle, high = np.array([row[name]["quartiles"] for row in rows]).T
        axes.fill_between(turns, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(turns, middle, "o-", color=colour, markersize=4)
        ends.append((float(middle[-1]), f"{name} answers", colour))
    turns = [row["turn"] for row in data["turns"]]
    for row in data["turns"]:
        for number, (name, colour) in enumerate((("right", BLUE), ("wrong", ORANGE))):
            axes.annotate(
                _short(row[name]["n"]),
                (row["turn"], 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 14 - 11 * number),
                textcoords="offset points",
                ha="center",
                va="bottom",
                color=colour,
                fontsize=SMALL,
            )
    axes.annotate(
        "n",
        (0.0, 1.0),
        xycoords="axes fraction",
        xytext=(-10, 9),
        textcoords="offset points",
        ha="right",
        color=GREY,
        fontsize=SMALL,
    )
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlim(0.6, (turns[-1] if turns else 1) + 0.4)
    share_axis(axes)
    turn_axis(axes, turns)
    axes.set_ylabel("stated confidence: median, quartiles")
    label_right(axes, ends)
    return figure
