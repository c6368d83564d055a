"""What was judged of every row: read from runs, and kept in one compressed file without texts.

Per problem and turn: label, verdict, confidence, truncation, tokens, which answers are equal, and
the scores that stopping rules read. Every table is made from this file alone.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.miniature import rows
from experiments.miniature.rows import HOW, VOTE_COUNTS, Row, Task
from experiments.miniature.summary import Judged
from svr_lightning.analysis.choice import Options
from svr_lightning.analysis.results import read_evaluation
from svr_lightning.analysis.table import TurnTable, empty_turns
from svr_lightning.analysis.voting import majority_outcomes, sample_tokens
from svr_lightning.errors import require

FILE = "outcomes.npz"
_SCORES = ("verdict_probability", "answer_logprob", "completion_logprob")
_COLUMNS = ("length", "correct", "confidence", "cluster", "truncated", *_SCORES)
_SMALL = {"verdict": np.int8, "prompt_tokens": np.int32, "completion_tokens": np.int32}
"""Columns of a table, the latter in a smaller type than there."""
_VOTES = ("right", "tokens")
_DRAWS = 1000
"""Of votes from each problem's pool."""
Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]


def from_runs(done: Mapping[Row, Sequence[int]], task: Task) -> list[Judged]:
    """The evaluations of the runs of rows, of each with these seeds.

    Raises:
        ConfigError: naming a file that cannot be read, or a run that was asked other problems.
    """
    asked = set()

    def table(folder: Path) -> TurnTable:
        (found,) = read_evaluation(folder / "eval" / "test").tables.values()
        asked.add(found.ids)
        require(len(asked) == 1, f"{folder}: judged on other problems than its counterparts")
        return found

    every = []
    for row, seeds in done.items():
        folders = [rows.folder_of(row, seed, task) for seed in seeds]
        turns = {how: tuple(table(folder / how) for folder in folders) for how in HOW}
        votes = (
            majorities(row, [table(folder / "votes") for folder in folders]) if row.votes else None
        )
        every.append(Judged(row=row, seeds=tuple(seeds), turns=turns, votes=votes))
    return every


def majorities(row: Row, pools: Sequence[TurnTable]) -> Options:
    """Maj@k of [S] pools: how often it is right over draws of k samples, and what k cost."""
    right = []
    for pool in pools:
        drawn = majority_outcomes(pool, VOTE_COUNTS, _DRAWS, np.random.default_rng(0))
        right.append([outcome.mean(1) for outcome in drawn])
    tokens = [[k * sample_tokens(pool) for pool in pools] for k in VOTE_COUNTS]
    return votes_of(row, np.stack(right, 1), np.array(tokens))


def votes_of(row: Row, right: Array, tokens: Array) -> Options:
    """Majority voting as options: [K, S, N] of each of :data:`VOTE_COUNTS`."""
    names = tuple(f"{row.title} Maj@{k}" for k in VOTE_COUNTS)
    return Options(names=names, right=right, tokens=tokens)


# --- the file -----------------------------------------------------------------------------------


def write_outcomes(path: Path, found: Sequence[Judged]) -> None:
    """Write what was judged of every row and seed of a task."""
    arrays: dict[str, Array] = {}
    listed = []
    for one in found:
        name = one.row.name
        for how, tables in one.turns.items():
            for seed, table in zip(one.seeds, tables, strict=True):
                arrays |= {f"{name}/{seed}/{how}/{k}": v for k, v in _columns(table).items()}
        if one.votes:
            for n in _VOTES:
                columns = zip(VOTE_COUNTS, getattr(one.votes, n), strict=True)
                arrays |= {f"{name}/votes/{k}/{n}": column for k, column in columns}
        listed.append({"name": name, "seeds": one.seeds})
    arrays["rows"] = np.array(json.dumps(listed))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # none is called allow_pickle


def read_outcomes(path: Path) -> list[Judged]:
    """The rows of a file that :func:`write_outcomes` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        listed = json.loads(str(arrays["rows"]))
        return [_judged(rows.BY_NAME[row["name"]], row["seeds"], arrays) for row in listed]


def _columns(table: TurnTable) -> dict[str, Array]:
    found: dict[str, Array] = {name: getattr(table, name) for name in _COLUMNS}
    found |= {name: getattr(table, name).astype(kind) for name, kind in _SMALL.items()}
    found["answers"] = table.answer.astype(np.int16)
    return {**found, "ids": np.array(table.ids)}


def _judged(row: Row, seeds: Sequence[int], arrays: Arrays) -> Judged:
    turns = {
        how: tuple(_table(f"{row.name}/{seed}/{how}", arrays) for seed in seeds) for how in HOW
    }
    votes = None
    if row.votes:
        each = ([arrays[f"{row.name}/votes/{k}/{n}"] for k in VOTE_COUNTS] for n in _VOTES)
        votes = votes_of(row, *map(np.stack, each))
    return Judged(row=row, seeds=tuple(seeds), turns=turns, votes=votes)


def _table(prefix: str, arrays: Arrays) -> TurnTable:
    columns = empty_turns(*arrays[f"{prefix}/correct"].shape)
    columns |= {name: arrays[f"{prefix}/{name}"] for name in (*_COLUMNS, *_SMALL)}
    columns["verdict"] = columns["verdict"].astype(np.int64)
    columns["answer"] = arrays[f"{prefix}/answers"].astype(np.int64)
    every = columns["length"]
    return TurnTable(
        dataset=prefix,
        ids=tuple(arrays[f"{prefix}/ids"].tolist()),
        returned=every,
        observed=every,
        stopped_early=np.zeros_like(every, bool),
        accepted=np.zeros_like(every, bool),
        rule=None,
        max_turns=columns["correct"].shape[1],
        **columns,
    )
