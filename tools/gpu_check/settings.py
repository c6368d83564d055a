"""What every part of the check is told, and how it tells what it found."""

import json
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

MARK = "gpu-check-figure "
"""Begins every line of a part's output that carries a finding."""

EngineName = Literal["vllm", "transformers"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the check runs."""

    device: str
    """``cuda`` or ``cpu``."""
    engine: EngineName
    """What samples in the parts that need an engine."""
    small: bool = False
    """Tiny models and few tokens, to try the check itself out."""

    def to_json(self) -> str:
        """What a part's process reads back."""
        return json.dumps(asdict(self))


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
    """A part cannot run here; the message says in one line why, and what it would take."""


def emit_line(name: str, value: object, unit: str = "", note: str = "") -> None:
    """Write a figure to standard output, where the runner reads it."""
    finding = {"name": name, "value": value, "unit": unit, "note": note}
    print(f"\n{MARK}{json.dumps(finding)}", flush=True)
