"""Which completions run at which engine step: continuous batching of trajectories, on plain values.

A trajectory's next turn needs its previous one. Places that become free are taken by what waits,
first come, first served; with carry-over also by the next step's trajectories, which are set aside
when the last wanted one ends. That is what ``svr_lightning.rollout.driver`` has its engines do.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from math import inf
from typing import NamedTuple


class Turn(NamedTuple):
    """One completion."""

    prompt: int
    """Tokens."""
    drawn: int
    """Tokens that are sampled, at least 1."""


Trajectory = Sequence[Turn]


@dataclass(frozen=True, kw_only=True)
class Places:
    """How an engine takes up requests."""

    slots: int
    """Completions that run at the same time."""
    group: int = 1
    """Requests that it waits for before it reads their prompts, while others run."""
    patience: int = 0
    """Steps that it waits for them at most."""
    first: int = 1
    """Tokens of a completion that the step which reads its prompt draws."""


class Span(NamedTuple):
    """Engine steps in a row with the same completions."""

    steps: int
    rows: int
    """Completions that draw a token in each step."""
    taken: int
    """Places with a completion, or with a request that waits for its prompt to be read."""
    read: int
    """Prompt tokens that are read in the first step."""
    context: float
    """Tokens before the present ones of all rows together, on average over the steps."""


@dataclass
class Job:
    """A trajectory and how far it is."""

    turns: Trajectory
    ended: int = 0
    """Turns."""
    drawn: int = 0
    """Tokens of the present turn."""

    @property
    def tokens(self) -> int:
        """Drawn so far."""
        return sum(turn.drawn for turn in self.turns[: self.ended]) + self.drawn

    @property
    def done(self) -> bool:
        """Whether all turns have ended."""
        return self.ended == len(self.turns)


class _Row(NamedTuple):
    """A running completion; the one that ends first comes first."""

    end: int
    order: int
    began: int
    context: int
    job: Job


class _Batch:
    """What one engine runs."""

    def __init__(self, places: Places, jobs: Iterable[Job]) -> None:
        self.places, self.queue = places, deque(jobs)
        self.rows: list[_Row] = []
        self.now, self._order = 0, count()
        self._waits_since = inf
        """The step from which on a place was free for the first in the queue."""

    @property
    def requests(self) -> int:
        """Those that wait and those that run."""
        return len(self.queue) + len(self.rows)

    def advance(self, most: float) -> list[Span]:
        """At most ``most`` steps, none of which but the last ends a completion or reads prompts."""
        room = min(self.places.slots - len(self.rows), len(self.queue))
        self._waits_since = min(self._waits_since, self.now) if room else inf
        read, due = 0, self._waits_since + self.places.patience
        if room and (not self.rows or room >= self.places.group or self.now >= due):
            read, due, self._waits_since = self._admit(room), inf, inf
        steps = int(min(most, self.rows[0].end - self.now, due - self.now))
        spans = self._spans(steps, read)
        self._end(steps)
        return spans

    def _admit(self, room: int) -> int:
        read = 0
        for job in [self.queue.popleft() for _ in range(room)]:
            turn = job.turns[job.ended]
            before = turn.prompt + job.drawn
            read += before
            steps = max(1, turn.drawn - job.drawn - self.places.first + 1)
            row = _Row(self.now + steps, next(self._order), self.now, before, job)
            heapq.heappush(self.rows, row)
        return read

    def _spans(self, steps: int, read: int) -> list[Span]:
        rows = len(self.rows)
        taken = min(self.requests, self.places.slots)
        context = sum(row.context + self.now - row.began for row in self.rows)
        if not read:
            return [Span(steps, rows, taken, 0, context + rows * (steps - 1) / 2)]
        spans = [Span(1, rows, taken, read, context)]
        if steps > 1:
            spans.append(Span(steps - 1, rows, taken, 0, context + rows * steps / 2))
        return spans

    def _end(self, steps: int) -> None:
        self.now += steps
        while self.rows and self.rows[0].end == self.now:
            job = heapq.heappop(self.rows).job
            job.ended, job.drawn = job.ended + 1, 0
            if not job.done:
                self.queue.append(job)

    def set_aside(self) -> None:
        """Stop what runs; what was drawn of it stays with its jobs."""
        for row in self.rows:
            row.job.drawn += self.now - row.began + self.places.first - 1


def roll_out(jobs: Iterable[Job], places: Places, ahead: Iterable[Job] = ()) -> list[Span]:
    """Run jobs to their end, and of those ``ahead`` as much as there are free places for."""
    wanted = [job for job in jobs if not job.done]
    spare = (job for job in ahead if not job.done)
    batch, spans = _Batch(places, wanted), []
    while True:
        batch.queue.extend(islice(spare, max(0, places.slots - batch.requests)))
        if batch.requests:
            spans += batch.advance(inf if wanted else 1)
        wanted = [job for job in wanted if not job.done]
        if not wanted:
            break
    batch.set_aside()
    return spans


class Rolled(NamedTuple):
    """The rollout of one optimizer step on one engine."""

    spans: list[Span]
    tokens: int
    """Of its trajectories without those of later attempts, all turns."""
    stale: int
    """Of these, drawn by the weights of the step before."""

    @property
    def steps(self) -> int:
        """Of the engine."""
        return sum(span.steps for span in self.spans)


def optimizer_steps(
    batches: Iterable[Sequence[Sequence[Trajectory]]], places: Places, *, carry_over: bool
) -> Iterator[Rolled]:
    """One rollout per batch of trajectories; with carry-over each begins some of the next one.

    A batch has its generation attempts: the step's trajectories, then those that replace some.
    """
    steps = [[[Job(turns) for turns in attempt] for attempt in batch] for batch in batches]
    for (jobs, *others), later in zip(steps, [*steps[1:], [[]]], strict=True):
        stale = sum(job.tokens for job in jobs)
        ahead = later[0] if carry_over else ()
        spans = [span for attempt in (jobs, *others) for span in roll_out(attempt, places, ahead)]
        yield Rolled(spans, sum(job.tokens for job in jobs), stale)


def idle_share(spans: Sequence[Span], slots: int) -> float:
    """Places without work, of all places in all steps, in [0, 1]; 1 - ``engine/batch_fill``."""
    places = sum(span.steps for span in spans) * slots or 1  # none where all was drawn before
    return 1 - sum(span.steps * span.taken for span in spans) / places
