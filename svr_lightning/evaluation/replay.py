"""Stopping rules on trajectories that were recorded without any.

Under greedy decoding no prompt depends on the stopping rule, so one recording of T_max turns per
problem holds the outcome of every rule and of every fixed budget (appendix "Fixed-Budget and
Threshold Sweeps").
"""

import numpy as np

from svr_lightning.core.stopping import StopRule, gate
from svr_lightning.evaluation.table import Bools, Floats, Ints, Outcome, TurnTable


def replay(table: TurnTable, rule: StopRule, max_turns: int) -> Outcome:
    """The outcome of adaptive inference with ``rule`` and T_max = ``max_turns``.

    Args:
        table: with each problem's turns up to its stop, or ``max_turns`` of them.
        rule: when a trajectory ends and which turn is returned.
        max_turns: T_max. A gate that opens there is not an early stop.

    Raises:
        ValueError: naming the problem, if no turn stops and turns up to ``max_turns`` are missing.
    """
    _check_turns(max_turns, "max_turns")
    gates = open_gates(table, rule)[:, :max_turns]
    stopped = gates.any(1)
    ran = table.length > 0
    short = np.flatnonzero(ran & ~stopped & (table.length < max_turns))
    if len(short):
        raise ValueError(
            f"{_name(table, short[0])}: no turn stopped and only {table.length[short[0]]} of "
            f"{max_turns} turns are there"
        )
    last = np.full(len(table.ids), max_turns)
    if gates.shape[1]:
        last = np.where(stopped, gates.argmax(1) + 1, last)
    returned = last
    if rule.fallback == "most_confident" and table.self_checked:
        returned = np.where(stopped, last, _most_confident(table, rule, max_turns))
    return Outcome(
        returned=np.where(ran, returned, 0),
        observed=np.where(ran, last, 0),
        stopped_early=ran & (last < max_turns),
    )


def fixed_budget(table: TurnTable, budget: int) -> Outcome:
    """The outcome of a fixed budget of K turns: the answer of turn K is returned.

    Raises:
        ValueError: naming the problem, if turns are missing.
    """
    _check_turns(budget, "budget")
    ran = table.length > 0
    short = np.flatnonzero(ran & (table.length < budget))
    if len(short):
        raise ValueError(
            f"{_name(table, short[0])}: a budget of {budget} turns, and only "
            f"{table.length[short[0]]} are there"
        )
    turns = np.where(ran, budget, 0)
    return Outcome(returned=turns, observed=turns, stopped_early=np.zeros(len(ran), dtype=np.bool_))


def open_gates(table: TurnTable, rule: StopRule) -> Bools:
    """[N, T] where a turn would end its trajectory under ``rule``."""
    gates = gate(
        rule,
        claims_correct=table.verdict == 1,
        evidence=evidence(table, rule),
        truncated=table.truncated,
        repeated=table.repeats,
    )
    return np.asarray(gates & table.has_turn())


def evidence(table: TurnTable, rule: StopRule) -> Floats:
    """[N, T] the number that ``rule`` compares with its threshold."""
    if rule.evidence == "stated":
        return table.confidence
    known = ~np.isnan(table.verdict_probability)
    other = table.verdict_probability
    if rule.evidence == "product":
        other = table.confidence * table.verdict_probability
    return np.where(known, other, table.confidence)


def _most_confident(table: TurnTable, rule: StopRule, max_turns: int) -> Ints:
    """[N] the best turn by :func:`svr_lightning.core.stopping.answer_turn` if none stopped."""
    best = table.has_turn()[:, :max_turns]
    verdict_order = np.where(table.verdict == 1, 2, np.where(table.verdict == -1, 1, 0))
    for key in (~table.truncated, evidence(table, rule), verdict_order):
        values = np.where(best, key[:, :max_turns].astype(np.float64), -np.inf)
        best = best & (values == values.max(1, keepdims=True, initial=-np.inf))
    return best.argmax(1) + 1 if best.shape[1] else np.zeros(len(table.ids), dtype=np.int64)


def _name(table: TurnTable, row: int) -> str:
    return f"record {table.ids[row]!r} of {table.dataset!r}"


def _check_turns(value: int, name: str) -> None:
    if value < 1:
        raise ValueError(f"{name}={value} must be at least one turn")
