"""A line of ``samples.jsonl``: one evaluated problem, typed and versioned.

``to_json`` and ``from_json`` are the only translation between a record and its line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Annotated, Any

from msgspec import Meta, convert

from svr_lightning.core.ranges import MAX_COUNT
from svr_lightning.core.types import Problem, StopSignals, TokenScores, Verdict
from svr_lightning.errors import field_error
from svr_lightning.files import to_json

SCHEMA_VERSION = 2
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Nats = Annotated[float, Meta(gt=-1e308, le=0)]
"""A log-probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One graded turn of a trajectory."""

    turn: Count
    """Its number, from 1."""
    text: str
    """As parsers and the next prompt see it."""
    answer: str | None
    """As written; None if none can be read."""
    correct: bool | None
    """y; None without a reference."""
    truncated: bool
    prompt_tokens: Count
    completion_tokens: Count
    finish_reason: str
    """``stop`` or ``length``."""
    grading_error: str | None = None
    """Why the grader could not decide; ``correct`` is False then."""
    verdict: Verdict | None
    """None for a method without a self-check, like ``confidence``."""
    confidence: Probability | None
    """The verdict's prior if the text gave none."""
    answer_group: Count
    """Equal numbers for equal answers of the trajectory, from 1; 0 if none can be read."""
    verdict_probability: Probability | None = None
    """What follows is :class:`~svr_lightning.core.types.TokenScores`; None if not known."""
    answer_logprob: Nats | None = None
    completion_logprob: Nats | None = None
    solution_logprob: Nats | None = None
    feedback: bool | None = None
    """Whether it judges an answer instead of giving one, as a tutor's turn does: it has no label,
    and the answer before it stands."""

    def __post_init__(self) -> None:
        if (self.verdict is None) != (self.confidence is None):
            raise ValueError("a turn needs both 'verdict' and 'confidence', or null for both")


_SIGNALS = attrgetter("verdict", "confidence", "truncated", "answer_group", *TokenScores._fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """The trajectory of one problem. ``dataset`` and ``id`` together are unique."""

    dataset: str
    id: str
    task: str
    """Task that grades it."""
    question: str
    reference: Any
    """The reference answer, any JSON value; ``""`` or None for a user's question."""
    payload: Mapping[str, Any] = field(default_factory=dict)
    """What else the task's grader needs."""
    cluster: str | None = None
    """Variants of one problem share it and count as one in intervals, tests and splits. None: the
    problem is a cluster of its own."""
    error: str | None = None
    """Why the problem could not be run. It counts as wrong."""
    returned_turn: Count
    """The turn whose answer is returned, from 1; 0 if the problem could not be run."""
    stopped_early: bool
    """Whether a turn before T_max ended the trajectory."""
    accepted: bool | None = None
    """Whether the stopping rule accepts the last generated turn, at T_max too. None in recordings
    of earlier versions."""
    turns: tuple[TurnRecord, ...]
    """All recorded turns; those after ``observed_turns`` were generated for replays."""
    observed_turns: Count | None = None
    """Number of generated turns, whose tokens count; None: ``returned_turn``."""

    def __post_init__(self) -> None:
        name = f"record {self.id!r} of {self.dataset!r}"
        recorded = len(self.turns)
        observed = self.observed
        if bool(recorded) == (self.error is not None):
            raise ValueError(f"{name} must have either turns or an 'error'")
        if not min(1, recorded) <= self.returned_turn <= recorded:
            raise ValueError(f"{name} returns turn {self.returned_turn} of {recorded}")
        if not self.returned_turn <= observed <= recorded:
            raise ValueError(
                f"{name}: observed_turns {observed} is not between the returned turn "
                f"{self.returned_turn} and the last, {recorded}"
            )
        if (self.stopped_early or self.accepted) and not recorded:
            raise ValueError(f"{name} stopped without a turn")
        if wrong := [turn.turn for n, turn in enumerate(self.turns, 1) if turn.turn != n]:
            raise ValueError(f"{name}: its turns must be numbered from 1; found {wrong[0]}")

    @property
    def key(self) -> tuple[str, str]:
        """Data set and id."""
        return self.dataset, self.id

    @property
    def problem(self) -> Problem:
        """The problem, as a grader needs it."""
        return Problem(**{f.name: getattr(self, f.name) for f in fields(Problem)})

    @property
    def observed(self) -> int:
        """The number of generated turns, whose tokens count."""
        return self.returned_turn if self.observed_turns is None else self.observed_turns

    @property
    def signals(self) -> tuple[StopSignals, ...]:
        """[T] what stopping rules may read of the turns."""
        return tuple(StopSignals(*_SIGNALS(turn)) for turn in self.turns)

    @property
    def line(self) -> str:
        """The line of a file that holds the record."""
        return f"{to_json(self.to_json())}\n"

    def to_json(self) -> dict[str, Any]:
        """The record as JSON; optional fields only if they are set."""
        turns = [_set_fields(turn) for turn in self.turns]
        return {"schema_version": SCHEMA_VERSION, **_set_fields(self), "turns": turns}

    @classmethod
    def from_json(cls, value: Any) -> "SampleRecord":
        """Read what :meth:`to_json` gives; unknown fields are ignored.

        Raises:
            ValueError: naming the field that is missing or wrong; one instead of a value.
        """
        if isinstance(value, ValueError):
            raise value
        version = value.get("schema_version", 1) if isinstance(value, dict) else SCHEMA_VERSION
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"schema_version {version!r} is not {SCHEMA_VERSION}, which this svr_lightning "
                "reads; evaluate again, or install the version that wrote it"
            )
        try:
            return convert(value, cls)
        except ValueError as error:
            raise ValueError(field_error(error, "the record")) from error


def _set_fields(record: SampleRecord | TurnRecord) -> dict[str, Any]:
    return {
        each.name: value
        for each in fields(record)
        if (value := getattr(record, each.name)) is not None or each.default is not None
    }
