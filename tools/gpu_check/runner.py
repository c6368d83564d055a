"""Runs the parts one after the other, each in its own process, and keeps what they found.

A part can crash, hang or take the driver down with it: the others still run, and every figure is
printed and written to the report the moment it is known.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tools.gpu_check.settings import FOLDER, MARK


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing that is measured."""

    name: str
    call: str
    """Where the function lies that takes ``emit`` and the device."""
    share: float
    """Share of the time, relative to the other parts."""


def run_parts(
    parts: Sequence[Part],
    device: str,
    *,
    seconds: float,
    log: IO[str],
    say: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Run all parts within ``seconds`` in all.

    A part may take its share of the time that is left, so that what one leaves over goes to those
    after it.

    Args:
        parts: in order.
        device: ``cuda``, or ``cpu`` for a small size of everything; handed to each of them.
        seconds: for all of them together.
        log: takes what the parts print beside their figures; their files lie beside it.
        say: takes a line for each figure.
        keep: takes all findings so far, whenever there is a new one.

    Returns:
        For each part its ``seconds`` and ``figures``, and ``skipped`` or ``error`` with a reason.
    """
    found: dict[str, Any] = {}
    deadline = time.monotonic() + seconds
    for index, part in enumerate(parts):
        left = deadline - time.monotonic()
        limit = left * part.share / sum(other.share for other in parts[index:])
        found[part.name] = result = {"limit_seconds": round(limit, 1), "figures": {}}
        with _folder(part, beside=Path(log.name)) as folder:
            _run_part(
                part, device, limit, folder, result, log=log, say=say, keep=lambda: keep(found)
            )
        keep(found)
    return found


def _folder(part: Part, beside: Path) -> "tempfile.TemporaryDirectory[str]":
    """For a part's files: a part that is killed removes nothing itself."""
    return tempfile.TemporaryDirectory(
        prefix=f"{part.name}-", dir=beside.resolve().parent, ignore_cleanup_errors=True
    )


def _run_part(
    part: Part,
    device: str,
    limit: float,
    folder: str,
    result: dict[str, Any],
    *,
    log: IO[str],
    say: Callable[[str], None],
    keep: Callable[[], None],
) -> None:
    """Run one part for at most ``limit`` seconds and add what it finds to ``result``."""
    started = time.monotonic()
    log.write(f"==== {part.name}\n")
    log.flush()
    beginning = log.tell()
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.gpu_check.part", part.call, device],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        errors="replace",
        env=os.environ | {FOLDER: folder},
        start_new_session=True,
    )
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _kill_group(process.pid)

    timer = threading.Timer(limit, expire)
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                _take(json.loads(line.removeprefix(MARK)), part.name, result, say)
                keep()
            elif line.strip():
                log.write(line)
        code = process.wait()
    finally:
        timer.cancel()
        _kill_group(process.pid)  # processes that the part has started and left behind
    log.flush()
    result["seconds"] = round(time.monotonic() - started, 1)
    if expired.is_set():
        result["error"] = f"stopped at its time limit of {limit:.0f} s"
    elif code and "error" not in result:
        ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        result["error"] = f"ended with {ended}; {_last_line(log, beginning)}"
    for ending in ("skipped", "error"):
        if ending in result:
            say(f"{part.name}: {ending.upper()}: {result[ending]}")
    say(f"{part.name}: took {result['seconds']:.0f} s")


def _take(
    finding: dict[str, Any], part: str, result: dict[str, Any], say: Callable[[str], None]
) -> None:
    """Keep a finding and, where it is a figure, print it."""
    name = finding.pop("name")
    if name in ("skipped", "error"):
        result[name] = finding["value"]
        return
    result["figures"][name] = {key: value for key, value in finding.items() if value != ""}
    value, unit, note = finding["value"], finding["unit"], finding["note"]
    shown = f"{value:.5g}" if isinstance(value, float) else ("-" if value is None else str(value))
    say(f"{part}.{name} = {shown}{f' {unit}' if unit else ''}{f'   ({note})' if note else ''}")


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of it has ended


def _last_line(log: IO[str], beginning: int) -> str:
    text = Path(log.name).read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text[beginning:].splitlines() if line.strip()]
    return f"it last wrote: {lines[-1][:200]}" if lines else "it wrote nothing"
