"""Files of records, read whole: every line is checked, and a wrong one is named."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from svr_lightning.core.prompts import EVEN
from svr_lightning.core.types import Verdict
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.records import SAMPLES, VOTES, PoolRecord, Record, SampleRecord


def read_samples(path: str | os.PathLike[str]) -> list[SampleRecord]:
    """Read a samples file of this or an earlier version.

    In a file of version 1 that states UNSURE at 0.5 on every turn, self-checks are None.

    Raises:
        ConfigError: naming the file and the line that is no sample record or repeats one.
    """
    records, old = _read_lines(Path(path), SampleRecord.from_json, SAMPLES)
    turns = [turn for record in records for turn in record.turns]
    if old and all((turn.verdict, turn.confidence) == (Verdict.UNSURE, EVEN) for turn in turns):
        return [
            replace(r, turns=tuple(replace(t, verdict=None, confidence=None) for t in r.turns))
            for r in records
        ]
    return records


def read_pools(path: str | os.PathLike[str]) -> list[PoolRecord]:
    """Read a votes file; raises ConfigError as :func:`read_samples` does."""
    return _read_lines(Path(path), PoolRecord.from_json, VOTES)[0]


def _read_lines(
    path: Path, parse: Callable[[Any], Record], wanted: str
) -> tuple[list[Record], bool]:
    """The records of every line that is not blank, and whether any is of version 1."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a {wanted}") from error
    records: list[Record] = []
    first_line: dict[tuple[str, str], int] = {}
    old = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = _parse_line(line)
            record = parse(value)
            if first_line.setdefault(record.key, number) != number:
                raise ValueError(f"repeats {'/'.join(record.key)} of line {first_line[record.key]}")
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number}: {error}; mend or remove the line") from error
        records.append(record)
        old = old or "schema_version" not in value
    return records, old


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON ({error.msg} at column {error.colno})") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
