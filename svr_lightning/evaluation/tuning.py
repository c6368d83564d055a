"""Which thresholds keep promises on recorded problems, and which of them costs least.

The statistics are in :mod:`svr_lightning.evaluation.risk_control`; here they meet recorded
trajectories. The population is that of the problems given: those of several data sets count as
one sample, each problem once, and a promise is about their mixture.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from svr_lightning.core.stopping import StopRule
from svr_lightning.evaluation import risk_control
from svr_lightning.evaluation.replay import replay
from svr_lightning.evaluation.table import TurnTable

_HALVINGS = 40
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskConstraints:
    """What is to hold of new problems, on average; None is no promise."""

    max_pse: float | None = None
    """Share of problems that stop before T_max with a wrong answer."""
    min_accuracy: float | None = None
    max_tokens: float | None = None
    """Mean prompt and completion tokens per problem, over all its turns."""
    token_bound: float | None = None
    """Tokens that no problem can exceed, known beforehand: T_max times the model's length. The
    promise on tokens needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One threshold. Bounds are one-sided, at the level of its test; None where not tested."""

    threshold: float
    pse: float
    accuracy: float
    tokens: float
    turns: float
    level: float
    """Share of delta it was tested at; 0 where no test was left for it."""
    p_value: float
    """The largest of the p-values of its promises."""
    pse_bound: float | None
    accuracy_bound: float | None
    tokens_bound: float | None
    broken: tuple[str, ...]
    """The promises that could not be certified at its level: max_pse, min_accuracy, max_tokens."""
    certified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Every threshold, and the choice."""

    n: int
    """Problems."""
    candidates: tuple[Candidate, ...]
    """From the strictest threshold down."""
    choice: Candidate | None
    """The certified one with the fewest tokens."""
    smallest_pse: float | None
    """The least max_pse with which these samples would have certified a threshold, the other
    promises as they are; None where not even 1 would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Per problem, [N]."""

    premature: NDArray[np.bool_]
    wrong: NDArray[np.bool_]
    tokens: Floats
    turns: Floats


def tune(
    tables: Sequence[TurnTable],
    rule: StopRule,
    thresholds: Sequence[float],
    promises: RiskConstraints,
    *,
    max_turns: int,
    delta: float,
) -> Tuning:
    """Test each threshold of ``rule`` and choose.

    PSE alone is kept most easily by the strictest thresholds, so that delta is shared among a few
    starts. Other promises may be kept in the middle of the grid alone: then every threshold is a
    start, which certifies all that Bonferroni's correction would, and more.

    Args:
        tables: the calibration problems, with every turn recorded.
        rule: what else a stop needs; its own threshold is not used.
        thresholds: the grid, chosen without looking at ``tables``.
        promises: all of them have to hold; the p-value of a threshold is the largest of theirs.
        max_turns: T_max.
        delta: 1 - confidence.

    Raises:
        ValueError: if turns are missing for a threshold, or a problem exceeds the token bound.
    """
    grid = sorted(set(thresholds), reverse=True)
    columns = [_columns(tables, replace(rule, threshold=value), max_turns) for value in grid]
    pse_alone = promises.min_accuracy is None and promises.max_tokens is None
    starts = risk_control.STARTS if pse_alone else len(grid)
    levels = risk_control.start_levels(len(grid), delta, starts)
    p_values = [_p_values(column, promises) for column in columns]
    largest = np.array([max(values.values()) for values in p_values])
    certified, tested = risk_control.certify(largest, levels)
    candidates = tuple(
        _candidate(value, column, values, promises, float(level))
        for value, column, values, level in zip(grid, columns, p_values, tested, strict=True)
    )
    best = risk_control.cheapest(
        certified,
        np.array([row.tokens for row in candidates]),
        np.array([row.accuracy for row in candidates]),
    )
    return Tuning(
        n=sum(len(table.ids) for table in tables),
        candidates=candidates,
        choice=None if best is None else candidates[best],
        smallest_pse=_smallest_pse(columns, promises, levels),
    )


def _columns(tables: Sequence[TurnTable], rule: StopRule, max_turns: int) -> _Columns:
    parts = []
    for table in tables:
        outcome = replay(table, rule, max_turns)
        wrong = ~table.at(table.correct, outcome.returned)
        spent = (table.prompt_tokens + table.completion_tokens) * table.observed(outcome)
        parts.append((outcome.stopped_early & wrong, wrong, spent.sum(1), outcome.observed))
    premature, wrong, tokens, turns = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    return _Columns(
        premature=premature,
        wrong=wrong,
        tokens=tokens.astype(np.float64),
        turns=turns.astype(np.float64),
    )


def _p_values(columns: _Columns, promises: RiskConstraints) -> dict[str, float]:
    n = len(columns.wrong)
    values = {}
    if promises.max_pse is not None:
        failures = int(columns.premature.sum())
        values["max_pse"] = risk_control.share_p_value(failures, n, promises.max_pse)
    if promises.min_accuracy is not None:
        failures = int(columns.wrong.sum())
        values["min_accuracy"] = risk_control.share_p_value(failures, n, 1 - promises.min_accuracy)
    if promises.max_tokens is not None and promises.token_bound is not None:
        values["max_tokens"] = risk_control.mean_p_value(
            columns.tokens, promises.max_tokens, promises.token_bound
        )
    return values


def _candidate(
    threshold: float,
    columns: _Columns,
    p_values: dict[str, float],
    promises: RiskConstraints,
    level: float,
) -> Candidate:
    n, bounds = len(columns.wrong), {}
    if level > 0:
        premature, wrong = int(columns.premature.sum()), int(columns.wrong.sum())
        bounds["pse"] = risk_control.share_upper_bound(premature, n, level)
        bounds["accuracy"] = 1 - risk_control.share_upper_bound(wrong, n, level)
        if promises.token_bound is not None:
            bounds["tokens"] = risk_control.mean_upper_bound(
                columns.tokens, promises.token_bound, level
            )
    broken = tuple(name for name, value in p_values.items() if level == 0 or value > level)
    return Candidate(
        threshold=threshold,
        pse=float(columns.premature.mean()),
        accuracy=1 - float(columns.wrong.mean()),
        tokens=float(columns.tokens.mean()),
        turns=float(columns.turns.mean()),
        level=level,
        p_value=max(p_values.values()),
        pse_bound=bounds.get("pse"),
        accuracy_bound=bounds.get("accuracy"),
        tokens_bound=bounds.get("tokens"),
        broken=broken,
        certified=not broken,
    )


def _smallest_pse(
    columns: Sequence[_Columns], promises: RiskConstraints, levels: Floats
) -> float | None:
    """Bisection: a larger promise never certifies less."""
    others = replace(promises, max_pse=None)
    fixed = [max(_p_values(column, others).values(), default=0.0) for column in columns]
    failures = np.array([int(column.premature.sum()) for column in columns])
    n = len(columns[0].wrong)

    def some(promise: float) -> bool:
        tails = risk_control.binomial_tails(n, promise) if promise < 1 else np.zeros(n + 1)
        p_values = np.maximum(tails[failures], fixed)
        return bool(risk_control.certify(p_values, levels)[0].any())

    if not some(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if some(middle) else (middle, high)
    return high
