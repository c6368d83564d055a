"""The claims of the paper and of this project as differences between rows. Pure.

The first claim is the primary one. The others are corrected together by Holm's method, since one of
many intervals of 95 % leaves out the truth by chance.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.miniature.results import FREE, common_seeds, rivals_of, within
from experiments.miniature.rows import BY_NAME
from experiments.miniature.summary import Judged, gap_entry, over_seeds
from experiments.real.report import holm
from svr_lightning.analysis.choice import choose, draw
from svr_lightning.analysis.intervals import percentile_interval
from svr_lightning.analysis.table import Floats

FIXED = "its best fixed budget"
START = "warm_start"
WITHIN = (140, 400)
"""Budgets of claims at equal tokens."""
TURNS = {"svr": "SVR", "svr_plus": "SVR+"}
_UNLIMITED = 1e9
ABLATIONS = (
    *("without_cal", "without_over", "without_ready"),
    *("single_turn", "verdict_only", "confidence_only"),
)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A difference between two rows of which a claim says that it is above zero, or below."""

    words: str
    row: str
    minus: str
    """A row, :data:`FIXED`, or the rivals :data:`FREE`."""
    metric: str = "accuracy"
    turns: str = "greedy"
    """Or ``sampled``."""
    budget: int | None = None
    """Tokens per problem within which either side takes its best option; None: its own protocol."""

    @property
    def where(self) -> str:
        """Which turns it is about."""
        return f"within {self.budget} tokens" if self.budget else self.turns


def _claims() -> Iterator[Claim]:
    checked = {**TURNS, "rlcr": "RLCR", "without_verify": "w/o R_verify"}
    fixed = "adaptive minus its best fixed number of turns"
    own = [
        *((f"{title}, {fixed}", row, FIXED, "accuracy") for row, title in TURNS.items()),
        *(
            (f"AUROC of first turns, {title} minus warm start", row, START, "auroc_first_turn")
            for row, title in checked.items()
        ),
        *((f"PSE, {title} minus warm start", row, START, "pse") for row, title in TURNS.items()),
        ("SVR minus GRPO-MT", "svr", "grpo_mt", "accuracy"),
        ("SVR minus RLCR, three turns", "svr", "rlcr_turns", "accuracy"),
        ("SVR minus w/o R_verify", "svr", "without_verify", "accuracy"),
        ("SVR+ with 8 sequences minus SVR", "svr_plus_matched", "svr", "accuracy"),
    ]
    for words, row, minus, metric in own:
        for turns in ("greedy", "sampled"):
            yield Claim(words=words, row=row, minus=minus, metric=metric, turns=turns)
    fresh = {f"{row}_fresh": f"{title}, fresh turns" for row, title in TURNS.items()}
    free = {**TURNS, "rlcr_fresh": "RLCR, fresh turns", **fresh}
    equal = [
        *((f"{title} minus {FREE}", row, FREE) for row, title in free.items()),
        *((f"{t} minus its own fresh turns", row, f"{row}_fresh") for row, t in TURNS.items()),
        ("SVR+ minus SVR", "svr_plus", "svr"),
        ("SVR+ minus SVR at its rate", "svr_plus", "svr_fast"),
        ("SVR+, fresh turns minus RLCR, fresh turns", "svr_plus_fresh", "rlcr_fresh"),
    ]
    for words, row, minus in equal:
        for budget in WITHIN:
            yield Claim(words=words, row=row, minus=minus, budget=budget)
    for row in ABLATIONS:
        yield Claim(words=f"SVR minus {BY_NAME[row].title}", row="svr", minus=row)


CLAIMS = tuple(_claims())


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
    if ours is None or claim.minus not in (*known, FIXED, FREE):
        return None
    if claim.budget:
        free = claim.minus == FREE
        rivals = rivals_of(ours, [*known.values()], FREE) if free else [known[claim.minus]]
        found = within(ours, rivals)[1].get(claim.budget)
        return found and found[0].accuracy - found[1].accuracy
    if claim.minus == FIXED:
        (best,) = choose(ours.options[claim.turns]["fixed turns"], [_UNLIMITED], ours.draws)
        own = over_seeds(ours.metrics[claim.turns]["accuracy"], ours.draws)
        return own - best.accuracy if best else None
    other = known[claim.minus]
    seeds = common_seeds(ours, other)
    if not seeds:
        return None
    one, two = (row.metrics[claim.turns][claim.metric][row.index(seeds)] for row in (ours, other))
    return over_seeds(one - two, draw(ours.cluster, len(seeds)))
