"""Running cells: one process per command, what is done is kept, what was cut short goes on.

Beside a cell's results lies ``commands/``: of each command the log, and a record of its line.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from svr_lightning.errors import ConfigError
from svr_lightning.experiments.plan import Cell, Command
from svr_lightning.files import write_json

PROGRAM = (sys.executable, "-m", "svr_lightning")
_GRACE = 10.0  # seconds that a child has to end by itself

Say = Callable[[str], None]


class CommandFailed(Exception):
    """A command ended with an error, or cannot be run where it is to be run."""


class Runner:
    """Runs cells side by side, each command in a process with one thread.

    Args:
        program: what arguments are handed to.
        say: told what begins, ends and fails, in one line each.
    """

    def __init__(self, program: Sequence[str] = PROGRAM, say: Say = print) -> None:
        self._program = tuple(program)
        self._say = say
        self._children: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, cells: Sequence[Cell], jobs: int) -> list[str]:
        """Run what is not done yet; a cell ends at its first failure, the others go on.

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
            if self._stopped or is_done(command):
                continue
            began = time.perf_counter()
            try:
                self._command(command)
            except (CommandFailed, OSError) as error:
                if not self._stopped:
                    failures.append(f"{cell.name}: {error}")
                    self._say(failures[-1])
                return
            self._say(f"{cell.name}: {command.name} done, {time.perf_counter() - began:.0f} s")

    def _command(self, command: Command) -> None:
        record = read_record(command)
        if record and record["command"] != command.line:
            raise CommandFailed(
                f"{command.folder} holds results of another command line, see "
                f"{record_path(command)}; remove the folder or give another --out"
            )
        arguments = list(command.arguments)
        if command.checkpoint and Path(command.checkpoint).is_file():
            arguments += ["--ckpt_path", "last"]
        log = record_path(command).with_suffix(".log")
        earlier = float(record.get("seconds", 0.0))
        write_json(record_path(command), _record(command, earlier, done=False))
        began = time.perf_counter()
        code = self._process([*self._program, *arguments], log)
        seconds = earlier + time.perf_counter() - began
        if self._stopped:
            raise CommandFailed(f"{command.name} was interrupted")
        if code or not Path(command.result).is_file():
            end = f"ended with {code}" if code else f"left no {command.result}"
            raise CommandFailed(f"{command.name} {end}, see {log}")
        write_json(record_path(command), _record(command, seconds, done=True))

    def _process(self, line: Sequence[str], log: Path) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("ab") as stream:
            with self._lock:
                if self._stopped:
                    return 1
                # A session of its own: Ctrl-C reaches the children through _stop alone.
                child = subprocess.Popen(  # noqa: S603 - our own command line, no shell
                    line, env=environment, stdout=stream, stderr=stream, start_new_session=True
                )
                self._children.add(child)
            code = child.wait()
            with self._lock:
                self._children.discard(child)
            return code

    def _stop(self) -> None:
        """End every child; checkpoints and journals are whole at any moment."""
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


def is_done(command: Command) -> bool:
    """Whether this very command line has left its result."""
    record = read_record(command)
    same = record.get("command") == command.line
    return bool(same and record.get("done") and Path(command.result).is_file())


def record_path(command: Command) -> Path:
    """Where a command's line and its time are kept."""
    return Path(command.folder) / "commands" / f"{command.name}.json"


def read_record(command: Command) -> dict[str, Any]:
    """``command``, ``done`` and ``seconds`` of what was run; empty where nothing was.

    Raises:
        ConfigError: if the file is not such a record.
    """
    path = record_path(command)
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {"command": record["command"], "done": record["done"], "seconds": record["seconds"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: no record of a command ({error}); remove the file") from error


def _record(command: Command, seconds: float, *, done: bool) -> dict[str, Any]:
    return {"command": command.line, "done": done, "seconds": round(seconds, 1)}
