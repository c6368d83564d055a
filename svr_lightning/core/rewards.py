"""Per-turn rewards and the trajectory return (appendix "Reward Specification and Coefficients")."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from svr_lightning.core.types import ScoredTurn, Verdict


@dataclass(frozen=True, kw_only=True)  # no slots: configurations read its __dict__
class RewardWeights:
    """The coefficients of the paper's reward table; setting one to 0 ablates its term."""

    abs: float = 1.0
    """lambda_abs: absolute correctness."""
    delta: float = 0.3
    """lambda_Delta: turn-to-turn improvement."""
    alpha: float = 0.5
    """alpha: strength of the completion-length shaping, in [0, 1]."""
    keep: float = 0.3
    """lambda_keep: bonus for preserving a correct answer."""
    reg: float = 0.5
    """lambda_reg: penalty for a correct answer made incorrect."""
    fail: float = 0.3
    """lambda_fail: penalty for failing twice in a row."""
    trunc: float = 0.5
    """lambda_trunc: penalty for a truncated generation."""
    cal: float = 0.5
    """lambda_cal: Brier-style calibration."""
    over: float = 0.8
    """lambda_over: confident CORRECT on an incorrect answer."""
    detect: float = 0.2
    """lambda_detect: INCORRECT on an incorrect answer."""
    ready: float = 0.3
    """lambda_ready: confident CORRECT on a correct answer."""
    fmt: float = 0.4
    """lambda_fmt: task-answer and self-check format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReward:
    """One turn's reward, its terms kept apart; coefficients are applied, penalties negative."""

    abs: float
    prog: float
    trunc: float
    cal: float
    over: float
    detect: float
    ready: float
    task_format: float
    self_check_format: float

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

    @property
    def total(self) -> float:
        """What the trajectory return averages."""
        return self.solve + self.verify + self.format


def turn_rewards(
    scored_turns: Sequence[ScoredTurn],
    weights: RewardWeights | None = None,
    length_scale: int = 1024,
) -> list[TurnReward]:
    """Reward every turn of one trajectory.

    Args:
        scored_turns: [T] the turns in order; r_prog of the first is 0.
        weights: coefficients, the paper's by default.
        length_scale: L_len, in tokens.

    Raises:
        ValueError: if ``length_scale`` is not positive.
    """
    if length_scale <= 0:
        raise ValueError(f"length_scale={length_scale} must be a positive number of tokens")
    weights = weights or RewardWeights()
    previous: Sequence[ScoredTurn | None] = [None, *scored_turns][: len(scored_turns)]
    return [
        _turn_reward(turn, before, weights, length_scale)
        for turn, before in zip(scored_turns, previous, strict=True)
    ]


BaselineReward = Literal["binary", "binary_fmt", "solve"]
"""What methods without a self-check are paid for: a correct answer; that and its format; or SVR's
r_solve and the format."""


def baseline_rewards(
    scored_turns: Sequence[ScoredTurn],
    kind: BaselineReward = "binary_fmt",
    weights: RewardWeights | None = None,
    length_scale: int = 1024,
) -> list[TurnReward]:
    """Reward every turn of a method that has no self-check.

    ``binary`` is y, ``binary_fmt`` y + lambda_fmt r_taskfmt, ``solve`` SVR's reward without its
    self-verification and self-check-format terms, as the paper has the oracle-guided reference.

    Args:
        scored_turns: [T] the turns in order.
        kind: see above.
        weights: coefficients of ``solve``, and lambda_fmt.
        length_scale: L_len of ``solve``, in tokens.
    """
    weights = weights or RewardWeights()
    full = turn_rewards(scored_turns, weights, length_scale)
    kept = [
        replace(reward, cal=0.0, over=0.0, detect=0.0, ready=0.0, self_check_format=0.0)
        for reward in full
    ]
    if kind == "solve":
        return kept
    return [
        replace(
            reward,
            abs=float(turn.correct),
            prog=0.0,
            trunc=0.0,
            task_format=reward.task_format if kind == "binary_fmt" else 0.0,
        )
        for reward, turn in zip(kept, scored_turns, strict=True)
    ]


def proper_rewards(
    scored_turns: Sequence[ScoredTurn],
    weights: RewardWeights | None = None,
    length_scale: int = 1024,
) -> list[TurnReward]:
    """SVR's rewards with overconfidence and readiness that do not grow with the confidence.

    They then judge the verdict alone, and the Brier term alone decides the confidence: its optimum
    is the probability of being correct, whatever the verdict.
    """
    weights = weights or RewardWeights()
    return [
        replace(
            reward,
            over=-weights.over * _says_correct(turn) * (not turn.correct),
            ready=weights.ready * _says_correct(turn) * turn.correct,
        )
        for reward, turn in zip(
            turn_rewards(scored_turns, weights, length_scale), scored_turns, strict=True
        )
    ]


def _says_correct(turn: ScoredTurn) -> bool:
    return turn.verdict == Verdict.CORRECT and not turn.truncated


def trajectory_return(
    scored_turns: Sequence[ScoredTurn],
    weights: RewardWeights | None = None,
    length_scale: int = 1024,
) -> float:
    """R_SVR, the mean over turns of solve + verify + lambda_fmt * format (equation svr-reward).

    Raises:
        ValueError: if there is no turn.

    Example:
        >>> right = ScoredTurn(correct=True, truncated=False, verdict=Verdict.CORRECT,
        ...     confidence=1.0, completion_tokens=512, task_format=1.0, self_check_format=1.0)
        >>> trajectory_return([right])   # 0.75 solve + 0.5 + 0.3 verify + 0.8 format
        2.35
    """
    if not scored_turns:
        raise ValueError("a trajectory without turns has no return")
    rewards = turn_rewards(scored_turns, weights, length_scale)
    return sum(reward.total for reward in rewards) / len(rewards)


def _turn_reward(
    turn: ScoredTurn, before: ScoredTurn | None, weights: RewardWeights, length_scale: int
) -> TurnReward:
    y = float(turn.correct)
    complete = 0.0 if turn.truncated else 1.0
    says_correct = turn.verdict == Verdict.CORRECT
    says_incorrect = turn.verdict == Verdict.INCORRECT
    length = min(turn.completion_tokens, length_scale) / length_scale
    return TurnReward(
        abs=weights.abs * y * (1.0 - weights.alpha * length),
        prog=0.0 if before is None else _progress(before.correct, turn.correct, weights),
        trunc=-weights.trunc if turn.truncated else 0.0,
        cal=complete * weights.cal * (1.0 - (turn.confidence - y) ** 2),
        over=-weights.over * turn.confidence * complete if says_correct and not y else 0.0,
        detect=complete * weights.detect * (says_incorrect and not turn.correct),
        ready=complete * weights.ready * turn.confidence * (says_correct and turn.correct),
        task_format=weights.fmt * turn.task_format,
        self_check_format=weights.fmt * turn.self_check_format,
    )


def _progress(before: bool, now: bool, weights: RewardWeights) -> float:
    """lambda_Delta (y_t - y_{t-1}) + phi(y_{t-1}, y_t) (equation app-progress-reward)."""
    phi = {
        (True, True): weights.keep,
        (True, False): -weights.reg,
        (False, False): -weights.fail,
        (False, True): 0.0,
    }[before, now]
    return weights.delta * (float(now) - float(before)) + phi
