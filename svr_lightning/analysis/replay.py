"""Stopping rules on trajectories that were recorded without any.

Under greedy decoding no prompt depends on the stopping rule, so one recording of T_max turns per
problem holds the outcome of every rule and of every fixed budget (appendix "Fixed-Budget and
Threshold Sweeps").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from svr_lightning.analysis.table import Outcome, TurnTable
from svr_lightning.core.stopping import Ending, Rule, StopRule, first_ending

T = TypeVar("T")


@dataclass(frozen=True)
class Oracle(Rule[bool]):
    """Stops at the first correct answer: an upper bound for rules, which may not read labels.

    A turn is its label here, so that inference, whose turns have none, cannot use it.
    """

    def __str__(self) -> str:
        return "the first right answer (reads labels)"

    def stops(self, turns: Sequence[bool], max_turns: int) -> bool:
        """Whether the last turn is correct."""
        return turns[-1]


def replay(table: TurnTable, rule: StopRule | Oracle | None, max_turns: int) -> Outcome:
    """The outcome of inference with ``rule`` and T_max = ``max_turns``.

    Args:
        table: with each problem's turns up to its stop, or ``max_turns`` of them.
        rule: when a trajectory ends and which turn is returned; None for a fixed budget.
        max_turns: T_max. A rule that stops there is no early stop.

    Raises:
        ValueError: naming the problem, if no turn stops and turns up to ``max_turns`` are missing.
    """
    if max_turns < 1:
        raise ValueError(f"max_turns={max_turns} must be at least one turn")
    endings: list[Ending | None]
    if isinstance(rule, Oracle):
        labels = zip(table.correct.tolist(), table.length.tolist(), strict=True)
        endings = [_end(rule, turns[:length], max_turns) for turns, length in labels]
    else:
        endings = [_end(rule, turns, max_turns) for turns in table.signals]
    for name, length, end in zip(table.ids, table.length, endings, strict=True):
        if end is None:
            raise ValueError(
                f"record {name!r} of {table.dataset!r}: no turn stopped and only {length} of "
                f"{max_turns} turns are there"
            )
    found = np.array(endings, dtype=np.int64).reshape(-1, 3)
    return Outcome(
        observed=found[:, 0], returned=found[:, 1], stopped_early=found[:, 2].astype(np.bool_)
    )


def replayed(
    tables: Mapping[str, TurnTable], rule: StopRule | None, max_turns: int
) -> dict[str, TurnTable]:
    """The tables with the outcome of :func:`replay` in place of their own."""
    return {
        name: replace(table, outcome=replay(table, rule, max_turns))
        for name, table in tables.items()
    }


def _end(rule: Rule[T] | None, turns: Sequence[T], max_turns: int) -> Ending | None:
    """The ending of a problem's turns; None if too few are there, nothing if it was not run."""
    if not turns:
        return Ending(0, 0, False)
    return first_ending(rule, turns, max_turns)
