"""Figures of turns: what refinement does to answers, and where trajectories end."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from svr_lightning.evaluation import sweep
from svr_lightning.evaluation.table import Outcome, TurnTable, problem_table
from svr_lightning.report.figures_style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    LIGHT_BLUE,
    ORANGE,
    PALE_BLUE,
    SMALL,
    label_right,
    new_figure,
    share_axis,
    short_count,
    styled,
)
from svr_lightning.report.numbers import Numbers

_STATES = (
    ("kept", "right as at turn 1", BLUE),
    ("fixed", "fixed", LIGHT_BLUE),
    ("broken", "broken", ORANGE),
    ("never", "never right", FAINT),
)
_CELLS = (
    ("right_right", 0, 0, BLUE),
    ("right_wrong", 0, 1, ORANGE),
    ("wrong_right", 1, 0, BLUE),
    ("wrong_wrong", 1, 1, GREY),
)
_ACROSS = 5
"""Boundaries between turns in one row."""
_ENDS = (
    ("early_right", "stopped early, right", BLUE),
    ("early_wrong", "stopped early, wrong", ORANGE),
    ("last_right", "out of turns, right", PALE_BLUE),
    ("last_wrong", "out of turns, wrong", FAINT),
)


# --- transitions ------------------------------------------------------------------------------


def transition_numbers(table: TurnTable) -> Numbers:
    """How answers change from each turn to the next, over all recorded turns.

    Returns:
        ``boundaries``: for turns k and k + 1 the counts of ``right_right``, ``right_wrong``,
        ``wrong_right`` and ``wrong_wrong``, of problems that have both turns; ``states``: for each
        turn the shares of all problems whose answer by then is right and was at turn 1 (``kept``),
        is right and was not (``fixed``), is wrong and was right before (``broken``) or never was
        right (``never``). A trajectory that has ended keeps its last answer.
    """
    width = table.correct.shape[1]
    boundaries = [
        {
            "turns": [turn, turn + 1],
            "wrong_wrong": counts[0][0],
            "wrong_right": counts[0][1],
            "right_wrong": counts[1][0],
            "right_right": counts[1][1],
        }
        for turn, counts in enumerate(sweep.transitions(table), start=1)
    ]
    states = []
    first = table.at(table.correct, np.minimum(table.length, 1)).astype(bool)
    ever = np.zeros(len(table.ids), dtype=bool)
    for turn in range(1, width + 1):
        now = table.at(table.correct, np.minimum(table.length, turn)).astype(bool)
        states.append(
            {
                "turn": turn,
                "kept": float((now & first).mean()),
                "fixed": float((now & ~first).mean()),
                "broken": float((~now & ever).mean()),
                "never": float((~now & ~ever).mean()),
            }
        )
        ever |= now
    return {"n": len(table.ids), "boundaries": boundaries, "states": states}


@styled
def transitions(data: Numbers) -> Figure:
    """Right and wrong answers from turn to turn, and what they add up to."""
    states, boundaries = data["states"], data["boundaries"]
    rows = -(-len(boundaries) // _ACROSS)
    figure = new_figure(2.9 + 1.25 * rows)
    if boundaries:
        parts: Any = figure.subfigures(2, 1, height_ratios=(1.25 * rows, 2.6))
        grid = parts[0].subplots(rows, _ACROSS, squeeze=False)
        for number, axes in enumerate(grid.flat):
            if number < len(boundaries):
                _boundary(axes, boundaries[number], first=number % _ACROSS == 0)
                if number == _ACROSS * (rows - 1):
                    axes.set_xlabel("after", fontsize=SMALL)
            else:
                axes.set_axis_off()
        axes = parts[1].subplots()
    else:
        axes = figure.subplots()
    turns = [row["turn"] for row in states]
    if len(turns) == 1:
        base = 0.0
        for key, _, colour in _STATES:
            axes.bar(turns, states[0][key], 0.5, bottom=base, color=colour)
            base += states[0][key]
    else:
        shares = [[row[key] for row in states] for key, _, _ in _STATES]
        axes.stackplot(turns, shares, colors=[colour for _, _, colour in _STATES], linewidth=0)
    axes.set_ylim(0, 1)
    axes.set_xlim((turns[0], turns[-1]) if len(turns) > 1 else (0.5, 1.5))
    share_axis(axes)
    axes.set_xticks(turns)
    axes.set_xlabel("turn")
    axes.set_ylabel("share of problems")
    ends, base = [], 0.0
    for key, name, colour in _STATES:
        value = states[-1][key]
        ends.append((base + value / 2, f"{name} {value:.1%}", colour))
        base += value
    label_right(axes, ends, areas=True)
    return figure


def _boundary(axes: Axes, boundary: Numbers, *, first: bool) -> None:
    total = sum(boundary[key] for key, *_ in _CELLS)
    for key, row, column, colour in _CELLS:
        count = boundary[key]
        share = count / total if total else 0.0
        strength = 0.08 + 0.6 * share
        axes.add_patch(
            Rectangle((column, 1 - row), 1, 1, color=colour, alpha=strength, linewidth=0)
        )
        axes.text(
            column + 0.5,
            1.5 - row,
            short_count(count),
            ha="center",
            va="center",
            fontsize=SMALL,
            color=INK,
        )
    axes.set_xlim(0, 2)
    axes.set_ylim(0, 2)
    axes.set_aspect("equal")
    axes.set_xticks([0.5, 1.5], ["✓", "✗"])
    axes.set_yticks([0.5, 1.5], ["✗", "✓"] if first else ["", ""])
    axes.tick_params(length=0, pad=1.5)
    for spine in axes.spines.values():
        spine.set_visible(False)
    before, after = boundary["turns"]
    axes.set_title(f"{before} → {after}", fontsize=SMALL, pad=3)
    if first:
        axes.set_ylabel("before", fontsize=SMALL)


# --- where trajectories end -------------------------------------------------------------------


def stop_numbers(table: TurnTable, outcome: Outcome) -> Numbers:
    """How many problems end at each turn, early or not, right or wrong."""
    found = problem_table(table, outcome)
    right, early, turns = (
        found.problems[name] for name in ("final_correct", "stopped_early", "turns")
    )
    kinds = {
        "early_right": (early == 1) & (right == 1),
        "early_wrong": (early == 1) & (right == 0),
        "last_right": (early == 0) & (right == 1),
        "last_wrong": (early == 0) & (right == 0),
    }
    return {
        "n": len(table.ids),
        "not_run": int((turns == 0).sum()),
        "esr": found.value("esr"),
        "pse": found.value("pse"),
        "turns": [
            {"turn": turn, **{k: int((kind & (turns == turn)).sum()) for k, kind in kinds.items()}}
            for turn in range(1, int(turns.max(initial=0)) + 1)
        ],
    }


@styled
def stop_times(data: Numbers) -> Figure:
    """Where trajectories end; the orange area is the premature stop error."""
    figure = new_figure(3.1)
    axes = figure.add_subplot()
    rows = data["turns"]
    turns = [row["turn"] for row in rows]
    base = np.zeros(len(rows))
    totals = {}
    for key, name, colour in _ENDS:
        counts = np.array([row[key] for row in rows])
        axes.bar(turns, counts, 0.8, bottom=base, color=colour, linewidth=0)
        base += counts
        totals[name] = (int(counts.sum()), ORANGE if key == "early_wrong" else colour)
    for turn, count in zip(turns, base, strict=True):
        axes.text(turn, count, short_count(int(count)), ha="center", va="bottom", fontsize=SMALL)
    axes.set_ylim(0, max(base.max(initial=0) * 1.12, 1))
    axes.set_xticks(turns)
    axes.set_xlabel("turns generated")
    axes.set_ylabel("problems")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    handles = [
        Rectangle((0, 0), 1, 1, color=colour, label=f"{name} ({count / max(data['n'], 1):.1%})")
        for name, (count, colour) in totals.items()
        if count
    ]
    figure.legend(handles=handles, loc="outside upper left", frameon=False, ncols=2, fontsize=SMALL)
    return figure
