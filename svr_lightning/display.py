"""Text on a terminal. Model text is printed as text: no markup, no escapes."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich import get_console
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from svr_lightning.core.types import SelfCheck

COLUMNS = 80
_VERDICT_STYLE = {"CORRECT": "bold blue", "INCORRECT": "bold dark_orange", "UNSURE": "bold grey50"}
_LINES = 12
"""Longest excerpt of one turn, in lines."""
_EVERY = 30.0
"""Seconds between two progress lines if the output is no terminal."""
_SILENT = 30.0
"""Seconds without a completion after which the progress line says so."""


def plain(text: str) -> str:
    """Model text without control characters, which could move the cursor or colour the screen."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)


def excerpt(text: str, lines: int = _LINES) -> str:
    """The last lines of a text, where the answer and the self-check stand."""
    rows = plain(text).strip().splitlines()
    return "\n".join(rows if len(rows) <= lines else ["...", *rows[-lines:]])


def turn_header(index: int, check: SelfCheck | None, note: str) -> Text:
    """``turn 2  INCORRECT 0.35  note``; without a self-check ``turn 2  note``."""
    header = Text(f"turn {index:<2} ", style="bold")
    if check is not None:
        verdict = check.verdict.value
        header.append(f"{verdict:<9} ", style=_VERDICT_STYLE.get(verdict, ""))
        header.append(f"{check.confidence:.2f}  ", style="bold")
    header.append(note, style="grey50")
    return header


def number(value: float) -> str:
    """Two decimals, and four digits where two decimals would round."""
    return f"{value:.2f}" if round(value, 2) == value else f"{value:.4g}"


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> Table:
    """A table of plain texts: the first column is aligned left, all others right."""
    table = Table(title=Text(title, style="bold") if title else None, title_justify="left")
    for index, name in enumerate(columns):
        table.add_column(Text(name), justify="right" if index else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def merged(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Rows without those that repeat the one before but for their first cell, a label.

    Examples:
        >>> merged([["0.50", "a"], ["0.55", "a"], ["0.60", "a"], ["0.65", "b"]])
        [['0.50-0.60', 'a'], ['0.65', 'b']]
    """
    found: list[list[str]] = []
    first = ""
    for label, *cells in rows:
        if found and found[-1][1:] == cells:
            found[-1][0] = f"{first}-{label}"
        else:
            found.append([label, *cells])
            first = label
    return found


def name_some(names: Sequence[str], most: int = 10) -> str:
    """Names in one line, the first of them where there are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return plain(", ".join(names[:most]).replace("\n", " ")) + more


_OPEN: list[Live] = []


@contextlib.contextmanager
def status_line(line: Callable[[], str], *, always: bool) -> Iterator[None]:
    """Show what ``line`` returns until the block ends.

    On a terminal the line stays in place, below those of enclosing blocks; elsewhere it is printed
    every 30 seconds, and once at the end if that came later or ``always``.
    """

    def shown() -> Text:
        return Text(line(), no_wrap=True, overflow="ellipsis")

    if get_console().is_terminal:
        # The terminal's own width: a line that wraps could not be overwritten. The outermost one
        # stays on the screen as it was last.
        inner = Live(get_renderable=shown, refresh_per_second=2, transient=bool(_OPEN))
        _OPEN.append(inner)
        try:
            with inner:
                yield
        finally:
            _OPEN.remove(inner)
        return
    over, began = threading.Event(), time.monotonic()

    def show_at_times() -> None:
        while not over.wait(_EVERY):
            Console(width=COLUMNS).print(shown())

    printer = threading.Thread(target=show_at_times, daemon=True)
    printer.start()
    try:
        yield
    finally:
        over.set()
        printer.join()
        if always or time.monotonic() - began >= _EVERY:
            Console(width=COLUMNS).print(shown())


class Progress:
    """Counts of one rollout, or of one data set's evaluation, and their display.

    Args:
        name: of the data set.
        total: jobs to run: one for each problem, or for each of its votes.
        done: jobs that an earlier start of the same evaluation finished.
        quiet: show nothing.
    """

    def __init__(self, name: str, total: int, *, done: int = 0, quiet: bool = False) -> None:
        self.name = name
        self.total = total
        self.done = self._done_before = done
        self.turns = self.in_flight = self.tokens = 0
        self._quiet = quiet
        self._describe_wait: Callable[[], str] | None = None
        self._began = self._last = time.monotonic()

    def completed(self, tokens: int) -> None:
        """Count one completion and the ``tokens`` that were generated for it now."""
        self._last = time.monotonic()
        self.turns += 1
        self.tokens += tokens

    @contextlib.contextmanager
    def showing(self, describe_wait: Callable[[], str] | None = None) -> Iterator[None]:
        """Show the line until the block ends.

        Args:
            describe_wait: says why requests take long (such as ``try 2 of 6``), for an engine that
                may keep one waiting.
        """
        self._describe_wait = describe_wait
        self._began = self._last = time.monotonic()
        if self._quiet:
            yield
            return
        with status_line(self.line, always=describe_wait is not None):
            yield

    def line(self) -> str:
        """The present state in at most :data:`COLUMNS` characters; a long name is shortened.

        Thirty seconds after the last completion the line says so, and gives no estimate of the
        time left.
        """
        now = time.monotonic()
        seconds, silent = now - self._began, now - self._last
        if self.in_flight and silent >= _SILENT:
            wait = self._describe_wait() if self._describe_wait is not None else ""
            pace = f"no answer for {clock(silent)}" + (f", {wait}" if wait else "")
        else:
            new = self.done - self._done_before
            left = clock(seconds * (self.total - self.done) / new) if new else "?"
            rate = self.tokens / seconds if seconds > 0 else 0.0
            pace = f"{rate:.0f} tok/s, {clock(seconds)}, {left} left"
        rest = f"{self.done}/{self.total} done, {self.turns} turns, {self.in_flight} in flight, "
        room = max(COLUMNS - len(rest) - len(pace) - 2, 0)
        return f"{plain(self.name)[:room]}  {rest}{pace}"[:COLUMNS]


def clock(seconds: float) -> str:
    """``1:30`` or ``2:01:30``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
