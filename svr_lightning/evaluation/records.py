"""The records that evaluations write and everything else reads: typed, versioned JSON lines.

``samples.jsonl`` holds a :class:`SampleRecord` per problem, ``votes.jsonl`` a :class:`PoolRecord`.
``to_json`` and ``from_json`` are the only translation between a record and its line.

Version 1 is what svr_lightning 0.1 wrote without a ``schema_version``: such a record has no task,
payload or cluster, and a method without a self-check states UNSURE at 0.5 on every turn.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

from svr_lightning.core.stopping import StopSignals
from svr_lightning.core.types import Problem, Verdict
from svr_lightning.files import to_json

SCHEMA_VERSION = 2
SAMPLES = "samples.jsonl"
VOTES = "votes.jsonl"
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
    verdict_probability: float | None = None
    """Probability with which the policy gave the word of its verdict; None if not known."""

    def signals(self) -> StopSignals:
        """The inputs of a stopping rule; raises ValueError without a self-check."""
        if self.verdict is None or self.confidence is None:
            raise ValueError(f"turn {self.turn} has no self-check that a stopping rule could read")
        return StopSignals(
            verdict=self.verdict,
            confidence=self.confidence,
            truncated=self.truncated,
            answer=self.answer,
            verdict_probability=self.verdict_probability,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRecord:
    """The fields of a record about its problem. ``dataset`` and ``id`` together are unique."""

    dataset: str
    id: str
    task: str | None
    """Task that grades it; None in version 1."""
    question: str
    reference: Any
    """The gold answer, any JSON value; ``""`` or None for a question of the user's own."""
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
    def has_reference(self) -> bool:
        """Whether its answers can be graded."""
        return self.reference is not None and self.reference != ""

    def problem(self) -> Problem:
        """The problem, as a grader needs it.

        Raises:
            ValueError: if the record does not say its task.
        """
        if self.task is None:
            raise ValueError(
                f"{self.dataset}/{self.id} does not name its task (written by svr_lightning 0.1); "
                "evaluate again to record it"
            )
        return Problem(
            id=self.id,
            task=self.task,
            question=self.question,
            reference=self.reference,
            payload=self.payload,
            cluster=self.cluster,
        )


def problem_fields(problem: Problem, dataset: str) -> dict[str, Any]:
    """The fields of :class:`ProblemRecord` for ``problem``, to make a record with."""
    return {
        "dataset": dataset,
        "id": problem.id,
        "task": problem.task,
        "question": problem.question,
        "reference": problem.reference,
        "payload": problem.payload,
        "cluster": problem.cluster,
    }


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
    """How many turns were generated and are paid for; None: as many as ``returned_turn``."""

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
        """Turns that were generated and are paid for."""
        return self.returned_turn if self.observed_turns is None else self.observed_turns

    @property
    def completions(self) -> tuple[CompletionRecord, ...]:
        """Everything that was generated."""
        return self.turns

    def to_json(self) -> dict[str, Any]:
        """The record as JSON; optional fields only if they are set."""
        line = _to_json(self, leave_out=("turns", "observed_turns"))
        if self.observed != self.returned_turn:
            line["observed_turns"] = self.observed
        return {**line, "turns": [_to_json(turn) for turn in self.turns]}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read what :meth:`to_json` gives, or a record of version 1.

        Raises:
            ValueError: naming the field that is missing or wrong.
        """
        values = _problem(cls, value)
        turns = tuple(_turn(turn, f"turn {n}") for n, turn in enumerate(_list(value, "turns"), 1))
        return cls(**values, turns=turns)


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

    def to_json(self) -> dict[str, Any]:
        """The record as a line holds it."""
        line = _to_json(self, leave_out=("samples",))
        return {**line, "samples": [_to_json(sample) for sample in self.samples]}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read what :meth:`to_json` gives, or a record of version 1; raises ValueError."""
        values = _problem(cls, value)
        samples = tuple(
            CompletionRecord(**_read(CompletionRecord, sample, f"sample {n}"))
            for n, sample in enumerate(_list(value, "samples"), 1)
        )
        return cls(**values, samples=samples)


AnyRecord = SampleRecord | PoolRecord
Record = TypeVar("Record", SampleRecord, PoolRecord)


def record_from_json(value: Any) -> AnyRecord:
    """Read a record of either kind; raises ValueError for what is none."""
    pooled = isinstance(value, dict) and "samples" in value
    return PoolRecord.from_json(value) if pooled else SampleRecord.from_json(value)


def record_line(record: AnyRecord) -> str:
    """The line of a file that holds ``record``."""
    return f"{to_json(record.to_json())}\n"


def unique(records: Sequence[Record]) -> list[Record]:
    """The first record of each problem, in order: a distributed sampler pads with repeats."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        found.setdefault(record.key, record)
    return list(found.values())


# --- reading ------------------------------------------------------------------------------------


def is_count(value: Any) -> bool:
    """A whole number from 0 to :data:`MAX_COUNT`; true and false are none."""
    return type(value) is int and 0 <= value <= MAX_COUNT


_KINDS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    str: (lambda value: isinstance(value, str), "a string"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    int: (is_count, "a whole number"),
    float: (lambda value: type(value) in (int, float) and 0 <= value <= 1, "a number in [0, 1]"),
    Verdict: (lambda value: value in list(Verdict), "one of " + ", ".join(Verdict)),
    Mapping[str, Any]: (lambda value: isinstance(value, dict), "an object"),
}
"""By the type of a record's field, what accepts a value, and what it must be in words."""
_ABSENT_IN_VERSION_1 = ("task", "reference", "answer")


@cache
def _schema(kind: type) -> dict[str, tuple[Any, bool]]:
    """{field: (type, whether null is allowed)}; tuples are read apart."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        options = [one for one in get_args(hint) if one is not NoneType] or [hint]
        if get_origin(hint) is not tuple:
            found[name] = (
                hint if hint in _KINDS or hint is Any else options[0],
                hint not in _KINDS,
            )
    return found


def _read(kind: type, value: Any, what: str) -> dict[str, Any]:
    """The fields of a record ``kind`` in a JSON object; unknown ones are ignored."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no JSON object")
    optional = {f.name for f in fields(kind) if f.default is not MISSING}
    optional |= {f.name for f in fields(kind) if f.default_factory is not MISSING}
    found: dict[str, Any] = {}
    for name, (hint, nullable) in _schema(kind).items():
        if name not in value:
            if name in _ABSENT_IN_VERSION_1:
                found[name] = None
            elif name not in optional:
                raise ValueError(f"{what} has no {name!r}")
            continue
        found[name] = value[name]
        if hint is Any or (nullable and value[name] is None):
            continue
        accepts, wanted = _KINDS[hint]
        if not accepts(value[name]):
            raise ValueError(f"{name!r} of {what} must be {wanted}{' or null' * nullable}")
    return found


def _list(value: Mapping[str, Any], name: str) -> list[Any]:
    if isinstance(found := value.get(name), list):
        return found
    raise ValueError(f"{name!r} of the record must be a list")


def _problem(kind: type, value: Any) -> dict[str, Any]:
    found = _read(kind, value, "the record")
    version = value.get("schema_version", 1)
    if version not in (1, SCHEMA_VERSION):
        raise ValueError(
            f"schema_version {version!r} is not one that this svr_lightning reads (up to "
            f"{SCHEMA_VERSION}); update it"
        )
    return found


def _turn(value: Any, what: str) -> TurnRecord:
    found = _read(TurnRecord, value, what)
    if (found["verdict"] is None) != (found["confidence"] is None):
        raise ValueError(f"{what} must have both 'verdict' and 'confidence', or null for both")
    if found["verdict"] is not None:
        found["verdict"] = Verdict(found["verdict"])
    return TurnRecord(**found)


# --- writing ------------------------------------------------------------------------------------

_FIRST = ("schema_version", "dataset", "id", "task", "question", "reference", "payload", "cluster")
_FIRST_OF_TURN = ("turn", "text", "answer", "correct", "verdict", "confidence")
_ONLY_IF_KNOWN = ("error", "cluster", "grading_error", "verdict_probability")


def _to_json(record: Any, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    values = {f.name: getattr(record, f.name) for f in fields(record) if f.name not in leave_out}
    if isinstance(record, ProblemRecord):
        values["schema_version"] = SCHEMA_VERSION
    order = dict.fromkeys([*_FIRST, *_FIRST_OF_TURN, *values])
    return {
        name: values[name]
        for name in order
        if name in values and (name not in _ONLY_IF_KNOWN or values[name] is not None)
    }
