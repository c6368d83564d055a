"""How often certificates are wrong: simulated calibrations, and recordings split many times.

    python -m tools.bench certificates --out certificates.json

Simulated worlds: a certificate is wrong if any threshold that it certifies breaks a promise in
truth, which is known there. Its share over many calibrations must stay within delta = 0.1, with an
error of that share of at most 0.003 at 10,000 calibrations. Power is the share of calibrations that
find a threshold. A calibration has 400 problems, or as many clusters of three variants.

Recordings: ten greedy turns of the test problems of both embedded tasks by their warm starts, with
the probability of the verdict CORRECT as the score (0 for another verdict). Their clusters are
split at random. One half calibrates; the certificate counts as wrong if the chosen threshold breaks
the promise on the whole recording, which is the truth as far as it is known. How often its rate is
above the limit on the other half is told too: that is a sample of the same size.
"""

import argparse
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.cli.certify import GRID
from svr_lightning.cli.inputs import load_log
from svr_lightning.core.stopping import Confident
from svr_lightning.evaluation.certificates import (
    OperatingPoint,
    Promise,
    cheapest,
    operating_point,
    replayed_points,
    tested,
)
from svr_lightning.evaluation.intervals import split_clusters
from svr_lightning.files import write_json
from tools.bench.machine import hardware

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.parquet"))
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


def simulated(world: str, variants: int, generator: np.random.Generator) -> list[OperatingPoint]:
    """Points of clusters whose variants have one score and a label that is mostly shared."""
    chance = np.array(WORLDS[world])
    score = np.repeat(generator.integers(10, size=(CLUSTERS, 1)), variants, 1)
    shared = generator.random((CLUSTERS, 1)) < chance[score[:, :1]]
    own = generator.random((CLUSTERS, variants)) < chance[score]
    same = generator.random((CLUSTERS, variants)) < 0.7
    wrong = np.where(same, shared, own).ravel().astype(float)
    cluster = np.repeat(np.arange(CLUSTERS), variants)
    points = []
    for place, threshold in enumerate(SCORES):
        accepted = (score.ravel() >= place).astype(float)
        columns = {"accepted": accepted, "wrong_accepted": accepted * wrong, "wrong": wrong}
        columns |= {"pse": accepted * wrong, "tokens": 200 - 100 * accepted}
        points.append(operating_point(float(threshold), columns, cluster))
    return points


def truth(world: str, name: str) -> np.ndarray:
    """The loss of each threshold in the limit of many problems."""
    accepted = np.arange(10, 0, -1) / 10
    wrong = np.cumsum(WORLDS[world][::-1])[::-1] / 10
    return {"pse": wrong, "wrong_accepted": wrong / accepted, "tokens": 200 - 100 * accepted}[name]


@dataclass(frozen=True)
class Cell:
    """A world, the size of its clusters and what is promised there."""

    world: str
    variants: int
    promises: str

    def run(self, draws: int, seed: int = 7) -> dict[str, Any]:
        """The share of wrong certificates, and of calibrations that find a threshold."""
        promises = PROMISES[self.promises]
        bad = np.any([truth(self.world, one.name) > one.limit for one in promises], axis=0)
        generator = np.random.default_rng(seed)
        broken = found = 0
        for _ in range(draws):
            rows = tested(simulated(self.world, self.variants, generator), promises, DELTA)
            certified = np.array([row.certified for row in rows])[::-1]
            broken += bool((certified & bad).any())
            found += bool(certified.any())
        possible = not bad.all()
        return {
            "world": self.world,
            "variants": self.variants,
            "promises": self.promises,
            "calibrations": draws,
            "wrong": broken / draws,
            "power": found / draws if possible else None,
        }


CELLS = [Cell(w, v, p) for w in WORLDS for v in (1, 3) for p in PROMISES]


def part(point: OperatingPoint, clusters: NDArray[np.int64]) -> OperatingPoint:
    """A point of some of its clusters."""
    return replace(point, columns={name: one[clusters] for name, one in point.columns.items()})


def split(path: Path, name: str, splits: int) -> dict[str, Any]:
    """Certificates from random halves of a recording.

    The limit is 0.98 times the rate at the threshold 0.75, which thus breaks it narrowly.
    """
    table = load_log([path], [])[path.stem]
    points = replayed_points({path.stem: table}, Confident(), GRID, table.correct.shape[1])
    whole = {one.threshold: one.rates[name] for one in points}
    promise = Promise(name=name, limit=round(0.98 * whole[0.75], 3))
    found = above = broken = 0
    for seed in range(splits):
        half = split_clusters(table.cluster, 0.5, seed)
        one, other = np.unique(table.cluster[half]), np.unique(table.cluster[~half])
        choice = cheapest(tested([part(point, one) for point in points], [promise], DELTA))
        if choice is None:
            continue
        (chosen,) = (point for point in points if point.threshold == choice.threshold)
        found += 1
        above += bool(part(chosen, other).rates[name] > promise.limit)
        broken += bool(whole[choice.threshold] > promise.limit)
    kept = any(rate <= promise.limit and rate > 0 for rate in whole.values())
    return {
        "recording": path.stem,
        "problems": len(table.ids),
        "promise": name,
        "limit": promise.limit,
        "splits": splits,
        "wrong": broken / splits,
        "above_on_the_other_half": above / splits,
        "power": found / splits if kept else None,
    }


def main() -> None:
    """Simulate, split, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calibrations", type=int, default=10_000, help="of each world")
    parser.add_argument("--splits", type=int, default=500, help="of each recording")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    options = parser.parse_args()
    machine = hardware()
    with get_context("spawn").Pool(options.jobs) as workers:
        worlds = workers.map(partial(Cell.run, draws=options.calibrations), CELLS, chunksize=1)
    for row in worlds:
        power = "none is possible" if row["power"] is None else f"{row['power']:.3f}"
        print(f"{row['world']:14}{row['variants']} {row['promises']:27}{row['wrong']:.4f}  {power}")
    recordings = [
        split(path, name, options.splits)
        for path in RECORDINGS
        for name in ("pse", "wrong_accepted")
    ]
    for row in recordings:
        print(row)
    if options.out:
        result = {"hardware": machine, "delta": DELTA, "worlds": worlds, "recordings": recordings}
        write_json(options.out, result)


if __name__ == "__main__":
    main()
