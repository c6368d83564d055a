"""The records of an evaluation, of all ranks, and what went wrong with some of them."""

from collections.abc import Sequence

from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from svr_lightning.display import name_some
from svr_lightning.evaluation.adaptive import Record
from svr_lightning.training.ranks import gather_lists


def gather_records(records: Sequence[Record]) -> list[Record]:
    """The records of all ranks, each problem of a data set once, in a stable order."""
    return list({(r["dataset"], r["id"]): r for r in gather_lists(records)}.values())


def warn_of_faults(records: Sequence[Record]) -> None:
    """Name, in one line, the problems that count as wrong for want of a run or of a grade."""
    unfit = {f"{r['dataset']}/{r['id']}": r["error"] for r in records if "error" in r}
    not_run = f"could not be run ({next(iter(unfit.values()), '')})"
    ungraded = [
        f"{record['dataset']}/{record['id']}"
        for record in records
        if any("grading_error" in turn for turn in record.get("turns", record.get("samples")))
    ]
    parts = [
        f"{what}: {name_some(names)}"
        for what, names in ((not_run, list(unfit)), ("could not be graded", ungraded))
        if names
    ]
    if parts:
        rank_zero_warn(f"counted as wrong of {len(records)} problems: {'; '.join(parts)}")
