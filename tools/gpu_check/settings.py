"""Settings of every part of the check, and how a part reports its figures."""

import json
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

MARK = "gpu-check-figure "
"""Prefix of the output lines that carry a figure."""

EngineName = Literal["vllm", "transformers"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the check runs."""

    device: str
    """``cuda`` or ``cpu``."""
    engine: EngineName
    """Engine of the parts that sample."""
    small: bool = False
    """Tiny models and few tokens, for testing the check itself."""

    def to_json(self) -> str:
        """As the part's process reads it."""
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
    """A part cannot run here; the message says in one line why and what it needs."""


def emit_line(name: str, value: object, unit: str = "", note: str = "") -> None:
    """Write a figure to standard output, where the runner reads it."""
    finding = {"name": name, "value": value, "unit": unit, "note": note}
    print(f"\n{MARK}{json.dumps(finding)}", flush=True)
