"""The trajectories of a report: what happened in each, and which are shown."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from svr_lightning.analysis.records import SampleRecord, unique
from svr_lightning.core.parsing import SelfCheckFields, final_part, self_check_format_score
from svr_lightning.report.runs import Run
from svr_lightning.tasks import TASKS, get_task

CLASSES = {
    "premature": "premature stop",
    "fixed": "fixed by refinement",
    "broken": "broken by refinement",
    "truncated": "truncated",
    "malformed": "malformed self-check",
}
"""What can happen in a trajectory, by key."""
OTHER = "none of these"
Filed = tuple[SampleRecord, frozenset[str]]
"""A trajectory, and the keys of :data:`CLASSES` that fit it; there may be several or none."""


def trajectories(run: Run) -> Iterator[Filed]:
    """Each problem of a run once, data set by data set, ended as the run's stopping rule says."""
    records = {one.key: one for one in unique([r for s in run.sources for r in s.records])}
    for name, table in run.tables.items():
        end = table.outcome
        ends = zip(end.returned, end.observed, end.stopped_early, strict=True)
        for key, (returned, observed, early) in zip(table.ids, ends, strict=True):
            record = replace(
                records[name, key],
                returned_turn=int(returned),
                observed_turns=int(observed),
                stopped_early=bool(early),
            )
            yield record, classes(record, run.interface)


def malformed(text: str, task: str, interface: SelfCheckFields | None) -> bool:
    """Whether a completion lacks a self-check that was asked for, or part of it.

    Of a task outside of this package, whose code is not run here, the whole final part is read.
    """
    if interface is None:
        return False
    part = text[get_task(task).read(text).check :] if task in TASKS else final_part(text)
    return self_check_format_score(part, interface) < 1


def classes(record: SampleRecord, interface: SelfCheckFields | None) -> frozenset[str]:
    """The keys of :data:`CLASSES` that fit the observed turns of a trajectory.

    Broken is a wrong answer that was correct at an earlier turn, fixed a correct one whose first
    was wrong. ``interface`` are the fields of a self-check; None without self-checks.
    """
    turns = record.turns[: record.observed]
    right = [bool(turn.correct) for turn in turns]
    found = {
        "premature": record.stopped_early and not record.right,
        "fixed": record.right and not right[0],
        "broken": not record.right and any(right[: max(record.returned_turn - 1, 0)]),
        "truncated": any(turn.truncated for turn in turns),
        "malformed": any(malformed(turn.text, record.task, interface) for turn in turns),
    }
    return frozenset(key for key, holds in found.items() if holds)


def choose(found: Sequence[Filed], most: int) -> dict[str, list[Filed]]:
    """Up to ``most`` of each class and of :data:`OTHER`, taken from the data sets in turn.

    A trajectory of several classes is listed under the first that has room for it.
    """
    left, chosen = dict(enumerate(found)), {}
    for key in (*CLASSES, OTHER):
        seen: Counter[str] = Counter()
        ranked = []
        for index, (record, kinds) in left.items():
            if key in kinds or (key == OTHER and not kinds):
                ranked.append((seen[record.dataset], index))
                seen[record.dataset] += 1
        if ranked and most:
            chosen[key] = [left.pop(index) for _, index in sorted(ranked)[:most]]
    return chosen
