"""Lines that say how far a long evaluation is: for Lightning it is one batch per data set."""

import time

from lightning.pytorch.utilities.rank_zero import rank_zero_info

from svr_lightning.display import plain

EVERY = 30.0
"""Seconds between two lines."""


class Pace:
    """Counts problems as they are finished, and says so now and then.

    Args:
        name: of the data set.
        total: problems of this process.
        done: of these finished in an earlier start.
    """

    def __init__(self, name: str, total: int, done: int = 0) -> None:
        self._name, self._total, self._done = plain(name), total, done
        self._before = done
        self._began = self._said = time.monotonic()

    def count(self) -> None:
        """One more problem is finished."""
        self._done += 1
        now = time.monotonic()
        if now - self._said >= EVERY:
            self._said = now
            rank_zero_info(self.line(now - self._began))

    def line(self, seconds: float) -> str:
        """The state after ``seconds``: ``gsm8k: 500 of 1319 problems, about 4 min left``."""
        left = seconds * (self._total - self._done) / max(self._done - self._before, 1)
        return f"{self._name}: {self._done} of {self._total} problems, about {_rough(left)} left"


def _rough(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
