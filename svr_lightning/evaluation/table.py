"""Recorded trajectories as columns, so that replaying 100,000 of them takes seconds.

Shapes: N problems of one data set, T the most turns that any of them has. Entries beyond a
problem's recorded turns are False, 0 or nan and never read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.core.stopping import StopSignals, repeats
from svr_lightning.core.types import Verdict
from svr_lightning.evaluation.metric_functions import VERDICT_CODES, observed_turns

Record = Mapping[str, Any]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a stopping rule makes of each trajectory."""

    returned: Ints
    """[N] the turn (from 1) whose answer is returned; 0 for a problem that could not be run."""
    observed: Ints
    """[N] turns that were generated, and are paid for; ``returned`` unless an earlier turn is
    returned than the last one."""
    stopped_early: Bools
    """[N] whether a turn before T_max ended the trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTable:
    """The recorded turns of one data set."""

    dataset: str
    ids: tuple[str, ...]
    """[N]"""
    length: Ints
    """[N] recorded turns; 0 for a problem that could not be run, which counts as wrong."""
    correct: Bools
    """[N, T] labels y."""
    truncated: Bools
    """[N, T]"""
    verdict: Ints
    """[N, T] 1, 0, -1 for CORRECT, INCORRECT, UNSURE."""
    confidence: Floats
    """[N, T] stated confidence in [0, 1]."""
    verdict_probability: Floats
    """[N, T] probability that the policy gave the words of its verdict; nan where not known."""
    repeats: Bools
    """[N, T] whether the answer is the one of the turn before."""
    prompt_tokens: Ints
    """[N, T]"""
    completion_tokens: Ints
    """[N, T]"""
    recorded: Outcome
    """What the run that was recorded returned."""

    def observed(self, outcome: Outcome) -> Bools:
        """[N, T] which entries ``outcome`` generated."""
        turns = np.arange(1, self.correct.shape[1] + 1)
        return np.asarray(turns[None, :] <= outcome.observed[:, None])

    def at(self, values: NDArray[Any], turn: Ints) -> NDArray[Any]:
        """[N] the entry of ``values`` [N, T] at each problem's ``turn`` (from 1); 0 at turn 0."""
        if not self.correct.shape[1]:
            return np.zeros(len(self.ids), dtype=values.dtype)
        picked = np.take_along_axis(values, np.maximum(turn - 1, 0)[:, None], axis=1)[:, 0]
        return np.where(turn > 0, picked, np.zeros((), dtype=values.dtype))

    def select(self, rows: NDArray[Any]) -> "TurnTable":
        """The table of some problems, by index or mask; an index may come twice."""
        chosen = np.arange(len(self.ids))[rows]
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        recorded = Outcome(
            returned=self.recorded.returned[chosen],
            observed=self.recorded.observed[chosen],
            stopped_early=self.recorded.stopped_early[chosen],
        )
        ids = tuple(self.ids[index] for index in chosen)
        return TurnTable(dataset=self.dataset, ids=ids, recorded=recorded, **columns)


_COLUMNS = (
    "length",
    "correct",
    "truncated",
    "verdict",
    "confidence",
    "verdict_probability",
    "repeats",
    "prompt_tokens",
    "completion_tokens",
)
_EMPTY: dict[str, tuple[type, Any]] = {
    "correct": (np.bool_, False),
    "truncated": (np.bool_, False),
    "verdict": (np.int64, 0),
    "confidence": (np.float64, np.nan),
    "verdict_probability": (np.float64, np.nan),
    "repeats": (np.bool_, False),
    "prompt_tokens": (np.int64, 0),
    "completion_tokens": (np.int64, 0),
}


def turn_tables(records: Sequence[Record]) -> dict[str, TurnTable]:
    """One table per data set, in the order in which the data sets first occur.

    Every recorded turn goes in, also those behind the returned one. A record that repeats
    another's data set and id counts once.

    Raises:
        ValueError: naming a record whose returned turn is not there, or a turn without a label.
    """
    by_dataset: dict[str, dict[str, Record]] = {}
    for record in records:
        by_dataset.setdefault(record["dataset"], {}).setdefault(record["id"], record)
    return {name: _table(name, list(rows.values())) for name, rows in by_dataset.items()}


def _table(dataset: str, records: Sequence[Record]) -> TurnTable:
    size = max((len(record["turns"]) for record in records), default=0)
    columns: dict[str, NDArray[Any]] = {
        name: np.full((len(records), size), empty, dtype=dtype)
        for name, (dtype, empty) in _EMPTY.items()
    }
    for row, record in enumerate(records):
        _fill(columns, row, record)
    observed = [len(observed_turns(record)) for record in records]
    recorded = Outcome(
        returned=np.array([record["returned_turn"] for record in records], dtype=np.int64),
        observed=np.array(observed, dtype=np.int64),
        stopped_early=np.array([record["stopped_early"] for record in records], dtype=np.bool_),
    )
    return TurnTable(
        dataset=dataset,
        ids=tuple(record["id"] for record in records),
        length=np.array([len(record["turns"]) for record in records], dtype=np.int64),
        recorded=recorded,
        **columns,
    )


def _fill(columns: dict[str, NDArray[Any]], row: int, record: Record) -> None:
    said: list[StopSignals] = []
    for index, turn in enumerate(record["turns"]):
        if not isinstance(turn["correct"], bool):
            raise ValueError(
                f"record {record['id']!r} of {record['dataset']!r} has no label at turn "
                f"{turn['turn']}; a replay is for problems with a reference"
            )
        said = [*said[-1:], signals(turn)]
        probability = turn.get("verdict_probability")
        values = {
            "correct": turn["correct"],
            "truncated": turn["truncated"],
            "verdict": VERDICT_CODES[Verdict(turn["verdict"])],
            "confidence": turn["confidence"],
            "verdict_probability": np.nan if probability is None else probability,
            "repeats": repeats(said),
            "prompt_tokens": turn["prompt_tokens"],
            "completion_tokens": turn["completion_tokens"],
        }
        for name, value in values.items():
            columns[name][row, index] = value


def signals(turn: Mapping[str, Any]) -> StopSignals:
    """What a stopping rule reads of a recorded turn."""
    return StopSignals(
        verdict=Verdict(turn["verdict"]),
        confidence=turn["confidence"],
        truncated=turn["truncated"],
        answer=turn.get("answer"),
        verdict_probability=turn.get("verdict_probability"),
    )
