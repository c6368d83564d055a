"""How often certificates are wrong: simulated calibrations, and recordings split many times.

Simulated worlds: a certificate is wrong if any threshold that it certifies breaks a promise in
truth, which is known there. Power is the share of calibrations that find a threshold. A calibration
has 400 problems, or as many clusters of three variants.

Recordings: ten greedy turns of the test problems of both embedded tasks by the policies that ship,
with the probability of the verdict CORRECT as the score (0 for another verdict). Their clusters are
split at random. One half calibrates; the certificate counts as wrong if the chosen thresholds break
the promise on the whole recording, which is the truth as far as it is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.analysis.certificates import (
    Promise,
    Replayed,
    candidates_of,
    cheapest,
    replay_rules,
)
from svr_lightning.analysis.intervals import split_clusters
from svr_lightning.analysis.logs import load_log
from svr_lightning.cli.certify import GRID
from svr_lightning.core.stopping import Confident

FOLDER = Path(__file__).parent / "recordings"
RECORDINGS = sorted(FOLDER.glob("*.parquet"))
CLUSTERS, LIMIT, DELTA = 400, 0.12, 0.1
SCORES = np.arange(0.5, 1.0, 0.05)
"""The scores that simulated problems have, equally often, and the thresholds."""
WORLDS = {
    # P(wrong) at each score.
    "monotone": (0.6, 0.5, 0.4, 0.3, 0.2, 0.05, 0.03, 0.02, 0.01, 0.01),
    "non-monotone": (0.4, 0.4, 0.4, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.25),
    # Every threshold breaks the promise on accepted answers, by next to nothing.
    "adversarial": (LIMIT + 1e-4,) * 10,
}
PROMISES = {
    "wrong accepted and tokens": (
        Promise(name="wrong_accepted", limit=LIMIT),
        Promise(name="tokens", limit=180.0, bound=200.0),
    ),
    "stopped and wrong": (Promise(name="pse", limit=LIMIT * 0.6),),
}


def grid(promises: Sequence[Promise]) -> list[Confident]:
    """The rules that a promise is tested of."""
    return [Confident(threshold=level) for level in SCORES.tolist()]


def simulated(
    world: str, variants: int, generator: np.random.Generator, rules: Sequence[Confident]
) -> list[Replayed]:
    """Points of clusters whose variants have one score and a label that is mostly shared."""
    chance = np.array(WORLDS[world])
    score = np.repeat(generator.integers(10, size=(CLUSTERS, 1)), variants, 1)
    shared = generator.random((CLUSTERS, 1)) < chance[score[:, :1]]
    own = generator.random((CLUSTERS, variants)) < chance[score]
    same = generator.random((CLUSTERS, variants)) < 0.7
    wrong = np.where(same, shared, own).ravel().astype(float)
    cluster = np.repeat(np.arange(CLUSTERS), variants)
    points = []
    for rule in rules:
        accepted = (SCORES[score.ravel()] >= rule.threshold).astype(float)
        columns = {"accepted": accepted, "wrong_accepted": accepted * wrong, "wrong": wrong}
        columns |= {"early": accepted, "pse": accepted * wrong, "tokens": 200 - 100 * accepted}
        points.append(Replayed.of(rule, columns, cluster))
    return points


def truth(world: str, name: str, rule: Confident) -> float:
    """The loss of a rule in the limit of many problems."""
    accepted = rule.threshold <= SCORES
    wrong = np.array(WORLDS[world])
    losses = {
        "pse": (accepted * wrong).mean(),
        "wrong_accepted": (accepted * wrong).sum() / accepted.sum(),
        "tokens": (200 - 100 * accepted).mean(),
    }
    return float(losses[name])


@dataclass(frozen=True)
class Cell:
    """A world, the size of its clusters and what is promised there."""

    world: str
    variants: int
    promises: str

    def run(self, draws: int, seed: int = 7) -> dict[str, Any]:
        """The share of wrong certificates, and of calibrations that find a threshold."""
        promises = PROMISES[self.promises]
        rules = grid(promises)
        bad = {
            rule.threshold
            for rule, one in product(rules, promises)
            if truth(self.world, one.name, rule) > one.limit
        }
        generator = np.random.default_rng(seed)
        broken = found = 0
        for _ in range(draws):
            points = simulated(self.world, self.variants, generator, rules)
            rows = [row for row in candidates_of(points, promises, DELTA) if row.certified]
            broken += any(row.threshold in bad for row in rows)
            found += bool(rows)
        possible = len(bad) < len(rules)
        return {"wrong": broken / draws, "power": found / draws if possible else None}


CELLS = [Cell(w, v, p) for w in WORLDS for v in (1, 3) for p in PROMISES]


def part(point: Replayed, clusters: NDArray[np.int64]) -> Replayed:
    """A point of some of its clusters."""
    return replace(point, columns={name: one[clusters] for name, one in point.columns.items()})


def split(path: Path, name: str, splits: int) -> dict[str, Any]:
    """Certificates from random halves of a recording.

    The limit is 0.98 times the rate at the threshold 0.75, which thus breaks it narrowly.
    """
    table = load_log(path)
    rules = [Confident(threshold=level) for level in GRID]
    points = replay_rules({path.stem: table}, rules, table.correct.shape[1])
    whole = {one.rule.threshold: one.rates[name] for one in points}
    promise = Promise(name=name, limit=round(0.98 * whole[0.75], 3))
    found = broken = 0
    for seed in range(splits):
        half = split_clusters(table.cluster, 0.5, seed)
        one = np.unique(table.cluster[half])
        choice = cheapest(candidates_of([part(point, one) for point in points], [promise], DELTA))
        if choice is None:
            continue
        found += 1
        broken += bool(whole[choice.threshold] > promise.limit)
    kept = any(rate <= promise.limit and rate > 0 for rate in whole.values())
    return {"wrong": broken / splits, "power": found / splits if kept else None}
