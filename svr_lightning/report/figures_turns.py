"""Figures of the turns of one recording: confidence, refinement and stops.

Of each figure one function gives the numbers, plain JSON, and one draws them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from svr_lightning.analysis.calibration import (
    BINS,
    expected_calibration_error,
    levels_of,
    reliability_bins,
)
from svr_lightning.analysis.intervals import effective_size, wilson_interval
from svr_lightning.analysis.replay import transitions
from svr_lightning.analysis.table import (
    Bools,
    Ints,
    TurnTable,
    cluster_codes,
    problem_table,
)
from svr_lightning.core.metrics import NO_VERDICT, VERDICT_CODES
from svr_lightning.report import drawing
from svr_lightning.report.numbers import Numbers

# --- is the confidence honest? ----------------------------------------------------------------

_VERDICTS = {"CORRECT": drawing.BLUE, "INCORRECT": drawing.ORANGE, "UNSURE": drawing.GREY}


def reliability_numbers(table: TurnTable) -> Numbers:
    """Reliability of ``observed`` turns, and of those alone that ``stopped`` a trajectory."""
    turns = problem_table(table, table.outcome).turns
    returned = table.outcome.returned[turns["row"]] == turns["turn"]
    stopped = table.outcome.stopped_early[turns["row"]] & returned
    return {
        "observed": _reliability(turns, table.cluster, np.ones(len(stopped), dtype=bool)),
        "stopped": _reliability(turns, table.cluster, stopped),
    }


def _reliability(turns: Mapping[str, NDArray[Any]], cluster: Ints, rows: Bools) -> Numbers:
    """The bins of some turns, with Wilson intervals and verdicts, and their calibration error.

    Turns of one problem, or of one cluster of problems, are not independent.
    """
    clusters = cluster[turns["row"][rows]]
    confidence, correct, verdict = (turns[k][rows] for k in ("confidence", "correct", "verdict"))
    levels = levels_of(confidence, correct)
    place = np.searchsorted(np.arange(1, BINS) / BINS, confidence, side="right")
    bins = []
    for number, row in enumerate(reliability_bins(levels, BINS)):
        accuracy = row["accuracy"]
        here = place == number
        said = verdict[here]
        verdicts = {name.value: int((said == code).sum()) for name, code in VERDICT_CODES.items()}
        size = effective_size(correct[here], cluster_codes(clusters[here].tolist()))
        interval = None if accuracy is None else wilson_interval(accuracy, size)
        bins.append({**row, "accuracy_ci95": interval, "verdicts": verdicts})
    ece = float(expected_calibration_error(levels, BINS)) if len(confidence) else None
    return {"n": len(confidence), "ece": ece, "bins": bins}


def draw_reliability(data: Numbers) -> Figure:
    """Accuracy against stated confidence, over a histogram coloured by verdict."""
    figure = drawing.new_figure(4.4)
    grid = figure.subplots(2, 2, sharex=True, height_ratios=(2.4, 1))
    columns = (("observed", "all observed turns"), ("stopped", "turns that stopped"))
    for (top, bottom), (key, title) in zip(grid.T, columns, strict=True):
        part = data[key]
        ece = "" if part["ece"] is None else f", ECE {part['ece']:.3f}"
        top.set_title(f"{title}\nn = {part['n']:,}{ece}", loc="left")
        top.plot([0, 1], [0, 1], color=drawing.FAINT, linewidth=1.2, zorder=0)
        top.set_xlim(-0.01, 1.01)
        drawing.share_axis(top)
        if part["n"]:
            _bins(top, bottom, part["bins"])
        else:
            drawing.note(top, "no turn stopped early" if key == "stopped" else "no turn")
            bottom.set_yticks([])
        bottom.set_xlabel("stated confidence")
        bottom.set_xticks(np.linspace(0, 1, 6))
    grid[0, 0].set_ylabel("share of right answers")
    grid[1, 0].set_ylabel("turns")
    handles = drawing.patches(list(_VERDICTS.items()))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    figure.align_ylabels(list(grid[:, 0]))
    return figure


def _bins(top: Axes, bottom: Axes, bins: list[Numbers]) -> None:
    rows = [row for row in bins if row["n"]]
    x = [row["confidence"] for row in rows]
    for place, row in zip(x, rows, strict=True):
        top.plot([place] * 2, row["accuracy_ci95"], color=drawing.INK, linewidth=1)
    top.plot(
        x, [row["accuracy"] for row in rows], "o-", color=drawing.INK, markersize=4.5, linewidth=1.1
    )
    centres = [(row["low"] + row["high"]) / 2 for row in bins]
    parts = [([row["verdicts"][v] for row in bins], colour) for v, colour in _VERDICTS.items()]
    drawing.stacked_bars(bottom, centres, parts, 0.9 * (bins[0]["high"] - bins[0]["low"]))
    bottom.yaxis.set_major_locator(MaxNLocator(3, integer=True))


# --- does it follow correctness? --------------------------------------------------------------

_ANSWERS = (("right", True, drawing.BLUE), ("wrong", False, drawing.ORANGE))


def by_turn_numbers(table: TurnTable) -> Numbers:
    """Quartiles of the stated confidence at each recorded turn, of right and of wrong answers."""
    rows = []
    for turn in range(table.correct.shape[1]):
        there = table.verdict[:, turn] != NO_VERDICT
        row: Numbers = {"turn": turn + 1}
        for name, correct, _ in _ANSWERS:
            values = table.confidence[there & (table.correct[:, turn] == correct), turn]
            quartiles = np.quantile(values, [0.25, 0.5, 0.75]).tolist() if len(values) else None
            row[name] = {"n": len(values), "quartiles": quartiles}
        rows.append(row)
    return {"turns": rows}


def draw_by_turn(data: Numbers) -> Figure:
    """Quartiles of confidence at each turn, of right and of wrong answers."""
    figure, axes = drawing.one_axes(3.2)
    drawing.share_axis(axes)
    units: Any = ("data", "axes fraction")
    ends = []
    for number, (name, _, colour) in enumerate(_ANSWERS):
        rows = [row for row in data["turns"] if row[name]["n"]]
        for row in data["turns"]:
            shift, text = (0, 14 - 11 * number), drawing.short_count(row[name]["n"])
            drawing.label(
                axes, text, (row["turn"], 1), shift, coordinates=units, ha="center", color=colour
            )
        if rows:
            turns = [row["turn"] for row in rows]
            low, middle, high = np.array([row[name]["quartiles"] for row in rows]).T
            axes.fill_between(turns, low, high, color=colour, alpha=0.18, linewidth=0)
            axes.plot(turns, middle, "o-", color=colour, markersize=4)
            ends.append((float(middle[-1]), f"{name} answers", colour))
    drawing.label(
        axes, "n", (0, 1), (-10, 9), coordinates="axes fraction", ha="right", color=drawing.GREY
    )
    axes.set_xlim(0.6, len(data["turns"]) + 0.4)
    drawing.turn_axis(axes, [row["turn"] for row in data["turns"]])
    axes.set_ylabel("stated confidence: median, quartiles")
    drawing.label_right(axes, ends)
    return figure


# --- what refinement does to answers ----------------------------------------------------------

_STATES = (
    ("kept", "right as at turn 1", drawing.BLUE),
    ("fixed", "fixed", drawing.LIGHT_BLUE),
    ("broken", "broken", drawing.ORANGE),
    ("never", "never right", drawing.FAINT),
)


def transition_numbers(table: TurnTable) -> Numbers:
    """How answers change over all recorded turns.

    Returns:
        ``boundaries``: how many problems that have both turns are ``fixed`` and ``broken`` from a
        turn to the next; ``states``: for each turn the shares of all problems whose answer by then
        is right and was at turn 1 (``kept``), is right and was not (``fixed``), is wrong and was
        right before (``broken``) or never was right (``never``). A trajectory that has ended keeps
        its last answer.
    """
    states, ever = [], np.zeros(len(table.ids), dtype=bool)
    first = table.at(table.correct, np.minimum(table.length, 1)).astype(bool)
    for turn in range(1, table.correct.shape[1] + 1):
        now = table.at(table.correct, np.minimum(table.length, turn)).astype(bool)
        masks = {"kept": now & first, "fixed": now & ~first}
        masks |= {"broken": ~now & ever, "never": ~now & ~ever}
        states.append({"turn": turn, **{k: float(mask.mean()) for k, mask in masks.items()}})
        ever |= now
    boundaries = [
        {"turns": [turn, turn + 1], "fixed": counts[0][1], "broken": counts[1][0]}
        for turn, counts in enumerate(transitions(table), start=1)
    ]
    return {"n": len(table.ids), "boundaries": boundaries, "states": states}


def draw_transitions(data: Numbers) -> Figure:
    """What answers have become by each turn, and how many were fixed and broken at it."""
    states = data["states"]
    turns = [row["turn"] for row in states]
    figure = drawing.new_figure(4.4)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    parts = [([row[key] for row in states], colour) for key, _, colour in _STATES]
    drawing.stacked_bars(top, turns, parts, 0.85)
    drawing.share_axis(top)
    top.set_ylim(0, 1)
    top.set_ylabel("share of problems")
    ends, base = [], 0.0
    for key, name, colour in _STATES:
        value = states[-1][key]
        ends.append((base + value / 2, f"{name} {value:.1%}", colour))
        base += value
    drawing.label_right(top, ends, areas=True)
    for key, sign, colour in (("fixed", 1, drawing.LIGHT_BLUE), ("broken", -1, drawing.ORANGE)):
        for row in data["boundaries"]:
            bottom.bar(row["turns"][1], sign * row[key], 0.85, color=colour, linewidth=0)
            place, side = (row["turns"][1], sign * row[key]), "bottom" if sign > 0 else "top"
            drawing.label(
                bottom, drawing.short_count(row[key]), place, (0, sign), ha="center", va=side
            )
    bottom.axhline(0, color=drawing.INK, linewidth=0.7)
    bottom.margins(y=0.25)
    bottom.set_yticks([])
    bottom.set_ylabel("broken   fixed")
    drawing.turn_axis(bottom, turns)
    return figure


# --- where trajectories end -------------------------------------------------------------------

_ENDS = (
    ("early_right", "stopped early, right", drawing.BLUE),
    ("early_wrong", "stopped early, wrong", drawing.ORANGE),
    ("last_right", "out of turns, right", drawing.PALE_BLUE),
    ("last_wrong", "out of turns, wrong", drawing.FAINT),
)


def stop_numbers(table: TurnTable) -> Numbers:
    """How many problems end at each turn, early or not, right or wrong."""
    found = problem_table(table, table.outcome)
    columns = (found.problems[name] for name in ("stopped_early", "final_correct", "turns"))
    early, right, turns = columns
    code = 2 * (1 - early) + (1 - right)  # the place in _ENDS
    rows = []
    for turn in range(1, int(turns.max(initial=0)) + 1):
        counts = np.bincount(code[turns == turn], minlength=4).tolist()
        rows.append({"turn": turn, **dict(zip((key for key, *_ in _ENDS), counts, strict=True))})
    return {
        "n": len(table.ids),
        "not_run": int((turns == 0).sum()),
        "esr": found.value("esr"),
        "pse": found.value("pse"),
        "turns": rows,
    }


def draw_stops(data: Numbers) -> Figure:
    """Where trajectories end; the orange area is the premature stop error."""
    figure, axes = drawing.one_axes(3.1)
    rows = data["turns"]
    turns = [row["turn"] for row in rows]
    parts = [([row[key] for row in rows], colour) for key, _, colour in _ENDS]
    whole = drawing.stacked_bars(axes, turns, parts, 0.8)
    for turn, count in zip(turns, whole.tolist(), strict=True):
        drawing.label(
            axes, drawing.short_count(int(count)), (turn, count), ha="center", va="bottom"
        )
    axes.set_ylim(0, max(whole.max(initial=0) * 1.12, 1))
    drawing.turn_axis(axes, turns, "turns generated")
    axes.set_ylabel("problems")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    names = [
        (f"{name} ({sum(counts) / max(data['n'], 1):.1%})", colour)
        for (_, name, colour), (counts, _) in zip(_ENDS, parts, strict=True)
        if sum(counts)
    ]
    figure.legend(
        handles=drawing.patches(names), loc="outside upper left", ncols=2, fontsize=drawing.SMALL
    )
    return figure
