"""A journal of finished problems, so that a killed evaluation continues where it was.

One file per process. Its first line is a fingerprint of all that decides a record; every other
line is the record of one problem, written out the moment the problem is finished. A journal goes
when the files that it was for are on disk.
"""

import json
import os
from pathlib import Path
from typing import Any

from svr_lightning.evaluation.records import AnyRecord, record_from_json, record_line


class Journal:
    """The journal of one process in one evaluation's folder.

    A last line that was cut off is dropped, and a journal of another fingerprint starts over.

    Args:
        path: of the file; its folder is made if need be.
        fingerprint: equal if and only if the same evaluation would leave the same records.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self._done: dict[tuple[str, str], AnyRecord] = {}
        head = json.dumps({"fingerprint": fingerprint}).encode() + b"\n"
        kept = self._read(head)
        path.parent.mkdir(parents=True, exist_ok=True)
        if kept:
            os.truncate(path, kept)
        else:
            path.write_bytes(head)
        self._stream = path.open("ab")

    def done(self, dataset: str) -> dict[str, Any]:
        """Records of a data set by problem id."""
        return {name: r for (found, name), r in self._done.items() if found == dataset}

    def finished(self) -> list[tuple[str, str]]:
        """Data set and id of every record."""
        return list(self._done)

    def keep(self, keys: set[tuple[str, str]]) -> None:
        """Forget all other records."""
        self._done = {key: record for key, record in self._done.items() if key in keys}

    def append(self, record: AnyRecord) -> None:
        """Write a record down; it survives the end of this process."""
        self._done[record.key] = record
        self._stream.write(record_line(record).encode("ascii"))
        self._stream.flush()

    def discard(self) -> None:
        """Remove the file; what it was for is on disk."""
        self._stream.close()
        self._path.unlink(missing_ok=True)

    def _read(self, head: bytes) -> int:
        """Take over what there is; returns how many bytes of the file are good."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return 0
        if not content.startswith(head):
            return 0
        position = len(head)
        for line in content[position:].splitlines(keepends=True):
            record = _parse(line)
            if record is None:
                break
            self._done[record.key] = record
            position += len(line)
        return position


def _parse(line: bytes) -> AnyRecord | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return record_from_json(json.loads(line))
    except (ValueError, RecursionError):
        return None
