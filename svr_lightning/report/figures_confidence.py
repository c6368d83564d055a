"""Figures of stated confidence: is it honest, does it rank, does it follow correctness?"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from svr_lightning.core.metrics import NO_VERDICT, VERDICT_CODES
from svr_lightning.evaluation.calibration import (
    BINS,
    area_under_risk_coverage,
    expected_calibration_error,
    levels_of,
    reliability_bins,
)
from svr_lightning.evaluation.intervals import wilson_interval
from svr_lightning.evaluation.table import Bools, Floats, Outcome, TurnTable, problem_table
from svr_lightning.report.figures_style import (
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
    short_count,
    styled,
    turn_axis,
)
from svr_lightning.report.numbers import Numbers

# --- is it honest? ----------------------------------------------------------------------------


def reliability_numbers(table: TurnTable, outcome: Outcome) -> Numbers:
    """Reliability of ``observed`` turns, and of those alone that ``stopped`` a trajectory."""
    found = problem_table(table, outcome)
    turns = found.turns
    returned = outcome.returned[turns["row"]] == turns["turn"]
    stopped = outcome.stopped_early[turns["row"]] & returned
    return {"observed": _reliability(turns), "stopped": _reliability(turns, stopped)}


def _reliability(turns: Mapping[str, NDArray[Any]], rows: Bools | None = None) -> Numbers:
    """The bins of some turns, with Wilson intervals and verdicts, and their calibration error."""
    chosen = slice(None) if rows is None else rows
    confidence, correct, verdict = (turns[k][chosen] for k in ("confidence", "correct", "verdict"))
    levels = levels_of(confidence, correct)
    place = np.searchsorted(np.arange(1, BINS) / BINS, confidence, side="right")
    bins = []
    for number, row in enumerate(reliability_bins(levels, BINS)):
        accuracy, n = row["accuracy"], int(row["n"] or 0)
        verdicts = {
            name.value: int((verdict[place == number] == code).sum())
            for name, code in VERDICT_CODES.items()
        }
        interval = None if accuracy is None else wilson_interval(accuracy, n)
        bins.append({**row, "accuracy_ci95": interval, "verdicts": verdicts})
    ece = float(expected_calibration_error(levels, BINS)) if len(confidence) else None
    return {"n": len(confidence), "ece": ece, "bins": bins}


@styled
def reliability(data: Numbers) -> Figure:
    """Accuracy against stated confidence, over a histogram coloured by verdict."""
    figure = new_figure(4.4)
    grid = figure.subplots(2, 2, sharex=True, height_ratios=(2.4, 1))
    columns = (("observed", "all observed turns"), ("stopped", "turns that stopped"))
    for (top, bottom), (key, title) in zip(grid.T, columns, strict=True):
        part = data[key]
        ece = "" if part["ece"] is None else f", ECE {part['ece']:.3f}"
        top.set_title(f"{title}\nn = {part['n']:,}{ece}", loc="left")
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
    handles = [Rectangle((0, 0), 1, 1, color=colour, label=n) for n, colour in VERDICTS.items()]
    figure.legend(handles=handles, loc="outside lower center", frameon=False, ncols=3)
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
    axes.set_ylim(0, base.max() * 1.1)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))


# --- does it rank? ----------------------------------------------------------------------------


def risk_numbers(table: TurnTable, outcome: Outcome) -> Numbers:
    """How wrong the returned answers are where only the more confident ones are kept.

    Answers of equal confidence are kept or dropped together; the area counts them in the mean over
    all their orders. A problem that could not be run has no confidence and comes last.

    Returns:
        ``coverage`` and ``risk`` after each level of confidence; ``aurc``, the mean risk over all
        coverages; the same with every right answer first (``oracle_aurc``, and ``oracle``, its
        curve); ``operating``, the coverage and risk of the answers that the rule stopped at.
    """
    final = table.at(table.correct, outcome.returned).astype(bool)
    stated = np.nan_to_num(table.at(table.confidence, outcome.returned), nan=-1.0)
    score = np.where(outcome.returned > 0, stated, -1.0)
    wrong = ~final
    stopped = int(outcome.stopped_early.sum())
    coverage, risk, area = _risk_curve(score, wrong)
    _, _, best = _risk_curve(final.astype(float), wrong)
    right = 1 - float(wrong.mean())
    kept = np.linspace(right, 1, 50) if right < 1 else np.array([1.0])
    return {
        "n": len(wrong),
        "coverage": coverage,
        "risk": risk,
        "aurc": area,
        "oracle_aurc": best,
        "oracle": {
            "coverage": [0.0, *kept.tolist()],
            "risk": [0.0, *(np.maximum(kept - right, 0) / np.maximum(kept, 1e-9)).tolist()],
        },
        "operating": {
            "coverage": stopped / len(wrong),
            "risk": int((outcome.stopped_early & wrong).sum()) / stopped if stopped else None,
        },
    }


def _risk_curve(score: Floats, wrong: Bools) -> tuple[list[float], list[float], float]:
    """Coverage and risk after each level of ``score``, from the highest; and the mean risk."""
    levels = levels_of(score, ~wrong)
    kept = np.cumsum(levels.total[::-1])
    errors = np.cumsum((levels.total - levels.right)[::-1])
    area = float(area_under_risk_coverage(levels))
    return (kept / len(score)).tolist(), (errors / kept).tolist(), area


@styled
def risk_coverage(data: Numbers) -> Figure:
    """Share of wrong answers among the more confident ones that are kept."""
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


# --- does it follow correctness? --------------------------------------------------------------


def by_turn_numbers(table: TurnTable) -> Numbers:
    """Quartiles of the stated confidence at each recorded turn, of right and of wrong answers."""
    rows = []
    for turn in range(table.correct.shape[1]):
        there = table.verdict[:, turn] != NO_VERDICT
        row: Numbers = {"turn": turn + 1}
        for name, label in (("right", True), ("wrong", False)):
            values = table.confidence[there & (table.correct[:, turn] == label), turn]
            quartiles = np.quantile(values, [0.25, 0.5, 0.75]).tolist() if len(values) else None
            row[name] = {"n": len(values), "quartiles": quartiles}
        rows.append(row)
    return {"turns": rows}


@styled
def by_turn(data: Numbers) -> Figure:
    """Quartiles of confidence at each turn, of right and of wrong answers."""
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
                short_count(row[name]["n"]),
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
