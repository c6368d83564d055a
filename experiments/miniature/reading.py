"""Reads the results of a row's cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.miniature import plan
from experiments.miniature.cells import is_done
from experiments.miniature.plan import Row, Settings
from experiments.miniature.summary import Answers
from svr_lightning.analysis.results import VOTES, read_pools
from svr_lightning.analysis.table import Outcome, TurnTable
from svr_lightning.analysis.voting import majority_outcomes, pools_of
from svr_lightning.core.stopping import Confident
from svr_lightning.errors import ConfigError
from svr_lightning.report.runs import read_methods

VOTE_DRAWS = 1000


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One evaluation: every turn, and what the row's own protocol returned."""

    table: TurnTable
    outcome: Outcome
    gate: Confident
    """The rule whose threshold can be changed."""


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """A row's evaluations, seed by seed."""

    row: Row
    seeds: tuple[int, ...]
    greedy: tuple[Recording, ...]
    """[S]"""
    sampled: tuple[Recording, ...]
    """[S]"""
    votes: dict[int, Answers]
    """Majority voting by the number of votes; empty where the row has none."""

    @property
    def tables(self) -> list[TurnTable]:
        """[S] greedy recordings."""
        return [recording.table for recording in self.greedy]


def read_row(row: Row, seeds: Sequence[int], settings: Settings) -> Seeds | None:
    """Every seed of a row that was trained and judged as planned; None if there is none.

    Raises:
        ConfigError: naming a file that cannot be read, or seeds that were asked other problems.
    """
    judged = []
    for seed in plan.seeds_of(row, tuple(seeds)):
        cell = plan.cell(row, seed, settings, ("train", "judge"))
        if all(is_done(command) for command in cell.commands):
            judged.append((seed, Path(plan.folder_of(settings.out, row, seed))))
    if not judged:
        return None
    greedy, sampled = (
        tuple(recording_of(row.name, folder / inside) for _, folder in judged)
        for inside in ("eval/test", "sampled/eval/test")
    )
    found = Seeds(
        row=row,
        seeds=tuple(seed for seed, _ in judged),
        greedy=greedy,
        sampled=sampled,
        votes=majorities([folder for _, folder in judged], greedy) if row.votes else {},
    )
    for recording in (*greedy, *sampled):
        same_problems(found.tables[0].ids, recording.table.ids, row.name)
    return found


def joined(one: Seeds, other: Seeds) -> Seeds:
    """The same row's evaluations with other seeds, in the order of the seeds.

    Raises:
        ConfigError: if they were asked different problems.
    """
    same_problems(one.tables[0].ids, other.tables[0].ids, one.row.name)
    seeds = (*one.seeds, *other.seeds)
    order = sorted(range(len(seeds)), key=seeds.__getitem__)

    def in_order(values: Sequence[Recording]) -> tuple[Recording, ...]:
        return tuple(values[index] for index in order)

    votes = {
        k: Answers(
            right=np.concatenate([one.votes[k].right, other.votes[k].right])[order],
            tokens=np.concatenate([one.votes[k].tokens, other.votes[k].tokens])[order],
        )
        for k in one.votes
    }
    return Seeds(
        row=one.row,
        seeds=tuple(seeds[index] for index in order),
        greedy=in_order((*one.greedy, *other.greedy)),
        sampled=in_order((*one.sampled, *other.sampled)),
        votes=votes,
    )


def recording_of(name: str, folder: Path) -> Recording:
    """An evaluation's files.

    Raises:
        ConfigError: if they cannot be read, or hold several data sets.
    """
    (run,) = read_methods([f"{name}={folder}"])[0].runs
    if len(run.tables) != 1:
        raise ConfigError(f"{name}: {len(run.tables)} data sets in one evaluation; judge it again")
    (table,) = run.tables.values()
    return Recording(table=table, outcome=table.outcome, gate=run.gate)


def majorities(folders: Sequence[Path], runs: Sequence[Recording]) -> dict[int, Answers]:
    """Maj@k of [S] pools: how often it is right over draws of k samples, and what k cost."""
    counts = plan.VOTE_COUNTS
    right: dict[int, list[np.ndarray]] = {k: [] for k in counts}
    tokens: dict[int, list[np.ndarray]] = {k: [] for k in counts}
    for folder, run in zip(folders, runs, strict=True):
        (pools,) = pools_of(read_pools(folder / "eval" / "votes" / VOTES))
        same_problems(run.table.ids, pools.ids, folder.name)
        drawn = majority_outcomes(pools, counts, VOTE_DRAWS, np.random.default_rng(0))
        for k, outcome in zip(counts, drawn, strict=True):
            right[k].append(outcome.mean(1))
            tokens[k].append(k * (pools.prompt_tokens + pools.completion_tokens))
    return {k: Answers(right=np.stack(right[k]), tokens=np.stack(tokens[k])) for k in counts}


def same_problems(one: Sequence[str], other: Sequence[str], name: str) -> None:
    """Check that two rows have the same problems in the same order, as pairs need.

    Raises:
        ConfigError: if these are others.
    """
    if tuple(one) != tuple(other):
        raise ConfigError(f"{name}: judged on other problems than its counterpart; judge it again")
