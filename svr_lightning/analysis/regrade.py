"""Recorded turns graded again; nothing but their labels changes."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from svr_lightning.analysis.records import SampleRecord
from svr_lightning.core.stopping import is_own
from svr_lightning.errors import as_config_error, one_line, require
from svr_lightning.tasks import get_task
from svr_lightning.tasks.fields import shown
from svr_lightning.tasks.grading import Grader, label


def regrade(
    records: Sequence[SampleRecord], grader: Grader, trusted: Collection[str] = ()
) -> list[SampleRecord]:
    """The records with the grader's labels; a turn that it cannot grade is wrong and says why.

    Raises:
        ConfigError: if the grader does not work here; or naming a record without a reference, or
            whose task is not known or, being code outside svr_lightning, not among the class paths
            that are ``trusted``.
    """
    grader.prepare()
    graded = []
    for record in records:
        problem, name = record.problem, record.task
        with as_config_error(f"{'/'.join(record.key)}: "):
            require(problem.has_reference, "there is no reference answer to grade with")
            require(
                is_own(name) or name in trusted,
                f"the task {name!r} is code outside svr_lightning, which grading would run; allow "
                f"it with --task {name} if you trust it",
            )
            task = get_task(name)
            turns = []
            try:
                for turn in record.turns:
                    if turn.feedback:
                        turns.append(turn)
                        continue
                    reading = task.read(turn.text, truncated=turn.truncated)
                    y = label(task, reading.final_part(turn.text), problem, grader)
                    turns.append(replace(turn, correct=y.correct, grading_error=y.error))
            except (TypeError, KeyError, AttributeError) as error:
                given = f"{shown(problem.reference)} and the payload {shown(dict(problem.payload))}"
                why = f"cannot grade with the reference {given} ({one_line(repr(error))})"
                raise ValueError(f"task {name} {why}") from error
        graded.append(replace(record, turns=tuple(turns)))
    return graded
