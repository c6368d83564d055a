"""The warning of a policy that learns to doubt everything."""

from collections.abc import Mapping
from statistics import fmean

WINDOW = 5
"""Rollouts whose means are compared: the first ones of the run with the latest ones."""
RARE = 0.1
"""With a smaller share of turns that would stop, a policy hardly ever stopped before."""
REMAINS = 0.25
"""Stops below this part of their initial share count as lost."""
INFORMATIVE_AUROC = 0.6
"""Below this, confidence hardly separates correct from wrong answers."""

WARNING = (
    "self-verification has collapsed into doubt: {now:.0%} of the turns would stop ({start:.0%} at "
    "the start), and confidence does not tell right from wrong (AUROC {auroc:.2f}). A lower Brier "
    "score is no success here; docs/results.md has the causes and what helps"
)


class CollapseWatch:
    """Compares the latest rollouts with the first ones, and warns once.

    A policy that is wrong more often than correct, and whose self-check is uninformative, is
    rewarded for uniform doubt. It then never stops and has no reason to say CORRECT again,
    while its falling Brier score looks like success.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []
        """The share that would stop and the AUROC of the first and the latest rollouts; part of a
        checkpoint."""
        self._warned = False

    def note(self, stats: Mapping[str, float]) -> str | None:
        """Add the logged values of a rollout; returns the warning at its first occurrence.

        Rollouts without self-checks, or with only correct or only wrong answers, are ignored.
        """
        if self._warned or "train/auroc" not in stats:
            return None
        self.seen.append((stats["train/would_stop"], stats["train/auroc"]))
        if len(self.seen) < 2 * WINDOW:
            return None
        start = fmean(stops for stops, _ in self.seen[:WINDOW])
        now, auroc = (fmean(values) for values in zip(*self.seen[-WINDOW:], strict=True))
        del self.seen[WINDOW]
        self._warned = start > RARE and now < REMAINS * start and auroc < INFORMATIVE_AUROC
        return WARNING.format(start=start, now=now, auroc=auroc) if self._warned else None
