"""What a terminal shows of an evaluation against a server: one line that stays in its place."""

import contextlib
import threading
import time
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from svr_lightning.display import plain

COLUMNS = 80
_EVERY = 30.0
"""Seconds between two lines where the output is no terminal."""


class Progress:
    """Counts of one data set's evaluation, and their display.

    Args:
        name: of the data set.
        total: trajectories to run.
        quiet: show nothing, for who shows the turns themselves.
    """

    def __init__(self, name: str, total: int, *, quiet: bool = False) -> None:
        self.name = name
        self.total = total
        self.done = self.turns = self.in_flight = self.tokens = 0
        self._quiet = quiet
        self._began = time.monotonic()

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """A request is in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """Show the line while the work goes on, and once more at its end."""
        console = Console()
        if self._quiet:
            yield
        elif console.is_terminal:
            # The terminal's own width: a line that wraps would not be overwritten.
            with Live(get_renderable=self._text, console=console, refresh_per_second=2):
                yield
        else:
            over = threading.Event()
            printer = threading.Thread(target=self._print_at_times, args=(over,), daemon=True)
            printer.start()
            try:
                yield
            finally:
                over.set()
                printer.join()
                self._print()

    def _text(self) -> Text:
        return Text(self.line(), no_wrap=True, overflow="ellipsis")

    def _print_at_times(self, over: threading.Event) -> None:
        while not over.wait(_EVERY):
            self._print()

    def _print(self) -> None:
        Console(width=COLUMNS).print(self._text())

    def line(self) -> str:
        """The present state; see :func:`progress_line`."""
        return progress_line(
            self.name,
            done=self.done,
            total=self.total,
            turns=self.turns,
            in_flight=self.in_flight,
            tokens=self.tokens,
            seconds=time.monotonic() - self._began,
        )


def progress_line(
    name: str,
    *,
    done: int,
    total: int,
    turns: int,
    in_flight: int,
    tokens: int,
    seconds: float,
) -> str:
    """One line of at most :data:`COLUMNS` characters; a long name is shortened.

    Args:
        name: of the data set.
        done: trajectories that have ended, of ``total``.
        total: one for each problem, or for each of its votes.
        turns: that are there, those of an earlier run included.
        in_flight: requests that wait for their answer.
        tokens: completion tokens that came in ``seconds``.
        seconds: since the beginning.
    """
    left = "?" if not done else _clock(seconds * (total - done) / done)
    rate = tokens / seconds if seconds > 0 else 0.0
    rest = (
        f"{done}/{total} done, {turns} turns, {in_flight} in flight, {rate:.0f} tok/s, {left} left"
    )
    return f"{plain(name)[: max(COLUMNS - len(rest) - 2, 0)]}  {rest}"[:COLUMNS]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
