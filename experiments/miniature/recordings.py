"""What was judged of every row: read from runs, and kept in one compressed file without texts.

Per problem and turn: label, verdict, confidence, truncation, tokens, which answers are equal, and
the scores that stopping rules read. Every table is made from this file alone.
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.miniature import rows
from experiments.miniature.rows import Row, Task
from svr_lightning.analysis.results import read_evaluation
from svr_lightning.analysis.table import Endings, TurnTable
from svr_lightning.analysis.voting import majority_outcomes, sample_tokens
from svr_lightning.core.metrics import NO_VERDICT, VERDICT_CODES
from svr_lightning.core.types import StopSignals, Verdict
from svr_lightning.errors import ConfigError, require

FILE = "outcomes.npz"
_COLUMNS = ("length", "correct", "truncated", "verdict", "confidence")
_TOKENS = ("prompt_tokens", "completion_tokens")
_SCORES = ("verdict_probability", "answer_logprob", "completion_logprob")
_OUTCOME = ("returned", "observed", "stopped_early")
_VERDICTS = {code: Verdict(name) for name, code in VERDICT_CODES.items()}
_DRAWS = 1000
"""Of votes from each problem's pool."""
Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a row returned."""

    right: np.ndarray[Any, Any]
    """[S, N] in [0, 1]."""
    tokens: np.ndarray[Any, Any]
    """[S, N] prompt and completion tokens."""


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """A row's evaluations, seed by seed. Every table holds all turns, and how the row stopped."""

    row: Row
    seeds: tuple[int, ...]
    greedy: tuple[TurnTable, ...]
    """[S]"""
    sampled: tuple[TurnTable, ...]
    """[S]"""
    votes: dict[int, Answers]
    """Majority voting by the number of votes; empty where the row has none."""


def judged_row(row: Row, seeds: Sequence[int], task: Task, out: str) -> Seeds:
    """The evaluations of a row's runs.

    Raises:
        ConfigError: naming a file that cannot be read, or runs that were asked other problems.
    """
    folders = [Path(rows.folder_of(row, seed, task, out)) for seed in seeds]
    greedy, sampled = (
        tuple(_only_table(folder / inside / "samples.jsonl") for folder in folders)
        for inside in ("eval/test", "sampled/eval/test")
    )
    votes = majorities(folders, greedy) if row.votes else {}
    found = Seeds(row=row, seeds=tuple(seeds), greedy=greedy, sampled=sampled, votes=votes)
    for table in (*greedy, *sampled):
        same_problems(greedy[0].ids, table.ids, row.name)
    return found


def joined(one: Seeds, other: Seeds) -> Seeds:
    """The same row's evaluations with other seeds, in the order of the seeds."""
    same_problems(one.greedy[0].ids, other.greedy[0].ids, one.row.name)
    seeds = (*one.seeds, *other.seeds)
    order = sorted(range(len(seeds)), key=seeds.__getitem__)

    def both(first: Answers, second: Answers) -> Answers:
        pairs = ((first.right, second.right), (first.tokens, second.tokens))
        right, tokens = (np.concatenate(pair)[order] for pair in pairs)
        return Answers(right=right, tokens=tokens)

    return Seeds(
        row=one.row,
        seeds=tuple(seeds[index] for index in order),
        greedy=tuple((*one.greedy, *other.greedy)[index] for index in order),
        sampled=tuple((*one.sampled, *other.sampled)[index] for index in order),
        votes={k: both(votes, other.votes[k]) for k, votes in one.votes.items()},
    )


def majorities(folders: Sequence[Path], tables: Sequence[TurnTable]) -> dict[int, Answers]:
    """Maj@k of [S] pools: how often it is right over draws of k samples, and what k cost."""
    counts = rows.VOTE_COUNTS
    right: dict[int, list[np.ndarray]] = {k: [] for k in counts}
    tokens: dict[int, list[np.ndarray]] = {k: [] for k in counts}
    for folder, table in zip(folders, tables, strict=True):
        pools = _only_table(folder / "votes/eval/test/samples.jsonl")
        same_problems(table.ids, pools.ids, folder.name)
        drawn = majority_outcomes(pools, counts, _DRAWS, np.random.default_rng(0))
        for k, outcome in zip(counts, drawn, strict=True):
            right[k].append(outcome.mean(1))
            tokens[k].append(k * sample_tokens(pools))
    return {k: Answers(right=np.stack(right[k]), tokens=np.stack(tokens[k])) for k in counts}


def same_problems(one: Sequence[str], other: Sequence[str], name: str) -> None:
    """Check that two evaluations have the same problems in the same order, as pairs need.

    Raises:
        ConfigError: if these are others.
    """
    same = tuple(one) == tuple(other)
    require(same, f"{name}: judged on other problems than its counterpart; judge it again")


def _only_table(samples: Path) -> TurnTable:
    (table,) = read_evaluation(samples).tables.values()
    return table


# --- the file -----------------------------------------------------------------------------------


def write_outcomes(path: Path, found: Sequence[Seeds]) -> None:
    """Write what was judged of every row and seed of a task."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    listed = []
    for one in found:
        for how in ("greedy", "sampled"):
            for seed, table in zip(one.seeds, getattr(one, how), strict=True):
                prefix = f"{one.row.name}/{seed}/{how}"
                arrays |= {f"{prefix}/{k}": v for k, v in _columns(table).items()}
        for k, voted in one.votes.items():
            arrays[f"{one.row.name}/votes/{k}/right"] = voted.right
            arrays[f"{one.row.name}/votes/{k}/tokens"] = voted.tokens
        listed.append({"name": one.row.name, "seeds": one.seeds, "votes": [*one.votes]})
    arrays["rows"] = np.array(json.dumps(listed))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # none is called allow_pickle


def read_outcomes(path: Path) -> list[Seeds]:
    """The rows of a file that :func:`write_outcomes` wrote.

    Raises:
        ConfigError: if it is no such file.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return [_seeds(row, arrays) for row in json.loads(str(arrays["rows"]))]
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: no outcomes of the miniature ({error})") from error


def _columns(table: TurnTable) -> dict[str, np.ndarray[Any, Any]]:
    found = {name: getattr(table, name) for name in _COLUMNS}
    found["verdict"] = found["verdict"].astype(np.int8)
    found |= {name: getattr(table, name).astype(np.int32) for name in _TOKENS}
    found |= {"ids": np.array(table.ids), "cluster": table.cluster}
    answers = np.zeros(table.correct.shape, dtype=np.int16)
    scores = {name: np.full(table.correct.shape, np.nan) for name in _SCORES}
    for row, turns in enumerate(table.signals):
        for column, turn in enumerate(turns):
            answers[row, column] = turn.answer
            for name in _SCORES:
                if getattr(turn, name) is not None:
                    scores[name][row, column] = getattr(turn, name)
    found |= {f"returned/{name}": getattr(table.outcome, name) for name in _OUTCOME}
    return {**found, "answers": answers, **scores}


def _seeds(row: Mapping[str, Any], arrays: Arrays) -> Seeds:
    name, seeds = row["name"], tuple(row["seeds"])
    greedy, sampled = (
        tuple(_table(f"{name}/{seed}/{how}", arrays) for seed in seeds)
        for how in ("greedy", "sampled")
    )
    votes = {
        int(k): Answers(
            right=arrays[f"{name}/votes/{k}/right"], tokens=arrays[f"{name}/votes/{k}/tokens"]
        )
        for k in row["votes"]
    }
    return Seeds(row=rows.BY_NAME[name], seeds=seeds, greedy=greedy, sampled=sampled, votes=votes)


def _table(prefix: str, arrays: Arrays) -> TurnTable:
    of = {key: arrays[f"{prefix}/{key}"] for key in ("answers", "ids", *_SCORES)}
    columns: dict[str, Any] = {name: arrays[f"{prefix}/{name}"] for name in (*_COLUMNS, *_TOKENS)}
    columns["verdict"] = columns["verdict"].astype(np.int64)
    return TurnTable(
        dataset=prefix,
        ids=tuple(of["ids"].tolist()),
        cluster=arrays[f"{prefix}/cluster"],
        signals=tuple(
            tuple(_signals(columns, of, row, turn) for turn in range(length))
            for row, length in enumerate(columns["length"].tolist())
        ),
        outcome=Endings(**{name: arrays[f"{prefix}/returned/{name}"] for name in _OUTCOME}),
        **columns,
    )


def _signals(columns: Mapping[str, Any], of: Arrays, row: int, turn: int) -> StopSignals:
    code = int(columns["verdict"][row, turn])
    return StopSignals(
        None if code == NO_VERDICT else _VERDICTS[code],
        _number(columns["confidence"][row, turn]),
        bool(columns["truncated"][row, turn]),
        int(of["answers"][row, turn]),
        *(_number(of[name][row, turn]) for name in _SCORES),
    )


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
