"""Notices when a policy doubts everything: a falling Brier score that looks like success.

A policy that is wrong more often than right, and whose self-check says nothing about which answers
are right, is paid for uniform doubt. It then never stops, and nothing teaches it to use CORRECT
again. See docs/collapse.md.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from statistics import fmean

WINDOW = 5
"""Rollouts whose means are compared: the first ones of the run with the latest ones."""
INFORMATIVE_AUROC = 0.6
"""Below this, confidence hardly tells right answers from wrong ones."""
RARE = 0.05
"""A share of turns that would end a trajectory below which hardly any trajectory ends."""

ADVICE = (
    "self-verification has collapsed into uniform doubt: CORRECT is said of {now.says_correct:.0%} "
    "of the turns ({start.says_correct:.0%} at the start), {now.would_stop:.0%} would stop, and "
    "confidence (spread {now.spread:.2f}) does not tell right from wrong (AUROC {now.auroc:.2f}). "
    "A lower Brier score is no success here. Try a lower model.optimizer.lr, the recipe SVRPlus "
    "(credit for each section), easier problems, or a supervised warm start whose self-checks say "
    "something; see docs/collapse.md"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfVerification:
    """What a rollout's turns say of themselves."""

    says_correct: float
    """Share of turns with the verdict CORRECT."""
    would_stop: float
    """Share of turns that would end a trajectory."""
    spread: float
    """Standard deviation of the confidence."""
    auroc: float
    """How well the confidence ranks right answers above wrong ones."""


def has_collapsed(start: SelfVerification, now: SelfVerification) -> bool:
    """Whether a policy that could stop has come to doubt right and wrong answers alike.

    A policy that never says CORRECT from the start has not collapsed, nor has one whose confidence
    tells right from wrong on a lower level: a lower threshold makes it stop.

    Examples:
        >>> overconfident = SelfVerification(
        ...     says_correct=0.9, would_stop=0.7, spread=0.2, auroc=0.5
        ... )
        >>> doubtful = SelfVerification(says_correct=0.1, would_stop=0.0, spread=0.1, auroc=0.52)
        >>> has_collapsed(overconfident, doubtful), has_collapsed(doubtful, doubtful)
        (True, False)
    """
    return (
        start.would_stop > 2 * RARE
        and now.would_stop < RARE
        and now.says_correct < start.says_correct / 2
        and now.auroc < INFORMATIVE_AUROC
    )


class CollapseWatch:
    """Compares the latest rollouts with the first ones that it saw, and speaks once."""

    def __init__(self) -> None:
        self._first: list[SelfVerification] = []
        self._latest: deque[SelfVerification] = deque(maxlen=WINDOW)
        self._said = False

    def note(self, stats: Mapping[str, float]) -> str | None:
        """Take the logged values of a rollout; the warning, the first time that it is due.

        Rollouts without self-checks, or with right or wrong answers alone, say nothing.
        """
        if "train/auroc" not in stats:
            return None
        seen = SelfVerification(
            says_correct=stats["train/verdict/correct"],
            would_stop=stats["train/would_stop"],
            spread=stats["train/confidence/spread"],
            auroc=stats["train/auroc"],
        )
        if len(self._first) < WINDOW:
            self._first.append(seen)
            return None
        self._latest.append(seen)
        if self._said or len(self._latest) < WINDOW:
            return None
        start, now = _mean(self._first), _mean(self._latest)
        self._said = has_collapsed(start, now)
        return ADVICE.format(start=start, now=now) if self._said else None


def _mean(values: list[SelfVerification] | deque[SelfVerification]) -> SelfVerification:
    says_correct, would_stop, spread, auroc = map(
        fmean, zip(*(astuple(value) for value in values), strict=True)
    )
    return SelfVerification(
        says_correct=says_correct, would_stop=would_stop, spread=spread, auroc=auroc
    )
