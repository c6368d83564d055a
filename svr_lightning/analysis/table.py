"""Recorded trajectories as columns, and the metrics of what a stopping rule makes of them.

From records to numbers::

    tables = turn_tables(read_samples("samples.jsonl"))  # {data set: TurnTable}, as it was run
    table = replay(tables["toy"], Confident(), 10)       # the same turns under another rule
    table.problems["turns"], table.checks["confidence"]  # a row per problem, per self-check
    table.values()                                       # all metrics that the method has

Shapes: N problems of one data set, T the most turns that any of them has, O observed turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.analysis.records import SampleRecord
from svr_lightning.core.metrics import DEFINITIONS, NO_VERDICT, VERDICT_CODES, value_of
from svr_lightning.core.stopping import Rule, StopRule, ending
from svr_lightning.core.types import StopSignals

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TurnTable:
    """The recorded turns of one data set, and where a stopping rule ends each trajectory.

    ``rule`` and ``max_turns`` made ``returned``, ``observed``, ``stopped_early`` and ``accepted``,
    and every metric that follows from them. Entries beyond a problem's turns are never read.
    """

    dataset: str
    ids: tuple[str, ...]
    """[N] of the problems."""
    cluster: Ints
    """[N] equal numbers for problems that count as one; numbered by first occurrence."""
    length: Ints
    """[N] recorded turns; 0 for a problem that could not be run, which counts as wrong."""
    correct: Bools
    """[N, T] labels y."""
    verdict: Ints
    """[N, T] 1, 0, -1 for CORRECT, INCORRECT, UNSURE; -2 without a self-check."""
    confidence: Floats
    """[N, T] stated confidence in [0, 1]; nan without a self-check."""
    signals: tuple[tuple[StopSignals, ...], ...]
    """[N] the signals of each problem's turns that stopping rules may read."""
    prompt_tokens: Ints
    """[N, T]"""
    completion_tokens: Ints
    """[N, T]"""
    returned: Ints
    """[N] the turn (from 1) whose answer is returned; 0 for a problem that could not be run."""
    observed: Ints
    """[N] generated turns, whose tokens count; ``returned`` unless a turn before the last one is
    returned."""
    stopped_early: Bools
    """[N] whether a turn before T_max ended the trajectory."""
    accepted: Bools
    """[N] whether ``rule`` accepts the last observed turn, at T_max too."""
    rule: Rule[Any] | str | None
    """What ends trajectories: None for every turn, a text if it is no single rule of this package:
    the class path of one that is not imported, or "several rules"."""
    max_turns: int
    """T_max."""

    @property
    def whole(self) -> bool:
        """Whether every problem that ran has all T_max turns, so that any rule can be replayed."""
        every = (self.length == self.max_turns) | (self.length == 0)
        cut = self.stopped_early & (self.observed == self.length)  # where T_max is not known
        return bool(every.all()) and not cut.any()

    @property
    def has_checks(self) -> bool:
        """Whether any recorded turn has a self-check."""
        return bool((self.verdict != NO_VERDICT).any())

    def right_at(self, turn: Ints) -> Bools:
        """[N] whether the answer at each problem's ``turn`` (from 1) is right; not at turn 0."""
        nothing_first = np.pad(self.correct, ((0, 0), (1, 0)))
        return np.asarray(nothing_first[np.arange(len(turn)), turn])

    @cached_property
    def seen(self) -> Bools:
        """[N, T] which turns were generated."""
        return np.asarray(np.arange(self.correct.shape[1]) < self.observed[:, None])

    @cached_property
    def problems(self) -> Mapping[str, Ints]:
        """[N] a ``row`` per problem with what its metrics are computed from.

        ``any_correct`` is up to the last observed turn; tokens are those of all observed turns.
        """
        prompt = (self.prompt_tokens * self.seen).sum(1)
        completion = (self.completion_tokens * self.seen).sum(1)
        columns = {
            "row": np.arange(len(self.ids)),
            "final_correct": self.right_at(self.returned),
            "first_correct": self.right_at(np.minimum(self.observed, 1)),
            "any_correct": (self.correct & self.seen).any(1),
            "turns": self.observed,
            "stopped_early": self.stopped_early,
            "accepted": self.accepted,
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        return {name: column.astype(np.int64) for name, column in columns.items()}

    @cached_property
    def checks(self) -> Mapping[str, NDArray[Any]]:
        """[O] the observed turns that have a self-check, problem by problem.

        ``row`` of the problem, whether it is the ``first`` and the ``returned`` one, ``verdict``,
        ``confidence``, ``correct``.
        """
        checked = self.seen & (self.verdict != NO_VERDICT)
        row, index = np.nonzero(checked)
        return {
            "row": row,
            "first": index == 0,
            "returned": index + 1 == self.returned[row],
            "verdict": self.verdict[checked],
            "confidence": self.confidence[checked],
            "correct": self.correct[checked].astype(np.int64),
        }

    def rows_of(self, metric: str) -> Mapping[str, NDArray[Any]]:
        """The rows that a metric counts: problems, or all self-checks, the first, the returned."""
        kind = DEFINITIONS[metric].rows
        if kind == "problems":
            return self.problems
        return {k: v if kind == "turns" else v[self.checks[kind]] for k, v in self.checks.items()}

    def value(self, metric: str) -> float:
        """A metric; nan if it is undefined."""
        rows = self.rows_of(metric)
        return value_of(metric, *(rows[name] for name in DEFINITIONS[metric].columns))

    def values(self) -> dict[str, float]:
        """Every metric that the method has, defined or not."""
        # A table without any turn does not rule self-checks out.
        checked = not self.length.any() or self.has_checks
        return {
            name: self.value(name)
            for name, definition in DEFINITIONS.items()
            if checked or not definition.of_turns
        }

    def select(self, rows: NDArray[Any]) -> "TurnTable":
        """The table of some problems, by index or mask; an index may come twice."""
        chosen = np.arange(len(self.ids))[rows]
        columns: dict[str, Any] = {
            name: getattr(self, name)[chosen] for name in (*_COLUMNS, *_TURN_COLUMNS)
        }
        columns["cluster"] = cluster_codes(self.cluster[chosen].tolist())
        columns |= {n: tuple(getattr(self, n)[i] for i in chosen) for n in ("ids", "signals")}
        return replace(self, **columns)


_COLUMNS = ("length", "returned", "observed", "stopped_early", "accepted")
_TURN_COLUMNS: dict[str, tuple[type, Any]] = {
    "correct": (np.bool_, False),
    "verdict": (np.int64, NO_VERDICT),
    "confidence": (np.float64, np.nan),
    "prompt_tokens": (np.int64, 0),
    "completion_tokens": (np.int64, 0),
}
"""Type of each column of turns, and what stands beyond a problem's turns."""


def turn_tables(
    records: Sequence[SampleRecord],
    rule: Rule[Any] | str | None = None,
    max_turns: int | None = None,
) -> dict[str, TurnTable]:
    """One table per data set, in the order in which the data sets first occur.

    Every recorded turn goes in, also those behind the returned one.

    Args:
        records: of an evaluation.
        rule: what ended the trajectories, see :attr:`TurnTable.rule`.
        max_turns: T_max; None for the longest recorded trajectory.

    Raises:
        ValueError: naming a record with a turn that has no label.
    """
    if max_turns is None:
        max_turns = max((len(record.turns) for record in records), default=0)
    rows: dict[str, list[SampleRecord]] = {}
    for record in records:
        rows.setdefault(record.dataset, []).append(record)
    return {name: _turn_table(name, problems, rule, max_turns) for name, problems in rows.items()}


def cluster_codes(labels: Sequence[object]) -> Ints:
    """[N] equal numbers for equal labels, numbered by first occurrence.

    Examples:
        >>> cluster_codes(["b", "a", "b"]).tolist()
        [0, 1, 0]
    """
    known: dict[object, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)


def _accepted(record: SampleRecord, rule: Rule[Any] | str | None, max_turns: int) -> bool:
    """Whether the rule accepts the last observed turn; earlier versions did not record it."""
    if record.accepted is not None:
        return record.accepted
    seen = record.signals[: record.observed]
    if isinstance(rule, StopRule) and seen:
        end = ending(rule, seen, max_turns)
        return end is not None and end.accepted
    return record.stopped_early


def _turn_table(
    dataset: str, records: Sequence[SampleRecord], rule: Rule[Any] | str | None, max_turns: int
) -> TurnTable:
    size = max((len(record.turns) for record in records), default=0)
    columns: dict[str, NDArray[Any]] = {
        name: np.full((len(records), size), empty, dtype=dtype)
        for name, (dtype, empty) in _TURN_COLUMNS.items()
    }
    for row, record in enumerate(records):
        for index, turn in enumerate(record.turns):
            if turn.correct is None:
                raise ValueError(
                    f"record {record.id!r} of {dataset!r} has no label at turn {turn.turn}; "
                    "metrics are for problems with a reference"
                )
            for name, column in columns.items():
                value = getattr(turn, name)
                if value is not None:
                    column[row, index] = VERDICT_CODES[value] if name == "verdict" else value
    return TurnTable(
        dataset=dataset,
        ids=tuple(record.id for record in records),
        # A problem without a cluster gets a label that equals no other: no string equals a tuple.
        cluster=cluster_codes([(r.id,) if r.cluster is None else r.cluster for r in records]),
        signals=tuple(record.signals for record in records),
        length=np.array([len(record.turns) for record in records]),
        returned=np.array([record.returned_turn for record in records]),
        observed=np.array([record.observed for record in records]),
        stopped_early=np.array([record.stopped_early for record in records]),
        accepted=np.array([_accepted(record, rule, max_turns) for record in records]),
        rule=rule,
        max_turns=max_turns,
        **columns,
    )


def pool(tables: Mapping[str, TurnTable]) -> TurnTable:
    """All problems of all data sets in one table. No cluster spans two sets.

    T_max is the largest of theirs.
    """
    parts = list(tables.values())
    one_rule = all(table.rule == parts[0].rule for table in parts)
    width = max(table.correct.shape[1] for table in parts)

    def padded(column: NDArray[Any], empty: Any) -> NDArray[Any]:
        beyond = ((0, 0), (0, width - column.shape[1]))
        return np.pad(column, beyond, constant_values=empty)

    columns = {
        name: np.concatenate([padded(getattr(table, name), empty) for table in parts])
        for name, (_, empty) in _TURN_COLUMNS.items()
    }
    columns |= {
        name: np.concatenate([getattr(table, name) for table in parts]) for name in _COLUMNS
    }
    named = [(name, code) for name, table in tables.items() for code in table.cluster.tolist()]
    return TurnTable(
        dataset=" + ".join(tables),
        ids=tuple(f"{name}/{one}" for name, table in tables.items() for one in table.ids),
        cluster=cluster_codes(named),
        signals=tuple(turns for table in parts for turns in table.signals),
        rule=parts[0].rule if one_rule else "several rules",
        max_turns=max(table.max_turns for table in parts),
        **columns,
    )
