"""Recorded trajectories as columns, and the metrics of what a stopping rule makes of them.

From records to numbers::

    tables = turn_tables(read_samples("samples.jsonl"))  # {data set: TurnTable}, as it was run
    table = replay(tables["toy"], Confident(), 10)       # the same turns under another rule
    table.problems["turns"], table.checks["confidence"]  # a row per problem, per self-check
    table.values()                                       # all metrics that the method has

Shapes: N problems of one data set, T the most turns that any has, at least 1, O observed turns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svr_lightning.analysis.records import SampleRecord
from svr_lightning.core.metrics import DEFINITIONS, NO_VERDICT, VERDICT_CODES, value_of
from svr_lightning.core.stopping import StopRule, ending
from svr_lightning.core.types import StopSignals, TokenScores

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FirstRight:
    """Stops at the first correct answer: an upper bound for rules, which cannot read labels."""

    def __str__(self) -> str:
        return "the first right answer (reads labels)"


AnyRule = StopRule | FirstRight


@dataclass(frozen=True, kw_only=True, eq=False)
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
    """[N, T] 1, 0, -1 for CORRECT, INCORRECT, UNSURE; -2 where none is stated."""
    confidence: Floats
    """[N, T] stated confidence in [0, 1]; nan without a self-check."""
    truncated: Bools
    """[N, T]"""
    answer: Ints
    """[N, T] equal numbers for equal answers of a problem; 0 if none can be read."""
    verdict_probability: Floats
    """[N, T] the four :class:`~svr_lightning.core.types.TokenScores`; nan where not known."""
    answer_logprob: Floats
    completion_logprob: Floats
    solution_logprob: Floats
    prompt_tokens: Ints
    """[N, T] 0 where they were not counted."""
    completion_tokens: Ints
    """[N, T] Without a count of prompt tokens, those of the prompt may be among them."""
    returned: Ints
    """[N] the turn (from 1) whose answer is returned; 0 for a problem that could not be run."""
    observed: Ints
    """[N] generated turns, whose tokens count; ``returned`` unless a turn before the last one is
    returned."""
    stopped_early: Bools
    """[N] whether a turn before T_max ended the trajectory."""
    accepted: Bools
    """[N] whether ``rule`` accepts the last observed turn, at T_max too."""
    rule: AnyRule | str | None
    """What ends trajectories: None for every turn; the class path of a rule outside of this
    package, which is not imported."""
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
        return not np.isnan(self.confidence).all()

    def signals(self, row: int) -> list[StopSignals]:
        """What stopping rules may read of a problem's turns."""
        columns = [getattr(self, name)[row, : self.length[row]] for name in StopSignals._fields]
        turns = []
        for verdict, *others in zip(*(column.tolist() for column in columns), strict=True):
            known: list[Any] = [None if value != value else value for value in others]
            turns.append(StopSignals(_VERDICTS.get(verdict), *known))
        return turns

    def right_at(self, turn: Ints) -> Bools:
        """[N] whether the answer at each problem's ``turn`` (from 1) is right; not at turn 0."""
        return at_turn(self.correct, turn)

    @cached_property
    def seen(self) -> Bools:
        """[N, T] which turns were generated."""
        return np.asarray(np.arange(self.correct.shape[1]) < self.observed[:, None])

    @property
    def turn_tokens(self) -> Ints:
        """[N, T] prompt and completion tokens; 0 where they were not counted."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def total_tokens(self) -> Floats:
        """[N] prompt and completion tokens of all observed turns; nan where some are not known."""
        return at_turn(spent_by_turn(self.turn_tokens), self.observed)

    @cached_property
    def problems(self) -> Mapping[str, NDArray[Any]]:
        """[N] a ``row`` per problem with what its metrics are computed from.

        ``any_correct`` is up to the last observed turn; tokens are those of all observed turns,
        and nan where some are not known.
        """
        prompts = at_turn(spent_by_turn(self.prompt_tokens), self.observed)
        columns = {
            "row": np.arange(len(self.ids)),
            "final_correct": self.right_at(self.returned),
            "first_correct": self.right_at(np.minimum(self.observed, 1)),
            "any_correct": np.asarray((self.correct & self.seen).any(1)),
            "turns": self.observed,
            "stopped_early": self.stopped_early,
            "accepted": self.accepted,
        }
        return {
            **{name: column.astype(np.int64) for name, column in columns.items()},
            "prompt_tokens": prompts,
            "completion_tokens": self.total_tokens - prompts,
            "total_tokens": self.total_tokens,
        }

    @cached_property
    def checks(self) -> Mapping[str, NDArray[Any]]:
        """[O] the observed turns that state a confidence, problem by problem.

        ``row`` of the problem, whether it is the ``first`` and the ``returned`` one, ``verdict``,
        ``confidence``, ``correct``.
        """
        checked = self.seen & ~np.isnan(self.confidence)
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
            if checked or definition.rows == "problems"
        }

    def select(self, rows: NDArray[Any]) -> "TurnTable":
        """The table of some problems, by index or mask; an index may come twice."""
        chosen = np.arange(len(self.ids))[rows]
        columns: dict[str, Any] = {
            name: getattr(self, name)[chosen] for name in (*_COLUMNS, *_TURN_COLUMNS)
        }
        columns["cluster"] = cluster_codes(self.cluster[chosen].tolist())
        columns["ids"] = tuple(self.ids[row] for row in chosen)
        return replace(self, **columns)


_COLUMNS = ("length", "returned", "observed", "stopped_early", "accepted")
_TURN_COLUMNS: dict[str, tuple[type, Any]] = {
    "correct": (np.bool_, False),
    "verdict": (np.int8, NO_VERDICT),
    "confidence": (np.float64, np.nan),
    "truncated": (np.bool_, False),
    "answer": (np.int32, 0),
    **dict.fromkeys(TokenScores._fields, (np.float64, np.nan)),
    "prompt_tokens": (np.int64, 0),
    "completion_tokens": (np.int64, 0),
}
"""Type of each column of turns, and its value beyond a problem's turns. Signals are in order."""
_VERDICTS = {code: verdict for verdict, code in VERDICT_CODES.items()}


def at_turn(column: NDArray[Any], turn: Ints) -> NDArray[Any]:
    """[N] the entry of a [N, T] column at each problem's ``turn`` (from 1); 0 at turn 0."""
    entries = np.asarray(column[np.arange(len(turn)), turn - 1])
    entries[turn == 0] = 0
    return entries


def spent_by_turn(tokens: Ints) -> Floats:
    """[N, T] sums of [N, T] up to each turn; nan from the first 0 on, which stands for unknown."""
    return np.cumsum(np.where(tokens == 0, np.nan, tokens), 1)


def empty_turns(problems: int, turns: int) -> dict[str, NDArray[Any]]:
    """The [N, T] columns of turns, without any."""
    return {
        name: np.full((problems, turns), empty, dtype=dtype)
        for name, (dtype, empty) in _TURN_COLUMNS.items()
    }


def turn_tables(
    records: Iterable[SampleRecord],
    rule: AnyRule | str | None = None,
    max_turns: int | None = None,
) -> dict[str, TurnTable]:
    """One table per data set, in the order in which the data sets first occur.

    Every recorded turn goes in, those after the returned one included. No record is kept.

    Args:
        records: of an evaluation.
        rule: what ended the trajectories, see :attr:`TurnTable.rule`.
        max_turns: T_max; None for the longest recorded trajectory.

    Raises:
        ValueError: naming a record with a turn that has no label.
    """
    problems: dict[str, list[RecordedProblem]] = {}
    for record in records:
        problems.setdefault(record.dataset, []).append(_problem(record))
    if max_turns is None:
        max_turns = max((1, *(len(one.turns) for part in problems.values() for one in part)))
    return {name: turn_table(name, part, rule, max_turns) for name, part in problems.items()}


def cluster_codes(labels: Iterable[object]) -> Ints:
    """[N] equal numbers for equal labels, numbered by first occurrence.

    Examples:
        >>> cluster_codes(["b", "a", "b"]).tolist()
        [0, 1, 0]
    """
    known: dict[object, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)


class RecordedProblem(NamedTuple):
    """What a table keeps of a record."""

    id: str
    cluster: object
    returned: int
    observed: int
    stopped_early: bool
    accepted: bool | None
    turns: Floats
    """[T, C] the values of :data:`_TURN_COLUMNS`."""


def _problem(record: SampleRecord) -> RecordedProblem:
    rows = []
    standing: bool | None = False  # before the first answer there is none
    for turn, signals in zip(record.turns, record.signals, strict=True):
        if not turn.feedback:
            standing = turn.correct
        if standing is None:
            raise ValueError(
                f"record {record.id!r} of {record.dataset!r} has no label at turn {turn.turn}; "
                "metrics are for problems with a reference"
            )
        tokens = (turn.prompt_tokens, turn.completion_tokens)
        if 0 in tokens:  # a sum of what was counted would be too low
            tokens = (0, 0)
        verdict = NO_VERDICT if turn.verdict is None else VERDICT_CODES[turn.verdict]
        rows.append((standing, verdict, *signals[1:], *tokens))
    return RecordedProblem(
        id=record.id,
        # A problem without a cluster gets a label that equals no other: no string equals a tuple.
        cluster=(record.id,) if record.cluster is None else record.cluster,
        returned=record.returned_turn,
        observed=record.observed,
        stopped_early=record.stopped_early,
        accepted=record.accepted,
        turns=np.array(rows, dtype=np.float64).reshape(-1, len(_TURN_COLUMNS)),
    )


def turn_table(
    dataset: str, problems: Sequence[RecordedProblem], rule: AnyRule | str | None, max_turns: int
) -> TurnTable:
    """The columns of a data set, as its ``rule`` with T_max left it."""
    ids, clusters, returned, observed, early, accepted, turns = zip(*problems, strict=True)
    length = np.array([len(each) for each in turns])
    width = max(1, length.max())
    columns = empty_turns(len(ids), width)
    recorded = np.arange(width) < length[:, None]
    for column, values in zip(columns.values(), np.concatenate(turns).T, strict=True):
        column[recorded] = values
    table = TurnTable(
        dataset=dataset,
        ids=ids,
        cluster=cluster_codes(clusters),
        length=length,
        returned=np.array(returned),
        observed=np.array(observed),
        stopped_early=np.array(early),
        accepted=np.array([e if a is None else a for e, a in zip(early, accepted, strict=True)]),
        rule=rule,
        max_turns=max_turns,
        **columns,
    )
    if isinstance(rule, StopRule):
        for row, told in enumerate(accepted):  # earlier versions did not record it
            if told is None and observed[row]:
                end = ending(rule, table.signals(row)[: observed[row]], max_turns)
                table.accepted[row] = end is not None and end.accepted
    return table


def pool(tables: Mapping[str, TurnTable]) -> TurnTable:
    """All problems of all data sets in one table. No cluster spans two sets.

    Their rules may differ, so it names none; T_max is the largest of theirs.
    """
    parts = list(tables.values())
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(table, name) for table in parts]) for name in _COLUMNS
    }
    columns |= empty_turns(len(columns["length"]), max(table.correct.shape[1] for table in parts))
    start = 0
    for table in parts:
        rows = slice(start, start := start + len(table.ids))
        for name in _TURN_COLUMNS:
            part = getattr(table, name)
            columns[name][rows, : part.shape[1]] = part
    return TurnTable(
        dataset=" + ".join(tables),
        ids=tuple(f"{name}/{problem}" for name, table in tables.items() for problem in table.ids),
        cluster=cluster_codes(
            (name, code) for name, table in tables.items() for code in table.cluster.tolist()
        ),
        rule=None,
        max_turns=max(table.max_turns for table in parts),
        **columns,
    )
