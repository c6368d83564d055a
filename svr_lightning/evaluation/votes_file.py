"""``votes.jsonl``: pools of independent samples, one line per problem."""

import os
from pathlib import Path
from typing import Any

from svr_lightning.evaluation.schema import (
    Fields,
    check_fields,
    is_count,
    is_flag,
    is_list,
    is_text,
    read_lines,
)
from svr_lightning.tasks import TASKS

VOTES = "votes.jsonl"


def read_votes(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read a file of pools.

    Raises:
        ConfigError: naming the file and the line that is no pool or repeats a problem.
    """
    return read_lines(Path(path), _check_pool, VOTES)


def _is_task(value: Any) -> bool:
    return is_text(value) and value in TASKS


_POOL_FIELDS: Fields = {
    "dataset": (is_text, "a string"),
    "id": (is_text, "a string"),
    "task": (_is_task, "one of " + ", ".join(TASKS)),
    "question": (is_text, "a string"),
    "samples": (is_list, "a list"),
}
_SAMPLE_FIELDS: Fields = {
    "text": (is_text, "a string"),
    "answer": (lambda value: value is None or is_text(value), "a string or null"),
    "correct": (lambda value: value is None or is_flag(value), "true, false or null"),
    "truncated": (is_flag, "true or false"),
    "prompt_tokens": (is_count, "a whole number"),
    "completion_tokens": (is_count, "a whole number"),
}


def _check_pool(record: Any) -> None:
    check_fields(record, _POOL_FIELDS, "record")
    for number, sample in enumerate(record["samples"], start=1):
        check_fields(sample, _SAMPLE_FIELDS, f"sample {number}")
    if bool(record["samples"]) == (record.get("error") is not None):
        raise ValueError("the record must have either samples or an 'error'")
