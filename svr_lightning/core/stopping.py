"""Stopping rules: when a trajectory ends, and which of its turns is returned.

A rule is a frozen value that sees only the turns so far. One definition serves inference, turn by
turn, and replays of recorded turns: both call :func:`ending` after each turn.
:class:`StopRule` is the base of the rules that need no labels; only those can be configured
(``model.evaluation.stop``). The paper's rule (equation "stopping-time", appendix
"app_adaptive_stop") is :class:`Confident` with its defaults. docs/stopping.md has the sources.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self

from msgspec import Meta

from svr_lightning.core.ranges import ConfigError, Count, check_fields, require_field
from svr_lightning.core.types import Ending, StopSignals, Verdict

DEFAULT_THRESHOLD = 0.85
DEFAULT_TURNS = 10
"""The paper's threshold and its T_max."""
Score = Literal[
    "confidence",
    "verdict_probability",
    "answer_logprob",
    "completion_logprob",
    "solution_logprob",
]
Judgements = Iterator[tuple[float, int]]
"""For each turn, a value that decides whether it stops, and the turn returned then."""


class StopRule(ABC):
    """A rule that needs no labels: what inference can use.

    Its fields are held to their ranges when it is made (:mod:`svr_lightning.core.ranges`).
    """

    reads: ClassVar[tuple[str, ...]] = StopSignals._fields
    """The signals that it reads. Trajectories that agree in these are judged once in a replay."""
    strictness: ClassVar[str | None] = None
    """The field that ``certify`` chooses: the larger it is, the fewer answers are accepted."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def needs_self_check(self) -> bool:
        """Whether it never stops a method that states no verdict and no confidence."""
        return False

    @property
    def reads_self_check(self) -> bool:
        """Whether verdict or confidence matter to it, or the probabilities of their tokens."""
        return self.needs_self_check or getattr(self, "score", None) in _OF_SELF_CHECK

    @property
    def needs_tokens(self) -> bool:
        """Whether it reads log-probabilities of sampled tokens, which a server may not give.

        Every score comes from some, but for the confidence.
        """
        return getattr(self, "score", "confidence") != "confidence"

    @abstractmethod
    def stops(self, turns: Sequence[StopSignals], max_turns: int) -> bool:
        """Whether the last of ``turns`` ends the trajectory.

        Args:
            turns: all turns so far, at least one.
            max_turns: T_max.
        """

    def answer_turn(self, turns: Sequence[StopSignals], max_turns: int) -> int:
        """The turn (from 1) whose answer is returned if no other follows; the last by default."""
        return len(turns)

    def after_each(self, turns: Sequence[StopSignals], max_turns: int) -> Judgements:
        """For each of ``turns``: whether it ends the trajectory, and the turn returned then."""
        for count in range(1, len(turns) + 1):
            seen = turns[:count]
            yield self.stops(seen, max_turns), self.answer_turn(seen, max_turns)

    def reason(self, turns: Sequence[StopSignals]) -> str:
        """Why the last of ``turns`` ended the trajectory, in a few words."""
        return str(self)

    @property
    def bound(self) -> Any:
        """The value of its field :attr:`strictness`."""
        return getattr(self, str(self.strictness))

    def with_threshold(self, threshold: float) -> Self:
        """The rule with another value of its field :attr:`strictness`.

        Raises:
            ConfigError: if the field cannot have it, or there is none.
        """
        name = self.strictness
        if name is None:
            raise ConfigError(f"the stopping rule, {self}, has no threshold; name one that has")
        whole = isinstance(self.bound, int) and threshold.is_integer()
        return replace(self, **{name: int(threshold) if whole else threshold})  # type: ignore[type-var]


@dataclass(frozen=True, kw_only=True)
class FixedTurns(StopRule):
    """Always the same number of turns, even if the last has no answer."""

    turns: Count = 1
    reads = ()

    def __str__(self) -> str:
        return f"{self.turns} turn{'s' * (self.turns != 1)}"

    def stops(self, turns: Sequence[StopSignals], max_turns: int) -> bool:
        """Whether that many turns have been made."""
        return len(turns) >= self.turns


class Voting(StopRule):
    """A rule on a value of the answers so far: how often, or how surely, one was given."""

    @abstractmethod
    def after_each(self, turns: Sequence[StopSignals], max_turns: int) -> Judgements:
        """After each turn, what must reach the field :attr:`strictness`, and the turn returned."""

    def stops(self, turns: Sequence[StopSignals], max_turns: int) -> bool:
        """Whether the value after the last turn reaches its threshold."""
        *_, (value, _) = self.after_each(turns, max_turns)
        return bool(value >= self.bound)

    def answer_turn(self, turns: Sequence[StopSignals], max_turns: int) -> int:
        """The turn whose answer the value speaks for."""
        *_, (_, returned) = self.after_each(turns, max_turns)
        return returned


@dataclass(frozen=True, kw_only=True)
class RepeatedAnswer(Voting):
    """Stops when an answer has been given ``times`` times. Unreadable answers never count."""

    times: Annotated[int, Meta(ge=2)] = 2
    in_a_row: bool = True
    """Whether they must be consecutive."""
    reads = ("answer",)
    strictness = "times"

    def __str__(self) -> str:
        return f"an answer given {self.times} times" + " in a row" * self.in_a_row

    def after_each(self, turns: Sequence[StopSignals], max_turns: int) -> Judgements:
        """How often the answer of each turn has been given, and the turn itself."""
        votes = Counter[int | None]()
        for count, turn in enumerate(turns, start=1):
            if self.in_a_row and turn.answer not in votes:
                votes.clear()
            votes[turn.answer] += 1
            yield votes[turn.answer] if turn.answer else 0, count


@dataclass(frozen=True, kw_only=True)
class Majority(Voting):
    """The majority of the turns' answers; stops as soon as it is settled.

    The answer that most turns gave is returned; ties go to the answer that was given first, and
    unreadable answers do not vote. If none can be read, the last turn is returned.
    """

    certainty: Annotated[float, Meta(ge=0.5, le=1)] = 1.0
    """1: stop when the turns that are left can no longer change the majority of all T_max. Below 1:
    also when the leading answer beats the second with this probability, by the Beta posterior of
    adaptive consistency (arXiv 2305.11860), which takes turns for independent draws."""
    reads = ("answer",)
    strictness = "certainty"

    def __str__(self) -> str:
        sure = "settled" if self.certainty == 1 else f"sure at {self.certainty:g}"
        return f"the majority is {sure}"

    def after_each(self, turns: Sequence[StopSignals], max_turns: int) -> Judgements:
        """After each turn, how certain the majority is, and the turn that gave its answer first."""
        votes = Counter[int]()  # in the order in which answers were given; max() takes the first
        first: dict[int, int] = {}
        for count, turn in enumerate(turns, start=1):
            if turn.answer:
                votes[turn.answer] += 1
                first.setdefault(turn.answer, count)
            leader = max(votes, key=votes.__getitem__, default=0)
            rivals = [rival for rival in votes if rival != leader]
            # A rival that catches up wins only if it was given before the leader.
            ahead = max((votes[one] + (first[one] < first[leader]) for one in rivals), default=0)
            settled = ahead + max_turns - count <= votes[leader]
            lead = _lead(votes[leader], max((votes[rival] for rival in rivals), default=0))
            certain = 1.0 if settled else min(lead, math.nextafter(1, 0))
            yield certain if votes else 0.0, first.get(leader, count)


@cache
def _lead(first: int, second: int) -> float:
    """P(p > 1/2) for p ~ Beta(first + 1, second + 1): a binomial tail."""
    trials = first + second + 1
    return float(sum(math.comb(trials, k) for k in range(first + 1)) / 2**trials)


@dataclass(frozen=True, kw_only=True)
class Posterior(Voting):
    """Stops when votes and a score together make one answer probable enough, and returns it.

    A turn whose ``score`` is p names the right answer with probability p, and else one of
    ``alternatives`` wrong ones, all equally likely (arXiv 2511.02603 and 2601.02970 weigh votes by
    a confidence too). With turns i of answers a_i, the probability that an answer a is right is

        P(a) ~ prod_{a_i = a} p_i * prod_{a_i != a} (1 - p_i) / alternatives,

    normalised over all answers, the ones that no turn has given included. After one turn it is
    that turn's p. Where the score is not known, p = 1/2 makes it a vote that stops on a lead. It
    takes turns for independent draws: use it with fresh turns.
    """

    threshold: Annotated[float, Meta(gt=0, lt=1)] = DEFAULT_THRESHOLD
    """The probability that an answer needs."""
    alternatives: Count = 10
    """Wrong answers that a turn could give: the more, the more agreement counts."""
    score: Score = "confidence"
    """What p is: the stated confidence; the probability of the verdict CORRECT; or the exponential
    of a mean log-probability, which is no probability of being right, but weighs votes well."""
    strictness = "threshold"

    def __str__(self) -> str:
        of = "" if self.score == "confidence" else f" by {_NAMES[self.score]}"
        return f"probability of an answer{of} >= {self.threshold:g}"

    def after_each(self, turns: Sequence[StopSignals], max_turns: int) -> Judgements:
        """After each turn, the probability of the most probable answer, and its first turn."""
        first: dict[int, int] = {}
        for count, probable in enumerate(self.probabilities(turns), start=1):
            for answer in probable:
                first.setdefault(answer, count)
            best = max(probable, key=probable.__getitem__, default=0)
            # Rounded, so that a probability of 0.7 reaches a threshold of 0.7.
            yield round(probable.get(best, 0.0), 12), first.get(best, count)

    def probabilities(self, turns: Sequence[StopSignals]) -> Iterator[dict[int, float]]:
        """The probability of each answer after each turn, in the order in which they were given.

        Truncated turns and unreadable answers do not count. Each p is kept within [0.01, 0.99], so
        that none decides alone.
        """
        logs: dict[int, float] = {}
        log_of_new = 0.0  # of an answer that no turn has given
        for turn in turns:
            if turn.answer and not turn.truncated:
                p = min(max(self._p(turn), 0.01), 0.99)
                wrong = math.log((1 - p) / self.alternatives)
                logs.setdefault(turn.answer, log_of_new)
                for answer in logs:
                    logs[answer] += math.log(p) if answer == turn.answer else wrong
                log_of_new += wrong
            most = max(log_of_new, *logs.values()) if logs else 0.0
            weights = {answer: math.exp(log - most) for answer, log in logs.items()}
            never_given = max(self.alternatives + 1 - len(logs), 0)
            total = sum(weights.values()) + never_given * math.exp(log_of_new - most)
            yield {answer: weight / total for answer, weight in weights.items()}

    def _p(self, turn: StopSignals) -> float:
        """The probability with which a turn is taken for right."""
        value: float | None = getattr(turn, self.score)
        if value is None:
            return 0.5
        if self.score == "verdict_probability" and turn.verdict != Verdict.CORRECT:
            return 1 - value if turn.verdict == Verdict.INCORRECT else 0.5
        return math.exp(value) if "logprob" in self.score else value


@dataclass(frozen=True, kw_only=True)
class Confident(StopRule):
    """Stops when a score reaches a threshold. The defaults are the paper's rule.

    A truncated turn never stops, nor does one whose score is not known.
    """

    threshold: float = DEFAULT_THRESHOLD
    """gamma: the score that a turn needs."""
    score: Score = "confidence"
    """The stated confidence; the probability of the verdict's tokens; or the mean log-probability
    of the answer's tokens, of all tokens, or of those before the self-check, in nats."""
    needs_correct: bool = True
    """Whether the verdict must be CORRECT as well. With a threshold of 0, it alone decides."""
    strictness = "threshold"

    def __post_init__(self) -> None:
        check_fields(self)
        if "logprob" in self.score:
            holds = -math.inf < self.threshold <= 0
            requirement = f"of {self.score} must be a mean log-probability, at most 0"
        else:
            holds = 0 <= self.threshold <= 1
            requirement = f"must lie in [0, 1]; the paper's is {DEFAULT_THRESHOLD}"
        require_field(self, "threshold", holds, requirement)

    def __str__(self) -> str:
        bound = f"{_NAMES[self.score]} >= {self.threshold:g}"
        if not self.needs_correct:
            return bound
        return f"CORRECT at {bound}" if self.threshold else "CORRECT"

    @property
    def needs_self_check(self) -> bool:
        """Whether it reads a verdict or a confidence."""
        return self.needs_correct or self.score in ("confidence", "verdict_probability")

    def stops(self, turns: Sequence[StopSignals], max_turns: int) -> bool:
        """Whether the last turn has the score, and the verdict if needed."""
        turn = turns[-1]
        if turn.truncated or (self.needs_correct and turn.verdict != Verdict.CORRECT):
            return False
        value = getattr(turn, self.score)
        return value is not None and bool(value >= self.threshold)

    def reason(self, turns: Sequence[StopSignals]) -> str:
        """The rule with the score of the turn that stopped."""
        value = f"{_NAMES[self.score]} {getattr(turns[-1], self.score):g}"
        return str(self).replace(_NAMES[self.score], value)


_OF_SELF_CHECK = ("confidence", "verdict_probability", "completion_logprob")
_NAMES: Mapping[Score, str] = {
    "confidence": "confidence",
    "verdict_probability": "probability of the verdict",
    "answer_logprob": "log-probability of the answer",
    "completion_logprob": "log-probability of the completion",
    "solution_logprob": "log-probability of the solution",
}
RULES: Mapping[str, type[StopRule]] = {
    rule.__name__: rule for rule in (FixedTurns, RepeatedAnswer, Majority, Posterior, Confident)
}
"""The rules of this file; only these are read from recorded results."""


def ending(rule: StopRule | None, turns: Sequence[StopSignals], max_turns: int) -> Ending | None:
    """How a trajectory of ``turns`` ends; None if it goes on.

    A turn whose answer cannot be read is never accepted: the rule goes on, or stops without it.

    Args:
        rule: None runs every turn and returns the last.
        turns: all turns so far, at least one.
        max_turns: T_max. A rule that stops there is no early stop.

    Examples:
        >>> unsure = StopSignals(Verdict.UNSURE, 0.9, truncated=False)
        >>> ending(Confident(), [unsure], 2), ending(Confident(), [unsure, unsure], 2).returned
        (None, 2)
    """
    seen = len(turns)
    stops = rule is not None and rule.stops(turns, max_turns)
    if seen < max_turns and not stops:
        return None
    returned = seen if rule is None else rule.answer_turn(turns, max_turns)
    accepted = rule is not None and stops and turns[returned - 1].has_answer
    if seen < max_turns and not (accepted or isinstance(rule, FixedTurns)):
        return None
    return Ending(seen, returned, seen < max_turns, accepted)


def should_stop(
    verdict: Verdict, confidence: float, truncated: bool, threshold: float = DEFAULT_THRESHOLD
) -> bool:
    """Whether a turn ends its trajectory: q_t = 0, v_t = CORRECT and c_t >= threshold.

    Examples:
        >>> should_stop(Verdict.CORRECT, 0.85, truncated=False)
        True
        >>> should_stop(Verdict.CORRECT, 1.0, truncated=True)
        False
    """
    return Confident(threshold=threshold).stops([StopSignals(verdict, confidence, truncated)], 1)


def rule_as_config(rule: StopRule) -> dict[str, Any]:
    """``rule`` as ``model.evaluation.stop`` of a configuration holds it."""
    return {
        "class_path": f"{type(rule).__module__}.{type(rule).__qualname__}",
        "init_args": asdict(rule),  # type: ignore[call-overload]
    }


def is_own(class_path: str) -> bool:
    """Whether the class path of a rule or task lies in this package; a name alone does too."""
    return "." not in class_path or class_path.startswith("svr_lightning.")


def rule_from_config(evaluation: Mapping[str, Any]) -> StopRule:
    """The rule of a recorded ``model.evaluation``; the paper's if it names none.

    Raises:
        ValueError: for what is no rule of this file, and for settings that are no longer known.
    """
    stop = evaluation.get("stop")
    if stop is None:
        if old := sorted({"threshold", "gate", "exhausted", "evidence"} & evaluation.keys()):
            raise ValueError(f"{old[0]} is no longer a setting; evaluate again")
        return Confident()
    try:
        path = str(stop["class_path"])
        kind = RULES[path.rpartition(".")[2] if is_own(path) else path]
        return kind(**stop.get("init_args", {}))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"stop={stop!r} is no stopping rule") from error
