"""What every way returned on every problem, from the runs of some starts, in one compressed file.

Of each start, before and after training, each way of
:mod:`svr_lightning.analysis.check_value` has options: K stopping rules that return something else.
The file holds for each of them whether it is right and what it cost on each of N problems.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.starts.scores import Scorer
from svr_lightning.analysis.check_value import FIRST, Ways, ways_of
from svr_lightning.analysis.choice import Options
from svr_lightning.analysis.results import Evaluation, read_evaluation, setting
from svr_lightning.analysis.table import Ints, turn_tables
from svr_lightning.callbacks.before_after import samples_of
from svr_lightning.errors import require

DATASET = "countdown_tiny"
ANSWERS = 3
"""The budget, as a multiple of the mean tokens of a trained policy's first answer."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What one start returned."""

    seed: int
    budget: float
    """Tokens per problem."""
    after: Ways
    before: Ways


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """What every start returned on the same problems."""

    ids: tuple[str, ...]
    """[N]"""
    cluster: Ints
    """[N] equal numbers for problems that count as one."""
    starts: Sequence[Start]


def from_runs(runs: Mapping[int, Path]) -> Outcomes:
    """The outcomes of runs by the seed of their start; beside a run ``plusN`` lies ``startN``.

    Raises:
        ConfigError: naming a run that was asked other problems than the first.
    """
    starts = []
    first = None
    for seed, folder in sorted(runs.items()):
        trained = folder / "policy"
        start = folder.with_name(f"start{seed}")
        refined = scored(folder / "eval" / "after", trained).tables[DATASET]
        first = first or refined
        require(refined.ids == first.ids, f"{folder}: asked other problems than its counterparts")
        fresh = samples_of(scored(folder / "eval" / "fresh", trained))
        untrained = samples_of(scored(folder / "eval" / "fresh_before", start))
        after = ways_of(fresh[DATASET], refined)
        before = ways_of(untrained[DATASET])
        budget = ANSWERS * float(after[FIRST].tokens.mean())
        starts.append(Start(seed=seed, budget=budget, after=after, before=before))
    require(first is not None, "there are no runs; give folders of svr fit")
    assert first is not None
    return Outcomes(ids=first.ids, cluster=first.cluster, starts=starts)


def scored(folder: Path, policy: Path) -> Evaluation:
    """An evaluation with the log-probabilities of solutions, which older recordings lack."""
    found = read_evaluation(folder)
    read = list(found.records)
    turns = [turn for record in read for turn in record.turns]
    if any(turn.solution_logprob is not None for turn in turns):
        return found
    temperature = setting(found.config, "model", "evaluation", "temperature") or 1.0
    scorer = Scorer(policy, temperature, fresh=found.independent)
    records = [scorer.scored(record) for record in read]
    print(f"{folder}: {len(turns) - scorer.unlike} of {len(turns)} turns read as they were sampled")
    rule = found.tables[DATASET].rule
    return replace(found, tables=turn_tables(records, rule, found.max_turns))


def write(path: Path, outcomes: Outcomes) -> None:
    """Write the file."""
    arrays: dict[str, Any] = {"ids": np.array(outcomes.ids), "cluster": outcomes.cluster}
    listed = []
    for start in outcomes.starts:
        names = {}
        for when, ways in (("after", start.after), ("before", start.before)):
            names[when] = {way: options.names for way, options in ways.items()}
            for way, options in ways.items():
                place = f"{start.seed}/{when}/{way}"
                arrays[f"{place}/right"] = options.right[:, 0].astype(np.bool_)
                arrays[f"{place}/tokens"] = options.tokens[:, 0].astype(np.uint16)
        listed.append({"seed": start.seed, "budget": start.budget, "names": names})
    arrays["starts"] = np.array(json.dumps(listed))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


def read(path: Path) -> Outcomes:
    """Read what :func:`write` wrote."""
    with np.load(path, allow_pickle=False) as arrays:

        def ways(seed: int, when: str, names: Mapping[str, Sequence[str]]) -> Ways:
            return {
                way: Options(
                    names=tuple(rules),
                    right=arrays[f"{seed}/{when}/{way}/right"][:, None].astype(float),
                    tokens=arrays[f"{seed}/{when}/{way}/tokens"][:, None].astype(float),
                )
                for way, rules in names.items()
            }

        starts = [
            Start(
                seed=one["seed"],
                budget=one["budget"],
                after=ways(one["seed"], "after", one["names"]["after"]),
                before=ways(one["seed"], "before", one["names"]["before"]),
            )
            for one in json.loads(str(arrays["starts"]))
        ]
        return Outcomes(ids=tuple(arrays["ids"].tolist()), cluster=arrays["cluster"], starts=starts)
