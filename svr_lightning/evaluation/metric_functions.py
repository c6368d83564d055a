"""The paper's metrics as functions: records to columns, columns to numbers.

Definitions follow the appendix "Metric Definitions". Shapes: N rows, one per example or one per
observed turn. Labels and flags are int64 zeros and ones, verdicts are coded by
:data:`VERDICT_CODES`, confidences are float64 in [0, 1]. Counts are summed as integers and real
numbers by :func:`math.fsum`, so that no value depends on the order of the rows or on how they
were split over batches and ranks. What is undefined is nan.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from svr_lightning.core.types import Verdict

VERDICT_CODES = {Verdict.CORRECT: 1, Verdict.INCORRECT: 0, Verdict.UNSURE: -1}
"""How verdicts stand in tensors. The code of a commitment is the label that it claims."""


def keep_first(ids: Tensor) -> Tensor:
    """Which rows to count: every row without an id (-1), and the first one of each id.

    Args:
        ids: [N] int64.

    Returns:
        [N] bool.

    Example:
        >>> keep_first(torch.tensor([7, -1, 7, 3, -1])).tolist()
        [True, True, False, True, True]
    """
    ordered, position = torch.sort(ids, stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = (ordered[1:] != ordered[:-1]) | (ordered[1:] < 0)
    kept = torch.empty_like(first)
    kept[position] = first
    return kept


def mean(values: Tensor) -> float:
    """The mean of [N] integers or reals, correctly rounded; nan of nothing.

    Example:
        >>> mean(torch.tensor([1, 0, 0, 1])), mean(torch.tensor([]))
        (0.5, nan)
    """
    if len(values) == 0:
        return math.nan
    total = math.fsum(values.tolist()) if values.is_floating_point() else int(values.sum())
    return total / len(values)


def count(values: Tensor) -> int:
    """N."""
    return len(values)


def premature_stop_error(stopped_early: Tensor, correct: Tensor) -> float:
    """PSE: share of *all* examples that stop before T_max with a wrong answer.

    Args:
        stopped_early: [N] whether the returned turn lies before T_max.
        correct: [N] label of the returned answer.

    Example:
        >>> premature_stop_error(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0]))
        0.25
    """
    return mean(stopped_early * (1 - correct))


def verdict_accuracy(verdict: Tensor, correct: Tensor) -> float:
    """VAcc: share of right ones among the CORRECT and INCORRECT verdicts; UNSURE abstains.

    nan where every verdict abstains.

    Example:
        >>> verdict_accuracy(torch.tensor([1, 0, -1]), torch.tensor([1, 1, 0]))
        0.5
    """
    committed = verdict != VERDICT_CODES[Verdict.UNSURE]
    return mean((verdict == correct)[committed].long())


def brier_score(confidence: Tensor, correct: Tensor) -> float:
    """Brier: mean squared distance of the confidence from the label.

    Example:
        >>> brier_score(torch.tensor([0.5, 1.0]), torch.tensor([1, 1]))
        0.125
    """
    return mean((confidence.double() - correct) ** 2)


def confidence_auroc(confidence: Tensor, correct: Tensor) -> float:
    """AUROC: how often a right answer has more confidence than a wrong one, ties counting 1/2.

    Taken from integer counts at each distinct confidence, so that it is exact with ties. nan
    where all labels are equal.

    Example:
        >>> confidence_auroc(torch.tensor([0.9, 0.9, 0.2]), torch.tensor([1, 0, 0]))
        0.75
    """
    levels, level = torch.unique(confidence, return_inverse=True)
    right = torch.bincount(level[correct == 1], minlength=len(levels))
    wrong = torch.bincount(level[correct == 0], minlength=len(levels))
    pairs = int(right.sum()) * int(wrong.sum())
    if pairs == 0:
        return math.nan
    wrong_below = wrong.cumsum(0) - wrong
    doubled_wins = int((right * (2 * wrong_below + wrong)).sum())
    return doubled_wins / (2 * pairs)


def overconfidence(verdict: Tensor, correct: Tensor) -> float:
    """Overconf: share of *all* observed turns that say CORRECT of a wrong answer.

    Example:
        >>> overconfidence(torch.tensor([1, 1, 0, -1]), torch.tensor([1, 0, 0, 0]))
        0.25
    """
    return mean(((verdict == VERDICT_CODES[Verdict.CORRECT]) & (correct == 0)).long())


def example_key(dataset: str, example: str, turn: int | None = None) -> int:
    """A key in [0, 2**63) for one example, or for one turn of it; equal on every machine."""
    key = json.dumps([dataset, example, turn])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


def observed_turns(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """O: the turns that a record's outcome generated; none of a problem that could not be run.

    They are the turns up to the returned one, unless the record says with ``observed_turns`` that
    more of them were generated before an earlier one was returned.

    Raises:
        ValueError: if the returned turn is not there, or a turn has no label.
    """
    turns = list(record["turns"])
    returned = record["returned_turn"]
    observed = record.get("observed_turns", returned)
    failed = record.get("error") is not None
    if failed and not turns and not returned and not record["stopped_early"]:
        return []
    if failed or not 1 <= returned <= observed <= len(turns):
        raise ValueError(
            f"{_name(record)} returns turn {returned} of {len(turns)}; a record has that turn, "
            "or else an error, no turns and returned turn 0"
        )
    for turn in turns[:observed]:
        if not isinstance(turn["correct"], bool):
            raise ValueError(
                f"{_name(record)} has no label at turn {turn['turn']}; metrics are for problems "
                "with a reference"
            )
    return turns[:observed]


def _name(record: Mapping[str, Any]) -> str:
    return f"record {record['id']!r} of {record['dataset']!r}"


def record_columns(records: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """What metrics read of sample records, as columns.

    Returns:
        Per example, [N]: ``final_correct``, ``first_correct``, ``any_correct``, ``turns``,
        ``stopped_early``, ``prompt_tokens``, ``completion_tokens`` and ``total_tokens`` over all
        observed turns, ``example_ids``. Per observed turn, [O]: ``verdict``, ``confidence``,
        ``correct``, ``turn_ids``. All int64 but the confidence, which is float64.

    Raises:
        ValueError: see :func:`observed_turns`.
    """
    examples, turns = [], []
    for record in records:
        key = (record["dataset"], record["id"])
        observed = observed_turns(record)
        examples.append({**_example_row(record, observed), "example_ids": example_key(*key)})
        turns += [
            {**_turn_row(turn), "turn_ids": example_key(*key, index)}
            for index, turn in enumerate(observed, start=1)
        ]
    example_columns = (*_example_row({"stopped_early": False}, ()), "example_ids")
    turn_columns = ("verdict", "confidence", "correct", "turn_ids")
    return {
        name: torch.tensor([row[name] for row in rows], dtype=_dtype(name))
        for names, rows in ((example_columns, examples), (turn_columns, turns))
        for name in names
    }


def _dtype(column: str) -> torch.dtype:
    return torch.float64 if column == "confidence" else torch.int64


def _example_row(
    record: Mapping[str, Any], observed: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    labels = [int(turn["correct"]) for turn in observed] or [0]
    final = labels[record["returned_turn"] - 1] if observed else 0
    prompt = sum(turn["prompt_tokens"] for turn in observed)
    completion = sum(turn["completion_tokens"] for turn in observed)
    return {
        "final_correct": final,
        "first_correct": labels[0],
        "any_correct": max(labels),
        "turns": len(observed),
        "stopped_early": int(record["stopped_early"]),
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _turn_row(turn: Mapping[str, Any]) -> dict[str, float]:
    return {
        "verdict": VERDICT_CODES[Verdict(turn["verdict"])],
        "confidence": turn["confidence"],
        "correct": int(turn["correct"]),
    }
