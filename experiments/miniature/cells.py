"""Runs cells: one process per command; finished commands are kept, interrupted ones resume.

A cell's folder has ``commands/`` with the log of each command and a record of its command line and
inputs. A running command holds a lock on the folder, which its process inherits: if the process
outlives a killed experiment, a second one is not started beside it.
"""

import fcntl
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from experiments.miniature.plan import Cell, Command
from svr_lightning import tiny
from svr_lightning.analysis.operating_point import weights_digest
from svr_lightning.errors import ConfigError, one_line
from svr_lightning.files import write_json

_GRACE = 10.0  # seconds that a child has to end by itself

Say = Callable[[str], None]


class CommandError(Exception):
    """A command failed, or its folder is not usable."""


class Runner:
    """Runs cells side by side, each command in a process with one thread.

    Args:
        program: what arguments are handed to; None: the command's module.
        say: told what begins, ends and fails, in one line each.
    """

    def __init__(self, program: Sequence[str] | None = None, say: Say = print) -> None:
        self._program = program
        self._say = say
        self._children: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, cells: Sequence[Cell], jobs: int) -> list[str]:
        """Run what is not done yet. A cell ends at its first failure; the other cells continue.

        Returns:
            One line for each cell that failed.

        Raises:
            KeyboardInterrupt: passed on after every child has ended.
        """
        failures: list[str] = []
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(self._cell, cell, failures) for cell in cells]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                self._stop()
                raise
        return failures

    def _cell(self, cell: Cell, failures: list[str]) -> None:
        for command in cell.commands:
            try:
                state = state_of(command)
                if self._stopped or state == "done":
                    continue
                if state == "other":
                    raise CommandError(
                        f"{command.folder} holds results of another command line or of other "
                        f"configurations, see {record_path(command)}; remove the folder or give "
                        "another --out"
                    )
                seconds = self._command(command)
            except (CommandError, ConfigError, OSError) as error:
                if not self._stopped:
                    failures.append(f"{cell.name}: {error}")
                    self._say(failures[-1])
                return
            self._say(f"{cell.name}: {command.name} done, {seconds:.0f} s")

    def _command(self, command: Command) -> float:
        """Run a command; returns the seconds that its last start took."""
        record, inputs = read_record(command), inputs_digest(command.arguments)
        arguments = list(command.arguments)
        if command.checkpoint and Path(command.checkpoint).is_file():
            arguments += ["--ckpt_path", "last"]
        path = record_path(command)
        path.parent.mkdir(parents=True, exist_ok=True)
        log = path.with_suffix(".log")
        spent = float(record.get("seconds", 0.0))

        def keep(done: bool) -> None:
            seconds = round(spent + time.perf_counter() - began, 1)
            fields = {"command": command.line, "inputs": inputs, "done": done, "seconds": seconds}
            write_json(path, fields)

        with (path.parent / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CommandError(
                    f"{command.folder} is in use by a process that still runs; wait for it or end "
                    "it, and start again"
                ) from error
            began = time.perf_counter()
            keep(done=False)
            program = self._program or (sys.executable, "-m", command.module)
            code = self._process([*program, *arguments], log, lock.fileno())
            whole = not code and not self._stopped and Path(command.result).is_file()
            keep(done=whole)
        if self._stopped:
            raise CommandError(f"{command.name} was interrupted")
        if not whole:
            end = f"ended with {code}" if code else f"left no {command.result}"
            raise CommandError(f"{command.name} {end}, see {log}")
        return time.perf_counter() - began

    def _process(self, line: Sequence[str], log: Path, lock: int) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("ab") as stream:
            with self._lock:
                if self._stopped:
                    return 1
                # Its own session: Ctrl-C reaches the children only through _stop.
                child = subprocess.Popen(
                    line,
                    env=environment,
                    stdout=stream,
                    stderr=stream,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
                self._children.add(child)
            code = child.wait()
            with self._lock:
                self._children.discard(child)
            return code

    def _stop(self) -> None:
        """End every child. Checkpoints and journals are complete at any moment."""
        with self._lock:
            self._stopped = True
            children = list(self._children)
        for child in children:
            child.terminate()
        for child in children:
            try:
                child.wait(_GRACE)
            except subprocess.TimeoutExpired:
                child.kill()


State = Literal["done", "open", "other"]
"""Of a command: done, not done, or done with another command line or configuration."""


def state_of(command: Command) -> State:
    """The state of a command according to its record."""
    record = read_record(command)
    if not record:
        return "open"
    if (record["command"], record["inputs"]) != (command.line, inputs_digest(command.arguments)):
        return "other"
    return "done" if record["done"] and Path(command.result).is_file() else "open"


def is_done(command: Command) -> bool:
    """Whether this exact command line has left its result."""
    return state_of(command) == "done"


def record_path(command: Command) -> Path:
    """The file with a command's line and duration."""
    return Path(command.folder) / "commands" / f"{command.name}.json"


def read_record(command: Command) -> dict[str, Any]:
    """``command``, ``inputs``, ``done``, ``seconds`` of the last run; empty if there was none.

    Raises:
        ConfigError: if the file is not such a record.
    """
    path = record_path(command)
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {name: record[name] for name in ("command", "inputs", "done", "seconds")}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: no record of a command ({error}); remove the file") from error


def inputs_digest(arguments: Sequence[str]) -> str:
    """SHA-256 of what a command line names: its configurations, and its policy or the shipped one.

    Comments and the order of keys do not count.

    Raises:
        ConfigError: if a configuration is not there, or not YAML.
    """
    digest = hashlib.sha256()
    for flag, value in itertools.pairwise(arguments):
        if flag == "--config":
            try:
                layer = yaml.safe_load(Path(value).read_text(encoding="utf-8"))
            except (OSError, ValueError, yaml.YAMLError) as error:
                raise ConfigError(f"{value}: cannot be read ({one_line(error)})") from error
            digest.update(json.dumps(layer, sort_keys=True).encode())
            start = re.search(r"embedded:(\w+)-tiny", json.dumps(layer))
            if start:
                digest.update(_shipped_weights(start[1]))
        elif flag == "--model.policy.path":  # a row may be judged with another row's policies
            digest.update((weights_digest(value) or "").encode())
    return digest.hexdigest()


@cache
def _shipped_weights(name: str) -> bytes:
    file = Path(tiny.__file__).parent / f"{name}_policy" / "model.safetensors"
    return hashlib.sha256(file.read_bytes() if file.is_file() else b"").digest()
