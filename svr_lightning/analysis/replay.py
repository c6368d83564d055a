"""Stopping rules on trajectories that were recorded without any, and every operating point.

Under greedy decoding no prompt depends on the stopping rule, so one recording of T_max turns per
problem holds the outcome of every rule and of every fixed budget (appendix "Fixed-Budget and
Threshold Sweeps").

Rows of curves are plain dictionaries: which point it is, then the metrics of each ``datasets``, as
results files have them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from svr_lightning.analysis.metrics import measure
from svr_lightning.analysis.table import TurnTable
from svr_lightning.core.stopping import Confident, Rule, StopRule, first_ending
from svr_lightning.core.types import Ending
from svr_lightning.errors import ConfigError

THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""The paper's grid, 0.50 to 0.95."""
Tables = Mapping[str, TurnTable]
Row = dict[str, Any]


@dataclass(frozen=True)
class FirstRight(Rule[bool]):
    """Stops at the first correct answer: an upper bound for rules, which may not read labels.

    A turn is its label here, so that inference, whose turns have none, cannot use it.
    """

    def __str__(self) -> str:
        return "the first right answer (reads labels)"

    def stops(self, turns: Sequence[bool], max_turns: int) -> bool:
        """Whether the last turn is correct."""
        return turns[-1]


class MissingTurnsError(ValueError):
    """A rule needs turns that were not recorded, which is the ``fact``."""

    def __init__(self, fact: str) -> None:
        self.fact = fact
        super().__init__(f"{fact}; record every turn with --record")


@contextmanager
def faults_of_replay(cure: str) -> Iterator[None]:
    """Within it, a ValueError is a fault of the user's; ``cure`` says how to have all turns."""
    try:
        yield
    except MissingTurnsError as error:
        raise ConfigError(f"{error.fact}; {cure}") from error
    except ValueError as error:
        raise ConfigError(str(error)) from error


def replay(table: TurnTable, rule: StopRule | FirstRight | None, max_turns: int) -> TurnTable:
    """The table as inference leaves it with ``rule`` and T_max = ``max_turns``.

    Args:
        table: with each problem's turns up to its stop, or ``max_turns`` of them.
        rule: when a trajectory ends and which turn is returned; None for a fixed budget.
        max_turns: T_max. A rule that stops there is no early stop.

    Raises:
        MissingTurnsError: naming the problem, if no turn stops before its turns end.
    """
    if max_turns < 1:
        raise ValueError(f"max_turns={max_turns} must be at least one turn")
    turns: Sequence[Sequence[Any]] = table.signals
    if isinstance(rule, FirstRight):
        turns = [row[:n] for row, n in zip(table.correct.tolist(), table.length, strict=True)]
    endings = []
    for name, recorded in zip(table.ids, turns, strict=True):
        end = first_ending(rule, recorded, max_turns) if recorded else Ending(0, 0, False)
        if end is None:
            raise MissingTurnsError(
                f"record {name!r} of {table.dataset!r}: no turn stopped and only {len(recorded)} "
                f"of {max_turns} turns are there"
            )
        endings.append(end)
    return replace(
        table,
        observed=np.array([end.observed for end in endings], dtype=np.int64),
        returned=np.array([end.returned for end in endings], dtype=np.int64),
        stopped_early=np.array([end.stopped_early for end in endings], dtype=np.bool_),
        accepted=np.array([end.accepted for end in endings], dtype=np.bool_),
        rule=rule,
        max_turns=max_turns,
    )


# --- curves -------------------------------------------------------------------------------------


def threshold_rules(rule: StopRule | None) -> list[Confident]:
    """``rule`` with each of :data:`THRESHOLDS`, or the paper's rule if it has no threshold.

    None if its score is a log-probability, which no threshold of the grid suits.
    """
    rule = rule if isinstance(rule, Confident) else Confident()
    grid = () if "logprob" in rule.score else THRESHOLDS
    return [replace(rule, threshold=gamma) for gamma in grid]


def curves(tables: Tables, rule: StopRule, max_turns: int) -> Row:
    """Every operating point of a policy, of which all ``max_turns`` turns were recorded.

    Returns:
        ``operating_point``: its row. ``fixed``: K = 1 to ``max_turns``. ``thresholds``: those of
        :func:`threshold_rules`. ``transitions``: {data set: one 2 x 2 table per turn boundary}, see
        :func:`transitions`.

    Raises:
        ValueError: naming a problem whose turns are missing.
    """

    def adaptive(rule: StopRule) -> Row:
        point = {**asdict(rule), "max_turns": max_turns}  # type: ignore[call-overload]
        return {**point, "datasets": measured_under(tables, rule, max_turns)}

    return {
        "operating_point": adaptive(rule),
        "fixed": [
            {"budget": budget, "datasets": measured_under(tables, None, budget)}
            for budget in range(1, max_turns + 1)
        ],
        "thresholds": [adaptive(one) for one in threshold_rules(rule)],
        "transitions": {name: transitions(table) for name, table in tables.items()},
    }


def measured_under(tables: Tables, rule: StopRule | None, max_turns: int) -> dict[str, Row]:
    """The metrics of each data set under ``rule`` and T_max = ``max_turns``.

    Without a rule, of a fixed budget: ``esr`` and ``pse`` are 0, since nothing stops early.
    """
    return {name: measure(replay(one, rule, max_turns)) for name, one in tables.items()}


def transitions(table: TurnTable) -> list[list[list[int]]]:
    """How labels change from turn to turn.

    Returns:
        [T - 1][2][2] counts over the problems that have both turns: entry [t][before][after] with
        0 wrong and 1 right, so that [t][0][1] were fixed by turn t + 2 and [t][1][0] broken.
    """
    counts = []
    for later in range(1, table.correct.shape[1]):
        both = table.length > later
        pair = 2 * table.correct[both, later - 1] + table.correct[both, later]
        counts.append(np.bincount(pair, minlength=4).reshape(2, 2).tolist())
    return counts
