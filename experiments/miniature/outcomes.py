"""The outcomes of all rows in one compressed file, from which every table is made again.

Per problem and turn: label, verdict, confidence, truncation, tokens, which answers are equal, and
the scores that stopping rules read. No text.
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from experiments.miniature import plan
from experiments.miniature.cells import inputs_digest
from experiments.miniature.reading import Recording, Seeds
from experiments.miniature.summary import Answers
from svr_lightning.analysis.table import Outcome, TurnTable
from svr_lightning.core.metrics import NO_VERDICT, VERDICT_CODES
from svr_lightning.core.stopping import Confident, StopSignals, rule_as_config, rule_from_config
from svr_lightning.core.types import Verdict
from svr_lightning.errors import ConfigError

FILE = "outcomes.npz"
_COLUMNS = ("length", "correct", "truncated", "verdict", "confidence")
_TOKENS = ("prompt_tokens", "completion_tokens")
_SCORES = ("verdict_probability", "answer_logprob", "completion_logprob")
_VERDICTS = {code: Verdict(name) for name, code in VERDICT_CODES.items()}
Arrays = Mapping[str, np.ndarray[Any, Any]]


def write_outcomes(path: Path, rows: Sequence[Seeds], task: plan.Task) -> None:
    """Write what was judged of every row and seed on a task."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    listed = []
    for one in rows:
        gates = []
        for how in ("greedy", "sampled"):
            for seed, recording in zip(one.seeds, getattr(one, how), strict=True):
                prefix = f"{one.row.name}/{seed}/{how}"
                arrays |= {f"{prefix}/{k}": v for k, v in _columns(recording).items()}
                gates.append(rule_as_config(recording.gate)["init_args"])
        for k, voted in one.votes.items():
            arrays[f"{one.row.name}/votes/{k}/right"] = voted.right
            arrays[f"{one.row.name}/votes/{k}/tokens"] = voted.tokens
        listed.append(
            {
                "name": one.row.name,
                "inputs": inputs_digest(plan.layered(one.row, task)),
                "seeds": one.seeds,
                "gates": gates,
                "votes": [*one.votes],
            }
        )
    arrays["rows"] = np.array(json.dumps(listed))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # none is called allow_pickle


def read_outcomes(path: Path, task: plan.Task) -> list[Seeds]:
    """The rows of a file that :func:`write_outcomes` wrote.

    Raises:
        ConfigError: if it is no such file, or one of a row whose configuration changed since.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            listed = json.loads(str(arrays["rows"]))
            for row in listed:
                if inputs_digest(plan.layered(plan.BY_NAME[row["name"]], task)) != row["inputs"]:
                    raise ConfigError(
                        f"{path}: {row['name']} was judged with another configuration or policy "
                        "than today's; give another --published folder, and run it again"
                    )
            return [_seeds(row, arrays) for row in listed]
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: no outcomes of the miniature ({error})") from error


def _columns(recording: Recording) -> dict[str, np.ndarray[Any, Any]]:
    table = recording.table
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
    found |= {f"returned/{f.name}": getattr(recording.outcome, f.name) for f in fields(Outcome)}
    return {**found, "answers": answers, **scores}


def _seeds(row: Mapping[str, Any], arrays: Arrays) -> Seeds:
    name, seeds = row["name"], tuple(row["seeds"])
    gates = iter(row["gates"])
    found = {
        how: tuple(_recording(f"{name}/{seed}/{how}", next(gates), arrays) for seed in seeds)
        for how in ("greedy", "sampled")
    }
    votes = {
        int(k): Answers(
            right=arrays[f"{name}/votes/{k}/right"], tokens=arrays[f"{name}/votes/{k}/tokens"]
        )
        for k in row["votes"]
    }
    return Seeds(row=plan.BY_NAME[name], seeds=seeds, votes=votes, **found)


def _recording(prefix: str, gate: Mapping[str, Any], arrays: Arrays) -> Recording:
    of = {key: arrays[f"{prefix}/{key}"] for key in ("answers", "ids", *_SCORES)}
    columns: dict[str, Any] = {name: arrays[f"{prefix}/{name}"] for name in (*_COLUMNS, *_TOKENS)}
    columns["verdict"] = columns["verdict"].astype(np.int64)
    outcome = Outcome(**{f.name: arrays[f"{prefix}/returned/{f.name}"] for f in fields(Outcome)})
    table = TurnTable(
        dataset=prefix,
        ids=tuple(of["ids"].tolist()),
        cluster=arrays[f"{prefix}/cluster"],
        signals=tuple(
            tuple(_signals(columns, of, row, turn) for turn in range(length))
            for row, length in enumerate(columns["length"].tolist())
        ),
        outcome=outcome,
        **columns,
    )
    rule = rule_from_config({"stop": {"class_path": "Confident", "init_args": gate}})
    assert isinstance(rule, Confident)
    return Recording(table=table, outcome=outcome, gate=rule)


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
