"""The trajectories of a report: what happened in each, and which are shown."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from svr_lightning.core.parsing import SelfCheckFields, self_check_format_score
from svr_lightning.evaluation.records import SampleRecord, TurnRecord
from svr_lightning.report.runs import Run

CLASSES = {
    "premature": "premature stop",
    "fixed": "fixed by refinement",
    "broken": "broken by refinement",
    "truncated": "truncated",
    "malformed": "malformed self-check",
}
"""The filters of the trajectory section, by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A record with what the stopping rule made of it."""

    record: SampleRecord
    returned: int
    """The turn whose answer is returned; 0 if the problem could not be run."""
    observed: int
    """Turns up to the stop; later ones were recorded and not used."""
    stopped_early: bool
    interface: SelfCheckFields | None
    """The fields of a self-check; None without self-checks."""
    classes: frozenset[str]
    """Keys of :data:`CLASSES`; a trajectory may be in several or none."""

    @property
    def right(self) -> bool:
        """Whether the returned answer is correct."""
        return self.returned > 0 and bool(self.record.turns[self.returned - 1].correct)


def trajectories(run: Run) -> Iterator[Trajectory]:
    """Each problem of a run once, data set by data set, in the order of its tables."""
    first: dict[tuple[str, str], SampleRecord] = {}
    for record in (record for source in run.sources for record in source.records):
        first.setdefault(record.key, record)
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
                classes=classes(record.turns[:observed], returned, early, interface),
            )


def malformed(text: str, interface: SelfCheckFields | None) -> bool:
    """Whether a turn lacks a self-check that it was asked for, or part of it."""
    return interface is not None and self_check_format_score(text, interface) < 1


def classes(
    turns: Sequence[TurnRecord],
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
    right = [bool(turn.correct) for turn in turns]
    final = right[returned - 1]
    found = {
        "premature": early and not final,
        "fixed": final and not right[0],
        "broken": not final and any(right[: returned - 1]),
        "truncated": any(turn.truncated for turn in turns),
        "malformed": any(malformed(turn.text, interface) for turn in turns),
    }
    return frozenset(key for key, holds in found.items() if holds)


def choose(found: Sequence[Trajectory], most: int) -> list[Trajectory]:
    """Up to ``most`` of each class, and of those in no class, taken from the data sets in turn."""
    chosen: set[int] = set()
    for key in (*CLASSES, None):
        seen: Counter[str] = Counter()
        places = []
        for index, one in enumerate(found):
            if key in one.classes if key else not one.classes:
                places.append((seen[one.record.dataset], index))
                seen[one.record.dataset] += 1
        chosen |= {index for _, index in sorted(places)[:most]}
    return [found[index] for index in sorted(chosen)]
