"""Trajectories as the page lists them: what happened in each, and which are shown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from svr_lightning.core.parsing import SelfCheckFields, self_check_format_score
from svr_lightning.report.runs import Run

CLASSES = {
    "premature": "premature stop",
    "fixed": "fixed by refinement",
    "broken": "broken by refinement",
    "truncated": "truncated",
    "malformed": "malformed self-check",
}
"""What a reader looks for, by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A record with what the stopping rule made of it."""

    record: Mapping[str, Any]
    returned: int
    """The turn whose answer is returned; 0 where the problem could not be run."""
    observed: int
    """Turns up to the stop; later ones were recorded and not used."""
    stopped_early: bool
    interface: SelfCheckFields | None
    """What a self-check consists of; None where none is asked for."""
    classes: frozenset[str]
    """Keys of :data:`CLASSES`; a trajectory may be in several or none."""

    @property
    def right(self) -> bool:
        """Whether the returned answer is correct."""
        return self.returned > 0 and self.record["turns"][self.returned - 1]["correct"]


def trajectories(run: Run) -> Iterator[Trajectory]:
    """Each problem of a run once, data set by data set, in the order of its tables."""
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for record in run.records:
        first.setdefault((record["dataset"], record["id"]), record)
    interface = run.interface
    for name, table in run.tables.items():
        outcome = run.outcomes[name]
        columns = (outcome.returned, outcome.observed, outcome.stopped_early)
        for key, returned, observed, early in zip(
            table.ids, *(column.tolist() for column in columns), strict=True
        ):
            record = first[name, key]
            yield Trajectory(
                record=record,
                returned=returned,
                observed=observed,
                stopped_early=early,
                interface=interface,
                classes=classes(record["turns"][:observed], returned, early, interface),
            )


def malformed(text: str, interface: SelfCheckFields | None) -> bool:
    """Whether a turn lacks a self-check that it was asked for, or part of it."""
    return interface is not None and self_check_format_score(text, interface) < 1


def classes(
    turns: Sequence[Mapping[str, Any]],
    returned: int,
    early: bool,
    interface: SelfCheckFields | None,
) -> frozenset[str]:
    """The keys of :data:`CLASSES` that fit the observed ``turns`` of a trajectory.

    Broken is a wrong answer that was right at an earlier turn, fixed a right one whose first was
    wrong.
    """
    if not turns:
        return frozenset()
    right = [bool(turn["correct"]) for turn in turns]
    final = right[returned - 1]
    found = {
        "premature": early and not final,
        "fixed": final and not right[0],
        "broken": not final and any(right[: returned - 1]),
        "truncated": any(turn["truncated"] for turn in turns),
        "malformed": any(malformed(turn["text"], interface) for turn in turns),
    }
    return frozenset(key for key, holds in found.items() if holds)


def choose(found: Sequence[Trajectory], most: int) -> list[Trajectory]:
    """Up to ``most`` of each class, and of those in no class, taken from the data sets in turn."""
    chosen: set[int] = set()
    for key in (*CLASSES, None):
        by_dataset: dict[str, list[int]] = {}
        for index, one in enumerate(found):
            if key in one.classes if key else not one.classes:
                by_dataset.setdefault(one.record["dataset"], []).append(index)
        chosen |= set(_in_turn(list(by_dataset.values()), most))
    return [found[index] for index in sorted(chosen)]


def _in_turn(queues: Sequence[Sequence[int]], most: int) -> list[int]:
    """The first of each queue, then the second of each, and so on."""
    longest = max(map(len, queues), default=0)
    order = [queue[place] for place in range(longest) for queue in queues if place < len(queue)]
    return order[:most]
