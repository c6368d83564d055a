"""Stopping rules on trajectories that were recorded without any, and every operating point.

Under greedy decoding no prompt depends on the stopping rule, so one recording of T_max turns per
problem holds the outcome of every rule and of every fixed budget (appendix "Fixed-Budget and
Threshold Sweeps").

Rows of curves are plain dictionaries: which point it is, then the metrics of each ``datasets``, as
results files have them.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import numpy as np

from svr_lightning.analysis.metrics import measure
from svr_lightning.analysis.table import (
    AnyRule,
    Bools,
    FirstRight,
    Floats,
    Ints,
    TurnTable,
    at_turn,
    cluster_codes,
)
from svr_lightning.core.metrics import VERDICT_CODES
from svr_lightning.core.ranges import MAX_COUNT
from svr_lightning.core.stopping import (
    Confident,
    FixedTurns,
    Majority,
    StopRule,
    Voting,
)
from svr_lightning.core.types import Verdict
from svr_lightning.errors import ConfigError, require

THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""The paper's grid, 0.50 to 0.95."""
Tables = Mapping[str, TurnTable]
Row = dict[str, Any]


class MissingTurnsError(ConfigError):
    """A rule needs turns that were not recorded; whoever has read the recording knows the cure."""


def replay(table: TurnTable, rule: AnyRule | None, max_turns: int) -> TurnTable:
    """The table as inference leaves it with ``rule`` and T_max = ``max_turns``.

    Args:
        table: with each problem's turns up to its stop, or ``max_turns`` of them.
        rule: when a trajectory ends and which turn is returned; None for a fixed budget.
        max_turns: T_max. A rule that stops there is no early stop.

    Raises:
        MissingTurnsError: naming the problem, if no turn stops before its turns end.
        ConfigError: if ``max_turns`` is below 1 or above any count.
    """
    possible = 0 < max_turns <= MAX_COUNT
    require(possible, f"max_turns={max_turns} must be at least one turn, at most {MAX_COUNT}")
    accepts, turn = _judged(table, rule, max_turns)
    # Fixed turns end a trajectory whether its answer can be read or not.
    ends = turn >= rule.turns if isinstance(rule, FixedTurns) else accepts
    ends = ends & (np.arange(ends.shape[1]) < np.minimum(table.length, max_turns)[:, None])
    rows = np.arange(len(table.ids))
    first = ends.argmax(1)
    observed = np.where(ends[rows, first], first + 1, max_turns)
    observed[table.length == 0] = 0
    for row in np.flatnonzero(observed > table.length):
        raise MissingTurnsError(
            f"record {table.ids[row]!r} of {table.dataset!r}: no turn stopped and only "
            f"{table.length[row]} of {max_turns} turns are there"
        )
    return replace(
        table,
        observed=observed,
        returned=at_turn(turn, observed),
        stopped_early=(observed > 0) & (observed < max_turns),
        accepted=at_turn(accepts, observed),
        rule=rule,
        max_turns=max_turns,
    )


def require_tokens(table: TurnTable, what: str) -> None:
    """Require that tokens were recorded for all turns, for ``what`` counts them.

    Raises:
        ConfigError: saying for how many turns there are none.
    """
    turns = table.length.sum()
    lacking = turns - np.count_nonzero(table.turn_tokens)
    require(
        lacking == 0,
        f"{what}: {lacking} of {turns} turns have no tokens; name their column with --columns "
        "tokens=COLUMN",
    )


def _judged(table: TurnTable, rule: AnyRule | None, max_turns: int) -> tuple[Bools, Ints]:
    """[N, T] whether each turn is accepted if the trajectory ends there, and the turn returned.

    It is :meth:`StopRule.stops` and :meth:`StopRule.answer_turn` of all turns at once.
    """
    readable = table.answer != 0
    own = np.broadcast_to(np.arange(1, readable.shape[1] + 1), readable.shape)
    match rule:
        case None:
            return np.zeros_like(readable), own
        case FirstRight():
            return table.correct, own
        case Confident():
            accepts = (getattr(table, rule.score) >= rule.threshold) & readable & ~table.truncated
            if rule.needs_correct:
                accepts &= table.verdict == VERDICT_CODES[Verdict.CORRECT]
            return accepts, own
        case Voting():
            name = str(rule.strictness)
            # The value serves every threshold and, but for what can still change a majority, T_max.
            general = replace(rule, **{name: getattr(type(rule), name)})  # type: ignore[type-var]
            horizon = max_turns if isinstance(rule, Majority) else readable.shape[1]
            values, turn = _after_each(table, general, horizon)
            return values >= rule.bound, turn
    stops, turn = _after_each(table, rule, max_turns)
    return (stops > 0) & np.take_along_axis(readable, turn - 1, 1), turn


@lru_cache(maxsize=2)  # rules follow each other that differ in T_max or in the threshold
def _after_each(table: TurnTable, rule: StopRule, max_turns: int) -> tuple[Floats, Ints]:
    """[N, T] what :meth:`StopRule.after_each` says of the first ``max_turns`` turns, else 0 and 1.

    Trajectories that are equal in what the rule reads are judged once.
    """
    columns = [getattr(table, name)[:, :max_turns] for name in rule.reads]
    read = np.column_stack([np.minimum(table.length, max_turns), *columns])
    kind = cluster_codes([row.tobytes() for row in read])
    _, examples = np.unique(kind, return_index=True)
    values = np.zeros((len(examples), table.correct.shape[1]))
    turns = np.ones_like(values, dtype=np.int64)
    for index, row in enumerate(examples):
        judged = rule.after_each(table.signals(row)[:max_turns], max_turns)
        for place, (value, turn) in enumerate(judged):
            values[index, place] = value
            turns[index, place] = turn
    return values[kind], turns[kind]


# --- curves -------------------------------------------------------------------------------------


def threshold_rules(rule: StopRule | None) -> list[Confident]:
    """``rule`` with each of :data:`THRESHOLDS`, or the paper's rule if it has no threshold.

    None of them if its score is a log-probability, which no threshold of the grid suits.
    """
    rule = rule if isinstance(rule, Confident) else Confident()
    grid = () if "logprob" in rule.score else THRESHOLDS
    return [replace(rule, threshold=gamma) for gamma in grid]


def curves(tables: Tables, rule: StopRule, max_turns: int) -> Row:
    """Every operating point of a policy, of which all ``max_turns`` turns were recorded.

    Returns:
        ``operating_point``: its row. ``fixed``: K = 1 to ``max_turns``. ``thresholds``: those of
        :func:`threshold_rules`, if any confidence is stated.

    Raises:
        ValueError: naming a problem whose turns are missing.
    """

    def adaptive(rule: StopRule) -> Row:
        point = {**asdict(rule), "max_turns": max_turns}  # type: ignore[call-overload]
        return {**point, "datasets": measured_under(tables, rule, max_turns)}

    rules = threshold_rules(rule) if any(one.has_checks for one in tables.values()) else []
    return {
        "operating_point": adaptive(rule),
        "fixed": [
            {"budget": budget, "datasets": measured_under(tables, None, budget)}
            for budget in range(1, max_turns + 1)
        ],
        "thresholds": [adaptive(one) for one in rules],
    }


def measured_under(tables: Tables, rule: StopRule | None, max_turns: int) -> dict[str, Row]:
    """The metrics of each data set under ``rule`` and T_max = ``max_turns``.

    Without a rule, of a fixed budget: ``esr`` and ``pse`` are 0, since nothing stops early.
    """
    return {name: measure(replay(one, rule, max_turns)) for name, one in tables.items()}
