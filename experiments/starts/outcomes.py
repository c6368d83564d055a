"""What every way returned on every problem, from the runs of some starts, in one compressed file.

A start has arms: its policy before training, after SVR+, and after SVR+ with exact credit. In each
of them each way of :mod:`svr_lightning.analysis.check_value` has options: K stopping rules that
return something else. The file holds for each of them whether it is right and what it cost on each
of N problems, and what each of T fresh answers stated.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from svr_lightning.analysis.check_value import FIRST, Ways, ways_of
from svr_lightning.analysis.choice import Options
from svr_lightning.analysis.results import RESULTS, read_evaluation
from svr_lightning.analysis.table import Bools, Floats, Ints, TurnTable
from svr_lightning.callbacks.before_after import samples_of
from svr_lightning.errors import require

BEFORE = "before"
AFTER = "after"
EXACT = "exact"
ARMS = {
    BEFORE: "before training",
    AFTER: "after SVR+",
    EXACT: "after SVR+ with exact credit",
}
ANSWERS = 3
"""The budget, as a multiple of the mean tokens of a trained policy's first answer."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What one policy returned."""

    ways: Ways
    stated: Floats
    """[N, T] the stated confidence of fresh answers, in hundredths."""
    correct: Bools
    """[N, T] whether these answers are right."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What the policies of one start returned."""

    seed: int
    budget: float
    """Tokens per problem."""
    arms: Mapping[str, Arm]
    """By their name in :data:`ARMS`."""


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """What every start returned on the same problems."""

    ids: tuple[str, ...]
    """[N]"""
    cluster: Ints
    """[N] equal numbers for problems that count as one."""
    starts: Sequence[Start]


def from_runs(dataset: str, runs: Mapping[int, Path]) -> Outcomes:
    """The outcomes of runs on one data set, by the seed of their start.

    Beside a run ``plusN`` may lie ``exactN``, the same with exact credit.

    Raises:
        ConfigError: naming a run that was asked other problems than the first.
    """
    starts = []
    first = None
    for seed, folder in sorted(runs.items()):
        trained = {AFTER: folder, EXACT: folder.with_name(f"exact{seed}")}
        arms = {BEFORE: arm_of(folder / "eval" / "fresh_before", dataset)}
        for name, run in trained.items():
            if not (run / "eval" / "fresh" / RESULTS).is_file():
                continue
            refined = read_evaluation(run / "eval" / "after").tables[dataset]
            first = first or refined
            require(refined.ids == first.ids, f"{run}: asked other problems than its counterparts")
            arms[name] = arm_of(run / "eval" / "fresh", dataset, refined)
        budget = ANSWERS * float(arms[AFTER].ways[FIRST].tokens.mean())
        starts.append(Start(seed=seed, budget=budget, arms=arms))
    require(first is not None, "there are no runs; give folders of svr fit")
    assert first is not None
    return Outcomes(ids=first.ids, cluster=first.cluster, starts=starts)


def joined(published: Outcomes, new: Outcomes) -> Outcomes:
    """All starts; a new one replaces the published one with its seed."""
    require(new.ids == published.ids, "the new runs were asked other problems than the published")
    starts = {start.seed: start for start in (*published.starts, *new.starts)}
    return replace(published, starts=[starts[seed] for seed in sorted(starts)])


def arm_of(fresh: Path, dataset: str, refined: TurnTable | None = None) -> Arm:
    """The outcomes of one policy, from its recorded fresh answers and refinements."""
    samples = samples_of(read_evaluation(fresh))[dataset]
    stated = np.rint(100 * samples.table.confidence)
    return Arm(ways=ways_of(samples, refined), stated=stated, correct=samples.table.correct)


def write(path: Path, outcomes: Outcomes) -> None:
    """Write the file."""
    arrays: dict[str, Any] = {"ids": np.array(outcomes.ids), "cluster": outcomes.cluster}
    listed = []
    for start in outcomes.starts:
        names = {}
        for arm_name, arm in start.arms.items():
            names[arm_name] = {way: options.names for way, options in arm.ways.items()}
            prefix = f"{start.seed}/{arm_name}"
            arrays[f"{prefix}/stated"] = arm.stated.astype(np.uint8)
            arrays[f"{prefix}/correct"] = arm.correct.astype(np.bool_)
            for way, options in arm.ways.items():
                arrays[f"{prefix}/{way}/right"] = options.right[:, 0].astype(np.bool_)
                arrays[f"{prefix}/{way}/tokens"] = options.tokens[:, 0].astype(np.uint16)
        listed.append({"seed": start.seed, "budget": start.budget, "names": names})
    arrays["starts"] = np.array(json.dumps(listed))
    np.savez_compressed(path, **arrays)


def read(path: Path) -> Outcomes:
    """Read what :func:`write` wrote."""
    with np.load(path, allow_pickle=False) as arrays:

        def arm(prefix: str, names: Mapping[str, Sequence[str]]) -> Arm:
            ways = {
                way: Options(
                    names=tuple(rules),
                    right=arrays[f"{prefix}/{way}/right"][:, None].astype(float),
                    tokens=arrays[f"{prefix}/{way}/tokens"][:, None].astype(float),
                )
                for way, rules in names.items()
            }
            stated = arrays[f"{prefix}/stated"].astype(float)
            return Arm(ways=ways, stated=stated, correct=arrays[f"{prefix}/correct"])

        starts = []
        for one in json.loads(str(arrays["starts"])):
            seed = one["seed"]
            arms = {name: arm(f"{seed}/{name}", names) for name, names in one["names"].items()}
            starts.append(Start(seed=seed, budget=one["budget"], arms=arms))
        return Outcomes(ids=tuple(arrays["ids"].tolist()), cluster=arrays["cluster"], starts=starts)
