"""The records that evaluations write and everything else reads: typed, versioned JSON lines.

``samples.jsonl`` holds a :class:`SampleRecord` per problem, ``votes.jsonl`` a :class:`PoolRecord`.
``to_json`` and ``from_json`` are the only translation between a record and its line.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from math import inf
from types import NoneType
from typing import Any, NewType, Self, TypeVar, get_args, get_origin, get_type_hints

from svr_lightning.core.types import Problem, StopSignals, Verdict
from svr_lightning.files import to_json

SCHEMA_VERSION = 2
Nats = NewType("Nats", float)
"""A log-probability."""
MAX_COUNT = 2**31 - 1
"""No token count or turn number is larger, so that sums of them fit 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRecord:
    """One graded completion: a sample of a pool."""

    text: str
    """As parsers and the next prompt see it."""
    answer: str | None
    """As written; None if none can be read."""
    correct: bool | None
    """y; None without a reference."""
    truncated: bool
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    """``stop`` or ``length``."""
    grading_error: str | None = None
    """Why the grader could not decide; ``correct`` is False then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord(CompletionRecord):
    """One turn of a trajectory."""

    turn: int
    """Its number, from 1."""
    verdict: Verdict | None
    """None for a method without a self-check, like ``confidence``."""
    confidence: float | None
    """In [0, 1]; the verdict's prior if the text gave none."""
    answer_group: int | None = None
    """Equal numbers for equal answers of the trajectory, from 1; 0 if none can be read. None:
    written before there were such numbers."""
    verdict_probability: float | None = None
    """What follows is :class:`~svr_lightning.core.types.TokenScores`; None if not known."""
    answer_logprob: Nats | None = None
    completion_logprob: Nats | None = None

    def __post_init__(self) -> None:
        if (self.verdict is None) != (self.confidence is None):
            raise ValueError(
                f"turn {self.turn} must have both 'verdict' and 'confidence', or null for both"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRecord:
    """The fields of a record about its problem. ``dataset`` and ``id`` together are unique."""

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

    @property
    def key(self) -> tuple[str, str]:
        """Data set and id."""
        return self.dataset, self.id

    @property
    def problem(self) -> Problem:
        """The problem, as a grader needs it."""
        return Problem(**{f.name: getattr(self, f.name) for f in fields(Problem)})

    def to_json(self) -> dict[str, Any]:
        """The record as JSON; optional fields only if they are set."""
        return {"schema_version": SCHEMA_VERSION, **_to_json(self)}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read what :meth:`to_json` gives.

        Raises:
            ValueError: naming the field that is missing or wrong.
        """
        version = value.get("schema_version", 1) if isinstance(value, dict) else SCHEMA_VERSION
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"schema_version {version!r} is not {SCHEMA_VERSION}, which this svr_lightning "
                "reads; evaluate again, or install the version that wrote it"
            )
        record: Self = _read(cls, value, "the record")
        return record


def problem_fields(problem: Problem, dataset: str) -> dict[str, Any]:
    """The fields of :class:`ProblemRecord` for ``problem``, to make a record with."""
    return {"dataset": dataset, **{f.name: getattr(problem, f.name) for f in fields(Problem)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord(ProblemRecord):
    """One trajectory: a line of ``samples.jsonl``."""

    returned_turn: int
    """The turn whose answer is returned, from 1; 0 if the problem could not be run."""
    stopped_early: bool
    """Whether a turn before T_max ended the trajectory."""
    turns: tuple[TurnRecord, ...]
    """All recorded turns; those behind ``observed_turns`` were generated for replays."""
    observed_turns: int | None = None
    """Number of generated turns, whose tokens count; None: ``returned_turn``."""

    def __post_init__(self) -> None:
        name = f"record {self.id!r} of {self.dataset!r}"
        recorded, observed = len(self.turns), self.observed
        if bool(recorded) == (self.error is not None):
            raise ValueError(f"{name} must have either turns or an 'error'")
        if not min(1, recorded) <= self.returned_turn <= recorded:
            raise ValueError(f"{name} returns turn {self.returned_turn} of {recorded}")
        if not self.returned_turn <= observed <= recorded:
            raise ValueError(
                f"{name}: observed_turns {observed} is not between the returned turn "
                f"{self.returned_turn} and the last, {recorded}"
            )
        if self.stopped_early and not recorded:
            raise ValueError(f"{name} stopped early without a turn")
        if wrong := [turn.turn for n, turn in enumerate(self.turns, 1) if turn.turn != n]:
            raise ValueError(f"{name}: its turns must be numbered from 1; found {wrong[0]}")

    @property
    def observed(self) -> int:
        """The generated turns, whose tokens count."""
        return self.returned_turn if self.observed_turns is None else self.observed_turns

    @property
    def right(self) -> bool:
        """Whether the returned answer is correct."""
        return bool(self.returned_turn and self.turns[self.returned_turn - 1].correct)

    @property
    def signals(self) -> tuple[StopSignals, ...]:
        """[T] what stopping rules may read of the turns.

        Without recorded groups, answers are equal if they are the same text without white space.
        """
        texts = ["".join((turn.answer or "").split()) for turn in self.turns]
        return tuple(
            StopSignals(
                turn.verdict,
                turn.confidence,
                turn.truncated,
                texts.index(text) + 1
                if turn.answer_group is None and text
                else turn.answer_group or 0,
                turn.verdict_probability,
                turn.answer_logprob,
                turn.completion_logprob,
            )
            for turn, text in zip(self.turns, texts, strict=True)
        )

    @property
    def completions(self) -> tuple[CompletionRecord, ...]:
        """Everything that was generated."""
        return self.turns


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord(ProblemRecord):
    """Independent single-turn samples of one problem: a line of ``votes.jsonl``."""

    samples: tuple[CompletionRecord, ...]

    def __post_init__(self) -> None:
        if bool(self.samples) == (self.error is not None):
            raise ValueError(
                f"record {self.id!r} of {self.dataset!r} must have either samples or an 'error'"
            )

    @property
    def completions(self) -> tuple[CompletionRecord, ...]:
        """Everything that was generated."""
        return self.samples


AnyRecord = SampleRecord | PoolRecord
Record = TypeVar("Record", SampleRecord, PoolRecord)


def record_line(record: AnyRecord) -> str:
    """The line of a file that holds ``record``."""
    return f"{to_json(record.to_json())}\n"


def unique(records: Sequence[Record]) -> list[Record]:
    """The first record of each problem, in order: a distributed sampler pads with repeats."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        found.setdefault(record.key, record)
    return list(found.values())


def by_dataset(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each data set, in the order in which the data sets first occur."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.dataset, []).append(record)
    return found


# --- JSON ---------------------------------------------------------------------------------------

_KINDS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    str: (lambda value: isinstance(value, str), "a string"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    int: (lambda value: type(value) is int and 0 <= value <= MAX_COUNT, "a whole number"),
    float: (lambda value: type(value) in (int, float) and 0 <= value <= 1, "a number in [0, 1]"),
    Nats: (lambda value: type(value) in (int, float) and -inf < value <= 0, "a number up to 0"),
    Verdict: (lambda value: value in list(Verdict), "one of " + ", ".join(Verdict)),
    Mapping[str, Any]: (lambda value: isinstance(value, dict), "an object"),
}
"""By the type of a record's field, what accepts a value, and what it must be in words."""


@cache
def _schema(kind: type) -> tuple[tuple[Field[Any], Any, bool], ...]:
    """Each field of a record with its type, and whether it may be null."""
    hints = get_type_hints(kind)
    found = []
    for one in fields(kind):
        options = get_args(hints[one.name])
        nullable = NoneType in options
        found.append((one, options[0] if nullable else hints[one.name], nullable))
    return tuple(found)


def _read(kind: type, value: Any, what: str) -> Any:
    """The record ``kind`` of a JSON object; unknown fields are ignored."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no JSON object")
    found: dict[str, Any] = {}
    for one, hint, nullable in _schema(kind):
        name = one.name
        if name not in value:
            if one.default is MISSING and one.default_factory is MISSING:
                raise ValueError(f"{what} has no {name!r}")
            continue
        found[name] = value[name]
        if hint is Any or (nullable and value[name] is None):
            continue
        if get_origin(hint) is tuple:
            if not isinstance(value[name], list):
                raise ValueError(f"{name!r} of {what} must be a list")
            part, single = get_args(hint)[0], name.removesuffix("s")
            numbered = enumerate(value[name], start=1)
            found[name] = tuple(_read(part, item, f"{single} {n}") for n, item in numbered)
            continue
        accepts, wanted = _KINDS[hint]
        if not accepts(value[name]):
            raise ValueError(f"{name!r} of {what} must be {wanted}{' or null' * nullable}")
        if hint is Verdict:
            found[name] = Verdict(value[name])
    return kind(**found)


def _to_json(record: Any) -> dict[str, Any]:
    """The fields of a record, a turn's number first; without those that default to None and are."""
    kind: type = type(record)
    values: dict[str, Any] = {}
    for one, hint, _ in _schema(kind):
        value = getattr(record, one.name)
        if get_origin(hint) is tuple:
            value = [_to_json(part) for part in value]
        if value is not None or one.default is not None:
            values[one.name] = value
    return {"turn": values.pop("turn"), **values} if "turn" in values else values
