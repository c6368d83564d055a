"""Recorded trajectories as columns, and the per-problem table from which all numbers are computed.

From records to numbers::

    tables = turn_tables(read_samples("samples.jsonl"))  # {data set: TurnTable}: recorded turns
    outcome = replay(tables["toy"], Confident(), 10)     # or tables["toy"].outcome, as it was run
    table = problem_table(tables["toy"], outcome)        # ProblemTable: one row per problem
    table.values()                                       # all metrics that the method has
    table.ratios()["pse"]                                # [N] numerators and denominators

Shapes: N problems of one data set, T the most turns that any of them has, O observed turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.analysis.records import SampleRecord, unique
from svr_lightning.core.metrics import DEFINITIONS, NO_VERDICT, VERDICT_CODES, value_of
from svr_lightning.core.types import StopSignals

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """The outcome of a stopping rule for each trajectory."""

    returned: Ints
    """[N] the turn (from 1) whose answer is returned; 0 for a problem that could not be run."""
    observed: Ints
    """[N] generated turns, whose tokens count; ``returned`` unless a turn before the last one is
    returned."""
    stopped_early: Bools
    """[N] whether a turn before T_max ended the trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTable:
    """The recorded turns of one data set. Entries beyond a problem's turns are never read."""

    dataset: str
    ids: tuple[str, ...]
    """[N] of the problems."""
    cluster: Ints
    """[N] equal numbers for problems that count as one; numbered by first occurrence."""
    length: Ints
    """[N] recorded turns; 0 for a problem that could not be run, which counts as wrong."""
    correct: Bools
    """[N, T] labels y."""
    truncated: Bools
    """[N, T]"""
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
    outcome: Endings
    """How each trajectory ended when it was recorded, or in a table of
    :func:`~svr_lightning.analysis.replay.replayed` under another rule."""

    @property
    def self_checked(self) -> bool:
        """Whether the method states self-checks; a table without any turn does not rule it out."""
        return not self.length.any() or bool((self.verdict != NO_VERDICT).any())

    def observed(self, outcome: Endings) -> Bools:
        """[N, T] which entries ``outcome`` generated."""
        return np.asarray(np.arange(self.correct.shape[1]) < outcome.observed[:, None])

    def at(self, values: NDArray[Any], turn: Ints) -> NDArray[Any]:
        """[N] the entry of ``values`` [N, T] at each problem's ``turn`` (from 1); 0 at turn 0."""
        if not self.correct.shape[1]:
            return np.zeros(len(self.ids), dtype=values.dtype)
        picked = np.take_along_axis(values, np.maximum(turn - 1, 0)[:, None], axis=1)[:, 0]
        return np.where(turn > 0, picked, np.zeros((), dtype=values.dtype))

    def select(self, rows: NDArray[Any]) -> "TurnTable":
        """The table of some problems, by index or mask; an index may come twice."""
        chosen = np.arange(len(self.ids))[rows]
        columns: dict[str, Any] = {
            name: getattr(self, name)[chosen] for name in ("length", *_TURN_COLUMNS)
        }
        columns["cluster"] = cluster_codes(self.cluster[chosen].tolist())
        outcome = Endings(
            **{f.name: getattr(self.outcome, f.name)[chosen] for f in fields(Endings)}
        )
        columns["ids"] = tuple(self.ids[i] for i in chosen)
        columns["signals"] = tuple(self.signals[i] for i in chosen)
        return replace(self, outcome=outcome, **columns)


_TURN_COLUMNS: dict[str, tuple[type, Any]] = {
    "correct": (np.bool_, False),
    "truncated": (np.bool_, False),
    "verdict": (np.int64, NO_VERDICT),
    "confidence": (np.float64, np.nan),
    "prompt_tokens": (np.int64, 0),
    "completion_tokens": (np.int64, 0),
}
"""Type of each column of turns, and what stands beyond a problem's turns."""


def turn_tables(records: Sequence[SampleRecord]) -> dict[str, TurnTable]:
    """One table per data set, in the order in which the data sets first occur.

    Every recorded turn goes in, also those behind the returned one. A record that repeats
    another's data set and id counts once.

    Raises:
        ValueError: naming a record with a turn that has no label.
    """
    rows: dict[str, list[SampleRecord]] = {}
    for record in unique(records):
        rows.setdefault(record.dataset, []).append(record)
    return {name: _turn_table(name, problems) for name, problems in rows.items()}


def cluster_codes(labels: Sequence[object]) -> Ints:
    """[N] equal numbers for equal labels, numbered by first occurrence.

    Examples:
        >>> cluster_codes(["b", "a", "b"]).tolist()
        [0, 1, 0]
    """
    known: dict[object, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)


def _turn_table(dataset: str, records: Sequence[SampleRecord]) -> TurnTable:
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
        length=np.array([len(record.turns) for record in records], dtype=np.int64),
        signals=tuple(record.signals for record in records),
        outcome=Endings(
            returned=np.array([record.returned_turn for record in records], dtype=np.int64),
            observed=np.array([record.observed for record in records], dtype=np.int64),
            stopped_early=np.array([record.stopped_early for record in records], dtype=np.bool_),
        ),
        **columns,
    )


def pool(tables: Mapping[str, TurnTable]) -> TurnTable:
    """All problems of all data sets in one table. No cluster spans two sets."""
    parts = list(tables.values())
    width = max(table.correct.shape[1] for table in parts)

    def padded(column: NDArray[Any], empty: Any) -> NDArray[Any]:
        beyond = ((0, 0), (0, width - column.shape[1]))
        return np.pad(column, beyond, constant_values=empty)

    columns = {
        name: np.concatenate([padded(getattr(table, name), empty) for table in parts])
        for name, (_, empty) in _TURN_COLUMNS.items()
    }

    outcome = {
        f.name: np.concatenate([getattr(table.outcome, f.name) for table in parts])
        for f in fields(Endings)
    }
    named = [(name, code) for name, table in tables.items() for code in table.cluster.tolist()]
    return TurnTable(
        dataset=" + ".join(tables),
        ids=tuple(f"{name}/{one}" for name, table in tables.items() for one in table.ids),
        cluster=cluster_codes(named),
        length=np.concatenate([table.length for table in parts]),
        signals=tuple(turns for table in parts for turns in table.signals),
        outcome=Endings(**outcome),
        **columns,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemTable:
    """One row per problem with the values of an outcome."""

    cluster: Ints
    """[N] see :class:`TurnTable`."""
    problems: Mapping[str, Ints]
    """[N] ``final_correct``, ``first_correct``, ``any_correct`` up to the last observed turn,
    ``turns`` observed, ``stopped_early``, and ``prompt_tokens``, ``completion_tokens`` and
    ``total_tokens`` of all observed turns."""
    turns: Mapping[str, NDArray[Any]]
    """[O] the observed turns that have a self-check, problem by problem: ``row`` of the problem,
    whether it is the ``first`` and the ``returned`` one, ``verdict``, ``confidence``,
    ``correct``."""
    self_checked: bool
    """Whether the method states self-checks."""

    def turns_of(self, metric: str) -> Mapping[str, NDArray[Any]]:
        """The turns that a metric of turns counts: all of them, the first or the returned ones."""
        rows = DEFINITIONS[metric].rows
        if rows == "turns":
            return self.turns
        return {name: column[self.turns[rows]] for name, column in self.turns.items()}

    def value(self, metric: str) -> float:
        """A metric; nan if it is undefined."""
        return value_of(metric, *self._columns(metric))

    def values(self) -> dict[str, float]:
        """Every metric that the method has, defined or not."""
        return {name: self.value(name) for name in self._names()}

    def ratios(self) -> dict[str, tuple[Floats, Floats]]:
        """[N] numerators and denominators, whose sums over problems make the metric.

        Of every metric that the method has but AUROC, which is no such ratio.
        """
        found = {}
        for name in self._names():
            definition = DEFINITIONS[name]
            if definition.terms is None:
                continue
            above, below = definition.terms(*self._columns(name))
            if definition.of_turns:
                row, size = self.turns_of(name)["row"], len(self.cluster)
                above = np.bincount(row, weights=above, minlength=size)
                below = np.bincount(row, weights=below, minlength=size)
            found[name] = above.astype(np.float64), below.astype(np.float64)
        return found

    def _names(self) -> list[str]:
        return [n for n, one in DEFINITIONS.items() if self.self_checked or not one.of_turns]

    def _columns(self, metric: str) -> list[NDArray[Any]]:
        """The columns that ``metric`` is computed from, [N] or [O]."""
        definition = DEFINITIONS[metric]
        rows = self.turns_of(metric) if definition.of_turns else self.problems
        return [rows[name] for name in definition.columns]


def problem_table(table: TurnTable, outcome: Endings) -> ProblemTable:
    """The per-problem table of one data set and one outcome."""
    seen = table.observed(outcome)
    prompt = (table.prompt_tokens * seen).sum(1)
    completion = (table.completion_tokens * seen).sum(1)
    problems = {
        "final_correct": table.at(table.correct, outcome.returned),
        "first_correct": table.at(table.correct, np.minimum(outcome.observed, 1)),
        "any_correct": (table.correct & seen).any(1),
        "turns": outcome.observed,
        "stopped_early": outcome.stopped_early,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    checked = seen & (table.verdict != NO_VERDICT)
    row, index = np.nonzero(checked)
    return ProblemTable(
        cluster=table.cluster,
        problems={name: column.astype(np.int64) for name, column in problems.items()},
        turns={
            "row": row,
            "first": index == 0,
            "returned": index + 1 == outcome.returned[row],
            "verdict": table.verdict[checked],
            "confidence": table.confidence[checked],
            "correct": table.correct[checked].astype(np.int64),
        },
        self_checked=table.self_checked,
    )
