"""What was judged of every row: read from runs, and kept in one compressed file without texts.

Per problem and turn: label, verdict, confidence, truncation, tokens, which answers are equal, and
the scores that stopping rules read. Every table is made from this file alone.
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.miniature import rows
from experiments.miniature.rows import VOTE_COUNTS, Row, Task
from experiments.miniature.summary import Judged
from svr_lightning.analysis.choice import Options
from svr_lightning.analysis.results import read_evaluation
from svr_lightning.analysis.table import Endings, TurnTable
from svr_lightning.analysis.voting import majority_outcomes, sample_tokens
from svr_lightning.core.metrics import VERDICT_CODES
from svr_lightning.core.types import StopSignals, Verdict
from svr_lightning.errors import ConfigError, require

FILE = "outcomes.npz"
_COLUMNS = ("length", "correct", "truncated", "confidence", "cluster")
_SMALL = {"verdict": np.int8, "prompt_tokens": np.int32, "completion_tokens": np.int32}
"""Columns of a table, the latter in a smaller type than there."""
_SIGNALS = ("answers", "verdict_probability", "answer_logprob", "completion_logprob")
_OUTCOME = ("returned", "observed", "stopped_early")
_VERDICTS = {code: Verdict(name) for name, code in VERDICT_CODES.items()}
_DRAWS = 1000
"""Of votes from each problem's pool."""
Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]


def judged_row(row: Row, seeds: Sequence[int], task: Task) -> Judged:
    """The evaluations of a row's runs.

    Raises:
        ConfigError: naming a file that cannot be read, or runs that were asked other problems.
    """
    folders = [rows.folder_of(row, seed, task) for seed in seeds]
    greedy, sampled = (
        tuple(_only_table(folder / inside) for folder in folders) for inside in ("", "sampled")
    )
    pools = [_only_table(folder / "votes") for folder in folders] if row.votes else []
    for table in (*greedy, *sampled, *pools):
        same_problems(greedy[0].ids, table.ids, row.name)
    votes = majorities(row, pools) if pools else None
    return Judged(row=row, seeds=tuple(seeds), greedy=greedy, sampled=sampled, votes=votes)


def joined(one: Judged, other: Judged) -> Judged:
    """The same row's evaluations with other seeds, in the order of the seeds."""
    same_problems(one.greedy[0].ids, other.greedy[0].ids, one.row.name)
    seeds = (*one.seeds, *other.seeds)
    order = sorted(range(len(seeds)), key=seeds.__getitem__)
    votes = None
    if one.votes and other.votes:
        right, tokens = (
            np.concatenate([getattr(one.votes, name), getattr(other.votes, name)], 1)[:, order]
            for name in ("right", "tokens")
        )
        votes = Options(names=one.votes.names, right=right, tokens=tokens)
    return Judged(
        row=one.row,
        seeds=tuple(seeds[index] for index in order),
        greedy=tuple((*one.greedy, *other.greedy)[index] for index in order),
        sampled=tuple((*one.sampled, *other.sampled)[index] for index in order),
        votes=votes,
    )


def majorities(row: Row, pools: Sequence[TurnTable]) -> Options:
    """Maj@k of [S] pools: how often it is right over draws of k samples, and what k cost."""
    right = []
    for pool in pools:
        drawn = majority_outcomes(pool, VOTE_COUNTS, _DRAWS, np.random.default_rng(0))
        right.append([outcome.mean(1) for outcome in drawn])
    tokens = [[k * sample_tokens(pool) for pool in pools] for k in VOTE_COUNTS]
    names = tuple(f"{row.title} Maj@{k}" for k in VOTE_COUNTS)
    return Options(names=names, right=np.stack(right, 1), tokens=np.array(tokens))


def same_problems(one: Sequence[str], other: Sequence[str], name: str) -> None:
    """Check that two evaluations have the same problems in the same order, as pairs need.

    Raises:
        ConfigError: if these are others.
    """
    same = tuple(one) == tuple(other)
    require(same, f"{name}: judged on other problems than its counterpart; judge it again")


def _only_table(folder: Path) -> TurnTable:
    (table,) = read_evaluation(folder / "eval" / "test").tables.values()
    return table


# --- the file -----------------------------------------------------------------------------------


def write_outcomes(path: Path, found: Sequence[Judged]) -> None:
    """Write what was judged of every row and seed of a task."""
    arrays: dict[str, Array] = {}
    listed = []
    for one in found:
        name = one.row.name
        for how in ("greedy", "sampled"):
            for seed, table in zip(one.seeds, getattr(one, how), strict=True):
                arrays |= {f"{name}/{seed}/{how}/{k}": v for k, v in _columns(table).items()}
        if one.votes:
            for k, right, tokens in zip(
                VOTE_COUNTS, one.votes.right, one.votes.tokens, strict=True
            ):
                arrays |= {f"{name}/votes/{k}/right": right, f"{name}/votes/{k}/tokens": tokens}
        counts = VOTE_COUNTS if one.votes else ()
        listed.append({"name": name, "seeds": one.seeds, "votes": counts})
    arrays["rows"] = np.array(json.dumps(listed))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # none is called allow_pickle


def read_outcomes(path: Path) -> list[Judged]:
    """The rows of a file that :func:`write_outcomes` wrote.

    Raises:
        ConfigError: if it is no such file.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return [_judged(row, arrays) for row in json.loads(str(arrays["rows"]))]
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: no outcomes of the miniature ({error})") from error


def _columns(table: TurnTable) -> dict[str, Array]:
    found: dict[str, Array] = {name: getattr(table, name) for name in _COLUMNS}
    found |= {name: getattr(table, name).astype(kind) for name, kind in _SMALL.items()}
    found |= {f"returned/{name}": getattr(table.outcome, name) for name in _OUTCOME}
    signals = np.full((len(_SIGNALS), *table.correct.shape), np.nan)
    for row, turns in enumerate(table.signals):
        # Of a turn's signals the answer and the scores come last.
        signals[:, row, : len(turns)] = np.array([turn[3:] for turn in turns], float).T
    found |= zip(_SIGNALS, signals, strict=True)
    found["answers"] = np.nan_to_num(found["answers"]).astype(np.int16)
    return {**found, "ids": np.array(table.ids)}


def _judged(row: Mapping[str, Any], arrays: Arrays) -> Judged:
    known = rows.BY_NAME[row["name"]]
    greedy, sampled = (
        tuple(_table(f"{known.name}/{seed}/{how}", arrays) for seed in row["seeds"])
        for how in ("greedy", "sampled")
    )
    votes = None
    if row["votes"]:
        right, tokens = (
            np.stack([arrays[f"{known.name}/votes/{k}/{name}"] for k in row["votes"]])
            for name in ("right", "tokens")
        )
        names = tuple(f"{known.title} Maj@{k}" for k in row["votes"])
        votes = Options(names=names, right=right, tokens=tokens)
    seeds = tuple(row["seeds"])
    return Judged(row=known, seeds=seeds, greedy=greedy, sampled=sampled, votes=votes)


def _table(prefix: str, arrays: Arrays) -> TurnTable:
    columns = {name: arrays[f"{prefix}/{name}"] for name in (*_COLUMNS, *_SMALL)}
    columns["verdict"] = columns["verdict"].astype(np.int64)
    shown = [columns[name] for name in ("verdict", "confidence", "truncated")]
    shown += [arrays[f"{prefix}/{name}"] for name in _SIGNALS]
    each = zip(columns["length"].tolist(), *(column.tolist() for column in shown), strict=True)
    return TurnTable(
        dataset=prefix,
        ids=tuple(arrays[f"{prefix}/ids"].tolist()),
        signals=tuple(
            tuple(_signals(*turn) for turn in [*zip(*turns, strict=True)][:length])
            for length, *turns in each
        ),
        outcome=Endings(**{name: arrays[f"{prefix}/returned/{name}"] for name in _OUTCOME}),
        **columns,
    )


def _signals(
    verdict: int, confidence: float, truncated: bool, answer: int, *scores: float
) -> StopSignals:
    stated, *known = (None if np.isnan(value) else value for value in (confidence, *scores))
    return StopSignals(_VERDICTS.get(verdict), stated, truncated, answer, *known)
