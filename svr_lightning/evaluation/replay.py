"""Other stopping rules on trajectories that were recorded without any.

Under greedy decoding no prompt depends on the stopping rule, so one recording of T_max turns per
problem holds the outcome of every threshold and of every fixed budget (appendix "Fixed-Budget and
Threshold Sweeps"). Records are never changed; each function returns new ones.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from svr_lightning.core.stopping import returned_turn, should_stop
from svr_lightning.core.types import Verdict
from svr_lightning.evaluation.results import summarize


def replay_adaptive(record: Mapping[str, Any], threshold: float, max_turns: int) -> dict[str, Any]:
    """The record that adaptive stopping at ``threshold`` would have left.

    Args:
        record: with the turns up to the stop, or ``max_turns`` of them. One that could not be run
            stays as it is.
        threshold: gamma; above 1 no turn stops.
        max_turns: T_max. A gate that opens there is not an early stop.

    Raises:
        ValueError: naming the record, if no turn stops and turns up to ``max_turns`` are missing.
    """
    _check_turns(max_turns, "max_turns")
    if not record["turns"]:
        return dict(record)
    gates = [
        should_stop(Verdict(turn["verdict"]), turn["confidence"], turn["truncated"], threshold)
        for turn in record["turns"]
    ]
    try:
        stop = returned_turn(gates, max_turns)
    except ValueError as error:
        raise ValueError(f"record {record['id']!r} of {record['dataset']!r}: {error}") from error
    return _cut(record, stop, stopped_early=stop < max_turns)


def replay_fixed(record: Mapping[str, Any], budget: int) -> dict[str, Any]:
    """The record of a fixed budget of K turns: the answer of turn K is returned.

    Args:
        record: with at least ``budget`` turns. One that could not be run stays as it is.
        budget: K, from 1.

    Raises:
        ValueError: naming the record, if turns are missing.
    """
    _check_turns(budget, "budget")
    if not record["turns"]:
        return dict(record)
    if len(record["turns"]) < budget:
        raise ValueError(
            f"record {record['id']!r} of {record['dataset']!r}: a budget of {budget} turns, and "
            f"only {len(record['turns'])} are there; record without stopping"
        )
    return _cut(record, budget, stopped_early=False)


def fixed_budget_curve(
    records: Sequence[Mapping[str, Any]], budgets: Sequence[int]
) -> list[dict[str, Any]]:
    """The metrics under each fixed budget, of one data set or macro-averaged over several.

    Returns:
        One per budget: ``{"budget": K, metric: value, ...}`` with what :func:`macro_average`
        returns, which for records of one data set are its own values. ``esr`` and ``pse`` are 0:
        a fixed budget never stops early.
    """
    return [
        {
            "budget": budget,
            **summarize([replay_fixed(record, budget) for record in records])["macro"]["all"],
        }
        for budget in budgets
    ]


def _cut(record: Mapping[str, Any], last: int, *, stopped_early: bool) -> dict[str, Any]:
    return {
        **record,
        "turns": list(record["turns"][:last]),
        "returned_turn": last,
        "stopped_early": stopped_early,
    }


def _check_turns(value: int, name: str) -> None:
    if value < 1:
        raise ValueError(f"{name}={value} must be at least one turn")
