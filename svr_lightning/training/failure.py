"""One process of several that fails: it says so, and the others do not wait for it.

Whoever starts the processes ends the rest when one has gone: torchrun's agent, ``srun
--kill-on-bad-exit``, and Lightning's own launcher, in the first process, which looks after the
others every few seconds. What they leave undone is done here: a failing process reports before
anything can keep it, leaves within a bounded time, and where it is the first one, Lightning's
other processes end with it.
"""

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from svr_lightning.errors import ConfigError

CLEANING_UP = 20
"""Seconds that a failing process may take to close its loggers and leave its group."""
FIRST_RANKS_TURN = 10
"""Seconds in which the first process reports a faulty configuration that all of them found."""

_LAUNCHER = "SVR_LAUNCHER_PID"
_PR_SET_PDEATHSIG = 1


def note_launcher() -> None:
    """Let processes that Lightning starts from this one, ranks above 0, know which one it is."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.environ[_LAUNCHER] = str(os.getpid())


@contextmanager
def failing_together(trainer: Any) -> Iterator[None]:
    """Within it, an error of one process becomes the end of all.

    Args:
        trainer: its ``world_size``, ``global_rank`` and ``strategy.launcher`` are asked for.

    Raises:
        SystemExit: 1, in place of an error that was reported here with the rank's number.
        ConfigError: as it was raised, for the command line to print as one line; from the
            first process at once, from the others only where the first one had nothing to say.
    """
    if trainer.world_size == 1:
        yield
        return
    _follow_launcher()
    try:
        yield
    except (ConfigError, MisconfigurationException) as error:
        if trainer.global_rank == 0:
            _end_the_others(trainer)
            _be_gone_in_time()
            raise
        _let_the_first_speak()
        raise ConfigError(f"rank {trainer.global_rank}: {error}") from error
    except Exception as error:
        _report(error, trainer.global_rank)
        if trainer.global_rank == 0:
            _end_the_others(trainer)
        _be_gone_in_time()
        raise SystemExit(1) from error


def _report(error: BaseException, rank: int) -> None:
    """In one write, so that the lines of several processes do not mix."""
    trace = "".join(traceback.format_exception(error))
    line = f"svr_lightning: error: rank {rank} failed: {type(error).__name__}: {error}"
    sys.stderr.write(f"{trace}{line}\n")
    sys.stderr.flush()


def _be_gone_in_time() -> None:
    """The system ends this process, should a callback or a collective keep it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(CLEANING_UP)


def _end_the_others(trainer: Any) -> None:
    launcher = trainer.strategy.launcher
    if launcher is not None:
        launcher.kill(signal.SIGKILL)  # without effect where something else started them


def _let_the_first_speak() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun's way of ending the others
    time.sleep(FIRST_RANKS_TURN)


def _follow_launcher() -> None:
    """Have the system end this process with the one that started it, whatever keeps either."""
    launcher = os.environ.get(_LAUNCHER)
    if sys.platform != "linux" or launcher != str(os.getppid()):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if launcher != str(os.getppid()):  # gone in between
        os._exit(1)
