"""How a part of the check reports its figures."""

import json
from typing import Protocol

MARK = "gpu-check-figure "
"""Prefix of the output lines that carry a figure."""
FOLDER = "GPU_CHECK_FOLDER"
"""Variable with the folder for a part's files, beside the report and removed after the part."""


class Emit(Protocol):
    """Reports one figure the moment it is known."""

    def __call__(self, name: str, value: object, unit: str = "", note: str = "") -> None:
        """Report it.

        Args:
            name: what it is, unique within its part.
            value: a number, a text, or None where it could not be had.
            unit: of a number.
            note: what a reader has to know beside it.
        """


class SkippedError(Exception):
    """A part cannot run here; the message says in one line why and what it needs."""


def emit_line(name: str, value: object, unit: str = "", note: str = "") -> None:
    """Write a figure to standard output, where the runner reads it."""
    finding = {"name": name, "value": value, "unit": unit, "note": note}
    print(f"\n{MARK}{json.dumps(finding)}", flush=True)
