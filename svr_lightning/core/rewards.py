"""Per-turn rewards and the trajectory return (appendix "Reward Specification and Coefficients")."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from svr_lightning.core.ranges import Checked, Coefficient, Share
from svr_lightning.core.types import ScoredTurn, Verdict


@dataclass(frozen=True, kw_only=True)
class RewardWeights(Checked):
    """The coefficients of the paper's reward table; setting one to 0 ablates its term."""

    abs: Coefficient = 1.0
    """lambda_abs: absolute correctness."""
    delta: Coefficient = 0.3
    """lambda_Delta: turn-to-turn improvement."""
    alpha: Share = 0.5
    """alpha: strength of the completion-length shaping, in [0, 1]."""
    keep: Coefficient = 0.3
    """lambda_keep: bonus for preserving a correct answer."""
    reg: Coefficient = 0.5
    """lambda_reg: penalty for a correct answer made incorrect."""
    fail: Coefficient = 0.3
    """lambda_fail: penalty for failing twice in a row."""
    trunc: Coefficient = 0.5
    """lambda_trunc: penalty for a truncated generation."""
    cal: Coefficient = 0.5
    """lambda_cal: Brier-style calibration."""
    over: Coefficient = 0.8
    """lambda_over: confident CORRECT on an incorrect answer."""
    detect: Coefficient = 0.2
    """lambda_detect: INCORRECT on an incorrect answer."""
    ready: Coefficient = 0.3
    """lambda_ready: confident CORRECT on a correct answer."""
    fmt: Coefficient = 0.4
    """lambda_fmt: task-answer and self-check format."""


@dataclass(frozen=True, kw_only=True)
class Reward:
    """One turn's reward: the sum of named terms.

    Coefficients are applied and penalties are negative. Logs and figures show all terms.

    Examples:
        >>> Reward.of(correct=1.0, short=-0.25).total
        0.75
    """

    terms: Mapping[str, float]
    subtotals: Mapping[str, float] = field(default_factory=dict)
    """Sums of some terms, logged in addition to them."""

    @classmethod
    def of(cls, **terms: float) -> "Reward":
        """The reward with these terms."""
        return Reward(terms=terms)

    def plus(self, **terms: float) -> "Reward":
        """This reward with further terms, or with other values of its own."""
        return Reward(terms={**self.terms, **terms}, subtotals=self.subtotals)

    @property
    def total(self) -> float:
        """The sum of all terms, in their order."""
        return sum(self.terms.values(), start=0.0)


@dataclass(frozen=True, kw_only=True)
class TurnReward(Reward):
    """SVR's reward of one turn. Its total is what the trajectory return averages."""

    abs: float
    prog: float
    trunc: float
    cal: float
    over: float
    detect: float
    ready: float
    task_format: float
    self_check_format: float
    terms: Mapping[str, float] = field(init=False)
    subtotals: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        names = [field.name for field in fields(self) if field.init]
        sums = {"solve": self.solve, "verify": self.verify, "format": self.format}
        object.__setattr__(self, "terms", {name: getattr(self, name) for name in names})
        object.__setattr__(self, "subtotals", sums)

    @property
    def total(self) -> float:
        """r_solve + r_verify + lambda_fmt * r_fmt."""
        return self.solve + self.verify + self.format

    @property
    def solve(self) -> float:
        """r_solve: absolute quality, progress and truncation."""
        return self.abs + self.prog + self.trunc

    @property
    def verify(self) -> float:
        """r_verify: calibration, overconfidence, detection and readiness."""
        return self.cal + self.over + self.detect + self.ready

    @property
    def format(self) -> float:
        """lambda_fmt * r_fmt."""
        return self.task_format + self.self_check_format


CHECK_TERMS = frozenset({"cal", "over", "detect", "ready", "self_check_format"})
"""Terms of the self-check; all others, a user's own included, belong to the solution."""


def sections(reward: Reward) -> tuple[float, float]:
    """The parts of a turn's total for its solution and for its self-check."""
    solution = sum(value for name, value in reward.terms.items() if name not in CHECK_TERMS)
    check = sum(value for name, value in reward.terms.items() if name in CHECK_TERMS)
    return solution, check


def verification_rewards(
    verdicts: Sequence[Verdict | str | None],
    confidences: Sequence[float | None],
    correct: Sequence[bool],
    weights: RewardWeights | None = None,
    *,
    proper: bool = False,
) -> list[float]:
    """[N] SVR's self-verification reward of complete answers: cal, over, detect and ready.

    With stated confidence c and label y, the paper's is::

        cal (1 - (c - y)^2) + c (ready y - over (1 - y))  after CORRECT
                            + detect (1 - y)              after INCORRECT

    ``proper`` leaves out the c before the parenthesis. Then one term judges the confidence alone
    and one the verdict alone, each best on average where it says what is probable. An answer whose
    verdict or confidence is None, since it could not be read, earns 0.

    Examples:
        >>> verification_rewards(["CORRECT", "UNSURE", None], [1.0, 0.5, None], [True, False, True])
        [0.8, 0.375, 0.0]
    """
    weights = weights or RewardWeights()
    rewards = []
    for verdict, confidence, y in zip(verdicts, confidences, correct, strict=True):
        reward = 0.0
        if verdict is not None and confidence is not None:
            terms = _verify_terms(Verdict(verdict), float(confidence), bool(y), weights, proper)
            reward = sum(terms.values())
        rewards.append(reward)
    return rewards


def turn_rewards(
    scored_turns: Sequence[ScoredTurn],
    weights: RewardWeights | None = None,
    length_scale: int = 1024,
    *,
    proper: bool = False,
) -> list[TurnReward]:
    """Reward every turn of one trajectory.

    Args:
        scored_turns: [T] the turns in order; r_prog of the first is 0.
        weights: coefficients, the paper's by default.
        length_scale: L_len, in tokens.
        proper: overconfidence and readiness do not grow with the confidence: they judge the verdict
            alone, and the Brier term alone decides the confidence. Its optimum then is the
            probability of being correct, whatever the verdict.

    Raises:
        ValueError: if ``length_scale`` is not positive, or a turn has no self-check.
    """
    weights = weights or RewardWeights()
    solved = _solve_terms(scored_turns, weights, length_scale)
    return [
        TurnReward(**solve, **_check_terms(turn, weights, proper))
        for turn, solve in zip(scored_turns, solved, strict=True)
    ]


BaselineReward = Literal["binary", "binary_fmt", "solve"]
"""Rewards of methods without a self-check: a correct answer; that and its format; or SVR's
r_solve and the format, as the paper has the oracle-guided reference."""


def baseline_rewards(
    scored_turns: Sequence[ScoredTurn],
    kind: BaselineReward = "binary_fmt",
    weights: RewardWeights | None = None,
    length_scale: int = 1024,
) -> list[Reward]:
    """[T] rewards of the turns of a trajectory without self-checks.

    ``binary`` is y; ``binary_fmt`` and ``solve`` are y and r_solve, each + lambda_fmt r_taskfmt.
    """
    weights = weights or RewardWeights()
    terms = [{"correct": float(turn.correct)} for turn in scored_turns]
    if kind == "solve":
        terms = _solve_terms(scored_turns, weights, length_scale)
    if kind != "binary":
        for earned, turn in zip(terms, scored_turns, strict=True):
            earned["task_format"] = weights.fmt * turn.task_format
    return [Reward.of(**earned) for earned in terms]


def soft_overlong(tokens: int, soft_max: int, cache: int) -> float:
    """ms-swift's penalty of a completion of ``tokens`` tokens, the paper's long-output safeguard.

    min(-(l - (soft_max - cache)) / cache, 0): -1 at ``soft_max``, with no lower limit beyond it.

    Examples:
        >>> [soft_overlong(tokens, 1800, 400) for tokens in (1400, 1500, 1800, 2048)]
        [0.0, -0.25, -1.0, -1.62]
    """
    return min((soft_max - cache - tokens) / cache, 0.0)


ScoringRule = Literal["brier", "log"]
LOG_FLOOR = 1e-3
"""Lower limit of the outcome's probability in the log score, which bounds the score."""


def confidence_score(confidence: float, correct: bool, rule: ScoringRule = "brier") -> float:
    """A proper score in [0, 1] of the stated probability that an answer is correct.

    ``brier`` is 1 - (c - y)^2. ``log`` is 1 + ln q / ln 1000, with q = c for a correct answer and
    1 - c for a wrong one, at least 0.001. Either is highest on average at c = P(y = 1).

    Examples:
        >>> confidence_score(0.8, False), round(confidence_score(0.1, True, "log"), 3)
        (0.3599999999999999, 0.667)
    """
    if rule == "brier":
        return 1.0 - (confidence - correct) ** 2
    stated = confidence if correct else 1.0 - confidence
    return 1.0 - math.log(max(stated, LOG_FLOOR)) / math.log(LOG_FLOOR)


def calibration_rewards(
    confidences: Sequence[float | None], correct: Sequence[bool], rule: ScoringRule = "brier"
) -> list[float]:
    """[N] The :func:`confidence_score` of each stated confidence; 0 where it is None.

    Examples:
        >>> calibration_rewards([0.5, 1.0, None], [True, True, False])
        [0.75, 1.0, 0.0]
    """
    return [
        0.0 if confidence is None else confidence_score(float(confidence), bool(y), rule)
        for confidence, y in zip(confidences, correct, strict=True)
    ]


def calibrated_rewards(
    scored_turns: Sequence[ScoredTurn], rule: ScoringRule, weights: RewardWeights
) -> list[Reward]:
    """RLCR's reward of every turn: correctness, a proper score of the confidence, and the format.

    r = lambda_abs y + lambda_cal score(c, y) + lambda_fmt r_fmt. A turn that is truncated, or whose
    self-check is not in form, has no score.

    Raises:
        ValueError: if a turn has no self-check.
    """
    if any(turn.confidence is None for turn in scored_turns):
        raise ValueError("RLCR's reward needs a confidence at every turn; this one has none")
    stated = [
        None if turn.truncated or turn.self_check_format != 1.0 else turn.confidence
        for turn in scored_turns
    ]
    scores = calibration_rewards(stated, [turn.correct for turn in scored_turns], rule)
    return [
        Reward.of(
            correct=weights.abs * turn.correct,
            cal=weights.cal * score,
            task_format=weights.fmt * turn.task_format,
            self_check_format=weights.fmt * turn.self_check_format,
        )
        for turn, score in zip(scored_turns, scores, strict=True)
    ]


def trajectory_return(
    scored_turns: Sequence[ScoredTurn],
    weights: RewardWeights | None = None,
    length_scale: int = 1024,
) -> float:
    """R_SVR, the mean over turns of solve + verify + lambda_fmt * format (equation svr-reward).

    Raises:
        ValueError: if there is no turn.

    Examples:
        >>> right = ScoredTurn(correct=True, truncated=False, verdict=Verdict.CORRECT,
        ...     confidence=1.0, completion_tokens=512, task_format=1.0, self_check_format=1.0)
        >>> trajectory_return([right])   # 0.75 solve + 0.5 + 0.3 verify + 0.8 format
        2.35
    """
    if not scored_turns:
        raise ValueError("a trajectory without turns has no return")
    rewards = turn_rewards(scored_turns, weights, length_scale)
    return sum(reward.total for reward in rewards) / len(rewards)


def _solve_terms(
    scored_turns: Sequence[ScoredTurn], weights: RewardWeights, length_scale: int
) -> list[dict[str, float]]:
    """Absolute correctness, progress and truncation of each turn."""
    if length_scale <= 0:
        raise ValueError(f"length_scale={length_scale} must be a positive number of tokens")
    before: Sequence[ScoredTurn | None] = [None, *scored_turns]
    terms = []
    for turn, previous in zip(scored_turns, before, strict=False):
        length = min(turn.completion_tokens, length_scale) / length_scale
        terms.append(
            {
                "abs": weights.abs * float(turn.correct) * (1.0 - weights.alpha * length),
                "prog": _progress(previous.correct, turn.correct, weights) if previous else 0.0,
                "trunc": -weights.trunc if turn.truncated else 0.0,
            }
        )
    return terms


def _check_terms(turn: ScoredTurn, weights: RewardWeights, proper: bool) -> dict[str, float]:
    """The terms of the self-verification and of both formats."""
    if turn.verdict is None or turn.confidence is None:
        raise ValueError("SVR's reward needs a self-check at every turn; this one has none")
    complete = 0.0 if turn.truncated else 1.0
    verify = _verify_terms(turn.verdict, turn.confidence, turn.correct, weights, proper)
    return {
        **{name: complete * value for name, value in verify.items()},
        "task_format": weights.fmt * turn.task_format,
        "self_check_format": weights.fmt * turn.self_check_format,
    }


def _verify_terms(
    verdict: Verdict, confidence: float, correct: bool, weights: RewardWeights, proper: bool
) -> dict[str, float]:
    """The terms of r_verify of a complete turn."""
    stated = 1.0 if proper else confidence
    over = verdict == Verdict.CORRECT and not correct
    return {
        "cal": weights.cal * confidence_score(confidence, correct),
        "over": -weights.over * stated if over else 0.0,
        "detect": weights.detect * (verdict == Verdict.INCORRECT and not correct),
        "ready": weights.ready * stated * (verdict == Verdict.CORRECT and correct),
    }


def _progress(before: bool, now: bool, weights: RewardWeights) -> float:
    """lambda_Delta (y_t - y_{t-1}) + phi(y_{t-1}, y_t) (equation app-progress-reward)."""
    phi = {
        (True, True): weights.keep,
        (True, False): -weights.reg,
        (False, False): -weights.fail,
        (False, True): 0.0,
    }[before, now]
    return weights.delta * (float(now) - float(before)) + phi
