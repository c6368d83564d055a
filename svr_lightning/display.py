"""Text on a terminal. Model text is printed as text: no markup, no escapes."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from svr_lightning.core.metrics import NONE
from svr_lightning.core.types import Turn

COLUMNS = 80
_VERDICT_STYLE = {"CORRECT": "bold blue", "INCORRECT": "bold dark_orange", "UNSURE": "bold grey50"}
_LONGEST_NAME = 20
_EVERY = 30.0
"""Seconds between two progress lines if the output is no terminal."""


def plain(text: str) -> str:
    """Model text without control characters, which could move the cursor or colour the screen."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)


def short(text: str, limit: int) -> str:
    """A name on one line, without control characters, of at most ``limit`` characters."""
    clean = plain(" ".join(text.split()))
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}\u2026"


def interval(bounds: Sequence[float], form: str = "{:.3f}") -> str:
    """``[0.412, 0.583]``."""
    return f"[{', '.join(map(form.format, bounds))}]"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print a table of plain texts: the first column is aligned left, all others right.

    A column without any value is left out.
    """
    if title:
        say(title, style="bold")
    first, *others = zip_longest(columns, *rows, fillvalue="")
    kept = [first, *(column for column in others if {*column[1:]} - {"", NONE})]
    # More than eight columns sit closer.
    table = Table(box=SIMPLE, padding=(0, 1, 0, int(len(kept) < 9)), pad_edge=False)
    heads, *lines = zip(*kept, strict=True)
    for index, name in enumerate(heads):
        table.add_column(Text(name), justify="right" if index else "left")
    for line in lines:
        table.add_row(*map(Text, line))
    Console().print(table)


def say(*lines: str, style: str = "") -> None:
    """Print lines as text, without control characters."""
    for line in lines:
        Console().print(Text(plain(line), style=style))


def print_turn(turn: Turn, note: str, lines: int = 12) -> None:
    """Print ``turn 2  INCORRECT 0.35  note``, and below it the last ``lines`` of the turn's text.

    The answer and the self-check are at the end. Without a self-check it is ``turn 2  note``.
    """
    header = Text(f"turn {turn.index:<2} ", style="bold")
    if turn.check is not None:
        verdict = turn.check.verdict.value
        header.append(f"{verdict:<9} ", style=_VERDICT_STYLE.get(verdict, ""))
        header.append(f"{turn.check.confidence:.2f}  ", style="bold")
    header.append(note, style="grey50")
    Console().print(header)
    rows = plain(turn.completion.text).strip().splitlines()
    say("\n".join(rows if len(rows) <= lines else ["...", *rows[-lines:]]))


def join_first(names: Sequence[str], most: int = 10, between: str = ", ") -> str:
    """Names on one line; of more than ``most``, the first and how many more there are."""
    more = f"{between}and {len(names) - most} more" if len(names) > most else ""
    return plain(between.join(names[:most]).replace("\n", " ")) + more


class Line(tqdm):  # type: ignore[misc]
    """A line of at most :data:`COLUMNS` characters: counts, times, and what :meth:`show` adds."""

    desc: str

    def display(self, **given: object) -> None:
        """On a terminal, write over the line. Elsewhere each is a line of its own, without codes.

        There one below another is written when it has gone on.
        """
        if self.fp.isatty():
            super().display(**given)
        elif (self.n or not self.pos) and "msg" not in given:  # an empty one takes a line back
            print(self, file=self.fp, flush=True)

    def show(self, values: Iterable[str], done: int, part: float = 0.0) -> None:
        """Bring the line up to date, with as many of ``values`` as it has room for.

        ``part`` is what is done of others; it counts for the time that is left.
        """
        if self.disable:
            return
        self.desc = f"{self.desc.rpartition(' ')[0]} {done}/{self.total}"
        self.set_postfix_str("", refresh=False)
        room = COLUMNS - len(str(self))
        shown = ""
        for value in values:
            if len(f"{shown}, {value}") > room:
                break
            shown += f", {value}"
        self.set_postfix_str(shown.removeprefix(", "), refresh=False)
        self.update(done + part - self.n)


def progress_line(total: float, name: str, *, done: int = 0, quiet: bool = False) -> Line:
    """A :class:`Line`; outside of a terminal it is printed every 30 seconds at most."""
    return Line(
        total=total,
        initial=done,
        desc=f"{short(name, _LONGEST_NAME)} {done}/{total}",
        disable=quiet,
        leave=None,  # a line below another one disappears when it is done
        file=sys.stdout,
        ncols=COLUMNS,
        nrows=COLUMNS,  # on a terminal that reports no height tqdm would show nothing
        bar_format="{desc}, {elapsed}, {remaining} left{postfix}",
        mininterval=0.5 if sys.stdout.isatty() else _EVERY,
        miniters=0,
        smoothing=0,  # the time left follows from the mean rate
    )


class Progress:
    """Counts of one rollout, or of one data set's evaluation, and their display.

    Args:
        name: of the data set.
        total: jobs to run: one for each problem, or for each of its votes.
        turns: most turns of a job. Of one that goes on, the turns that have ended then count for
            the time that is left.
        done: jobs that an earlier start of the same evaluation finished.
        quiet: show nothing.
    """

    def __init__(
        self,
        name: str,
        total: int,
        *,
        turns: float = math.inf,
        done: int = 0,
        quiet: bool = False,
    ) -> None:
        self.name, self.total, self.done = name, total, done
        self.turns = self.in_flight = self.tokens = 0
        self._most = turns
        self._quiet = quiet

    def completed(self, tokens: int) -> None:
        """Count one completion and the ``tokens`` that were generated for it now."""
        self.turns += 1
        self.tokens += tokens

    @contextlib.contextmanager
    def showing(self) -> Iterator[Callable[[int], None]]:
        """Show the line until the block ends.

        What it yields brings the line up to date, and takes the turns of jobs that go on.
        """
        started = time.monotonic()
        with progress_line(self.total, self.name, done=self.done, quiet=self._quiet) as bar:

            def refresh(turns: int = 0) -> None:
                rate = self.tokens / max(time.monotonic() - started, 1e-9)
                counts = (f"{rate:.0f} tok/s", f"{self.turns} turns", f"{self.in_flight} in flight")
                bar.show(counts, self.done, turns / self._most)

            yield refresh
            refresh()
