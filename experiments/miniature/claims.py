"""The claims of the paper and of this project as differences between rows. Pure.

The first claim is the primary one. The others are corrected together by Holm's method, since one of
many intervals of 95 % leaves out the truth by chance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.miniature.results import CHECKED, FREE, OWN, common_seeds, rivals_of, within
from experiments.miniature.rows import BY_NAME, HOW
from experiments.miniature.summary import Judged, gap_entry, over_seeds
from experiments.real.report import holm
from svr_lightning.analysis.choice import choose, draw
from svr_lightning.analysis.intervals import percentile_interval
from svr_lightning.analysis.table import Floats

FIXED = "its best fixed number of turns"
START = "warm_start"
_MEASURED = {"auroc_first_turn": "AUROC of first turns, ", "pse": "PSE, "}
_UNLIMITED = 1e9


@dataclass(frozen=True)
class Claim:
    """A difference between two rows of which a claim says that it is above zero, or below."""

    row: str
    minus: str
    """A row, :data:`FIXED`, or some of :data:`~experiments.miniature.results.RIVALS`."""
    metric: str = "accuracy"
    turns: str = "greedy"
    """Or ``sampled``."""
    budget: int | None = None
    """Tokens per problem within which either side takes its best option; None: its own protocol."""

    @property
    def words(self) -> str:
        """What it is a difference of."""
        own = BY_NAME[self.row].title + ", adaptive" * (self.minus == FIXED)
        minus = BY_NAME[self.minus].title if self.minus in BY_NAME else self.minus
        return f"{_MEASURED.get(self.metric, '')}{own} minus {minus}"

    @property
    def where(self) -> str:
        """Which turns it is about."""
        return f"within {self.budget} tokens" if self.budget else self.turns


_OURS = ("svr", "svr_plus")
_PROTOCOLS = (
    *((row, FIXED, "accuracy") for row in _OURS),
    *((row, START, "auroc_first_turn") for row in (*_OURS, "rlcr", "without_verify")),
    *((row, START, "pse") for row in _OURS),
    *(("svr", row, "accuracy") for row in ("grpo_mt", "rlcr_turns", "without_verify")),
    ("svr_plus_matched", "svr", "accuracy"),
)
_BUDGETS = (
    *((row, FREE) for row in CHECKED),
    *((row, OWN) for row in _OURS),
    *(("svr_plus", against) for against in ("SVR", "SVR at its rate")),
    ("svr_plus_fresh", "RLCR's fresh turns"),
)
_ABLATIONS = (
    "without_cal",
    "without_over",
    "without_ready",
    "single_turn",
    "verdict_only",
    "confidence_only",
)
CLAIMS = (
    *(Claim(*one, turns) for one in _PROTOCOLS for turns in HOW),
    *(Claim(*one, budget=budget) for one in _BUDGETS for budget in (140, 400)),
    *(Claim("svr", row) for row in _ABLATIONS),
)


def decided(values: Floats) -> str:
    """Whether an estimate is ``above`` or ``below`` zero by its interval, or ``not decided``.

    ``values`` are the estimate, then its resamples, like those of :func:`normal_p_value`.
    """
    low, high = percentile_interval(values[1:]) or (0.0, 0.0)
    return "above" if low > 0 else "below" if high < 0 else "not decided"


def normal_p_value(values: Floats) -> float:
    """Two-sided p-value of "the estimate is zero", with the bootstrap's standard error."""
    error = float(np.nanstd(values[1:]))
    return math.erfc(abs(values[0]) / error / math.sqrt(2)) if error else float(values[0] == 0)


def claim_entries(every: Sequence[Judged]) -> list[dict[str, Any]]:
    """Of each claim whose rows are there: its ``difference`` with ``ci95``, and two labels.

    ``label`` is ``above``, ``below`` or ``not decided``, as the interval lies; ``corrected`` is the
    same by Holm's method over all claims but the first, and None of that one.
    """
    known = {one.row.name: one for one in every}
    found = [(claim, gap) for claim in CLAIMS if (gap := _gap(claim, known)) is not None]
    adjusted = holm({str(n): normal_p_value(gap) for n, (_, gap) in enumerate(found) if n})
    entries = []
    for number, (claim, gap) in enumerate(found):
        label = decided(gap)
        corrected = (label if adjusted[str(number)] <= 0.05 else "not decided") if number else None
        named = {"claim": claim.words, "turns": claim.where}
        entries.append({**named, **gap_entry(gap), "label": label, "corrected": corrected})
    return entries


def _gap(claim: Claim, known: Mapping[str, Judged]) -> Floats | None:
    """[1 + R] the difference; None if a row is not there."""
    ours = known.get(claim.row)
    if ours is None:
        return None
    if claim.budget:
        found = within(ours, rivals_of(ours, [*known.values()], claim.minus))[1].get(claim.budget)
        return found and found[0].accuracy - found[1].accuracy
    if claim.minus == FIXED:
        best = choose(ours.options[claim.turns]["fixed turns"], _UNLIMITED, ours.draws)
        own = over_seeds(ours.metrics[claim.turns]["accuracy"], ours.draws)
        return own - best.accuracy if best else None
    other = known.get(claim.minus)
    if other is None or not (seeds := common_seeds(ours, other)):
        return None
    one, two = (row.metrics[claim.turns][claim.metric][row.index(seeds)] for row in (ours, other))
    return over_seeds(one - two, draw(ours.cluster, len(seeds)))
