"""Six trajectories small enough for every metric to be worked out by hand.

T_max = 3, gamma = 0.85; ``*`` marks the returned turn, brackets what an adaptive run never makes.
Prompts are 100, 200 and 300 tokens at turns 1, 2, 3.

    =====  ===========================  ========================  ==========================
    id     turn 1                       turn 2                    turn 3
    =====  ===========================  ========================  ==========================
    a      right C .95   50 tok *       [wrong I .40  50]         [wrong C .90  50]
    b      wrong C .90   60 tok *       [right C .99  60]         [right C .99  60]
    c      wrong C 1.0  512 tok, cut    right C .85   40 tok *    [wrong U .50  40]
    d      wrong I .20   10 tok         wrong U .50   20 tok      right C .99   30 tok *
    e      right C .80    1 tok         wrong I .30    2 tok      wrong U .50    3 tok *
    f      wrong C .80  100 tok         right I .60  100 tok      wrong C .90  100 tok *
    =====  ===========================  ========================  ==========================

a, b and c stop early: c at exactly gamma, and not at its first turn, which is truncated. d and f
open the gate at T_max itself, which is no early stop. e keeps the confidence prior .80 under gamma
and ends at T_max with no gate open.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from svr_lightning.analysis import metrics, results, table, voting
from svr_lightning.analysis.records import SCHEMA_VERSION, SampleRecord
from svr_lightning.analysis.table import TurnTable
from svr_lightning.core.stopping import StopRule, rule_as_config
from tests.commands import write_jsonl

Rows = Sequence[dict[str, Any]]
"""Sample records as JSON has them."""
WORDS = {"C": "CORRECT", "I": "INCORRECT", "U": "UNSURE"}


def turn(
    index: int,
    correct: bool | None,
    verdict: str | None,
    confidence: float | None,
    tokens: int,
    cut: bool = False,
) -> dict[str, Any]:
    """One turn of a record; ``verdict`` is C, I or U, or None without a self-check."""
    return {
        "turn": index,
        "text": f"text {index}",
        "answer": "42",
        "answer_group": 1,
        "correct": correct,
        "verdict": verdict and WORDS[verdict],
        "confidence": confidence,
        "truncated": cut,
        "prompt_tokens": 100 * index,
        "completion_tokens": tokens,
        "finish_reason": "length" if cut else "stop",
    }


def record(
    name: str, *turns: tuple[Any, ...], dataset: str = "toy", early: bool = False
) -> dict[str, Any]:
    """A record that returns its last turn; each turn is (correct, verdict, confidence, tokens)."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dataset": dataset,
        "id": name,
        "task": "gsm8k",
        "question": "6 * 7 = ?",
        "reference": "42",
        "payload": {},
        "returned_turn": len(turns),
        "stopped_early": early,
        "turns": [turn(index, *values) for index, values in enumerate(turns, start=1)],
    }


def first_turns(labels: Sequence[int], *datasets: str) -> list[dict[str, Any]]:
    """Records of each data set that stop early, at a first turn that is right or wrong."""
    return [
        record(str(i), (bool(y), "C", 0.9, 5), dataset=name, early=True)
        for name in datasets or ("toy",)
        for i, y in enumerate(labels)
    ]


def failed(name: str, dataset: str = "toy") -> dict[str, Any]:
    """A record of a problem that could not be run."""
    return {**record(name, dataset=dataset), "error": "the problem does not fit"}


def uncensored() -> list[dict[str, Any]]:
    """The table with all three turns of each, as a run without stopping records them."""
    return [
        record("a", (True, "C", 0.95, 50), (False, "I", 0.4, 50), (False, "C", 0.9, 50)),
        record("b", (False, "C", 0.9, 60), (True, "C", 0.99, 60), (True, "C", 0.99, 60)),
        record("c", (False, "C", 1.0, 512, True), (True, "C", 0.85, 40), (False, "U", 0.5, 40)),
        record("d", (False, "I", 0.2, 10), (False, "U", 0.5, 20), (True, "C", 0.99, 30)),
        record("e", (True, "C", 0.8, 1), (False, "I", 0.3, 2), (False, "U", 0.5, 3)),
        record("f", (False, "C", 0.8, 100), (True, "I", 0.6, 100), (False, "C", 0.9, 100)),
    ]


def adaptive(dataset: str = "toy") -> list[dict[str, Any]]:
    """The table as adaptive inference records it, cut by hand."""
    returned = {"a": 1, "b": 1, "c": 2, "d": 3, "e": 3, "f": 3}
    return [
        {
            **row,
            "dataset": dataset,
            "turns": row["turns"][: returned[row["id"]]],
            "returned_turn": returned[row["id"]],
            "stopped_early": returned[row["id"]] < 3,
            "accepted": row["id"] != "e",
        }
        for row in uncensored()
    ]


def records_of(rows: Rows) -> list[SampleRecord]:
    """The records that the rows are."""
    return [SampleRecord.from_json(row) for row in rows]


def vote(rows: Rows, *arguments: Any, **options: Any) -> dict[str, Any]:
    """What voting makes of recorded fresh turns."""
    tables = turn_tables(rows)
    return {name: voting.vote(one, *arguments, **options) for name, one in tables.items()}


def turn_tables(rows: Rows) -> dict[str, TurnTable]:
    """The tables of their turns, by data set."""
    return table.turn_tables(records_of(rows))


def summarize(rows: Rows) -> dict[str, Any]:
    """What a results file says of the rows."""
    return metrics.measure_all(turn_tables(rows))


def write_results(
    folder: Path, rows: Rows, config: dict[str, Any], versions: dict[str, Any]
) -> dict[str, Any]:
    """Leave the rows as a samples file, and its results."""
    return results.write_results(folder, records_of(rows), config, versions)


# Observed turns: 1 + 1 + 2 + 3 + 3 + 3 = 13.
EXPECTED = {
    # Returned answers: a right, b wrong, c right, d right, e wrong, f wrong.
    "accuracy": 3 / 6,
    # First answers: a and e right.
    "first_turn_accuracy": 2 / 6,
    # Only b has no right answer up to its returned turn.
    "any_turn_accuracy": 5 / 6,
    "turns": 13 / 6,
    # a 100, b 100, c 100 + 200, d, e and f 100 + 200 + 300 each.
    "avg_prompt_tokens": 2300 / 6,
    # a 50, b 60, c 512 + 40, d 10 + 20 + 30, e 1 + 2 + 3, f 300.
    "avg_completion_tokens": 1028 / 6,
    "avg_total_tokens": 3328 / 6,
    # a, b, c of six; d and f stop at T_max = 3.
    "esr": 3 / 6,
    # Of all six, only b stops early with a wrong answer; f is wrong at T_max.
    "pse": 1 / 6,
    # All but e, which says UNSURE at T_max.
    "accepted": 5 / 6,
    # Of a, b, c, d and f the answers of a, c and d are right.
    "accepted_accuracy": 3 / 5,
    # d2 and e3 are UNSURE, 13 - 2 = 11 commit. Right: a1, c2, d1, d3, e1, e2.
    # Wrong: b1, c1 (truncated turns count), f1, f2 (says INCORRECT of a right answer), f3.
    "verdict_accuracy": 6 / 11,
    # Right turns .95 (a1) .85 (c2) .99 (d3) .80 (e1) .60 (f2);
    # wrong turns .90 (b1) 1.0 (c1) .20 .50 (d) .30 .50 (e) .80 .90 (f).
    # Wrong ones below .95: 7; .85: 5; .99: 7; .80: 4 and one tie; .60: 4. Sum 27.5 of 5 * 8.
    "auroc": 27.5 / 40,
    # Right first turns .95 (a) .80 (e), wrong ones .90 1.0 .20 .80: 3 and one, with one tie.
    "auroc_first_turn": 4.5 / 8,
    # Right returned turns .95 (a) .85 (c) .99 (d), wrong ones .90 (b) .50 (e) .90 (f): 3, 1, 3.
    "auroc_returned": 7 / 9,
    # By confidence d .99 and a .95 right, b and f .90 wrong, c .85 right, e .50 wrong. Wrong among
    # the 1 to 6 most confident: 0, 0, 1/3, 2/4, 2/5, 3/6.
    "aurc": (1 / 3 + 1 / 2 + 2 / 5 + 1 / 2) / 6,
    # a .05^2 = .0025; b .81; c 1 + .0225; d .04 + .25 + .0001; e .04 + .09 + .25;
    # f .64 + .16 + .81: together 4.1151.
    "brier": 4.1151 / 13,
    # CORRECT of a wrong answer: b1, c1, f1, f3.
    "overconfidence": 4 / 13,
    "n": 6,
}


def same(values: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether metrics agree to the last few digits, nan with nan."""
    return values.keys() == expected.keys() and all(
        (math.isnan(values[k]) and math.isnan(v)) or math.isclose(values[k], v, rel_tol=1e-14)
        for k, v in expected.items()
    )


def save(
    folder: Path, records: list[dict[str, Any]], settings: dict[str, Any] | None = None
) -> Path:
    """Leave records as the samples of an evaluation's folder, and settings as its results."""
    folder.mkdir(parents=True, exist_ok=True)
    write_jsonl(folder / "samples.jsonl", records)
    if settings is not None:
        content = {"config": settings, "versions": {"torch": "2.13"}}
        (folder / "results.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def settings_of(rule: StopRule, max_turns: int, *, fresh: bool = False) -> dict[str, Any]:
    """What a results file says of an evaluation with a stopping rule."""
    evaluation = {"stop": rule_as_config(rule), "fresh_turns": fresh}
    return {"model": {"evaluation": evaluation}, "protocol": {"max_turns": max_turns}}


def pool(name: str, answers: str, right: str = "a", dataset: str = "toy") -> dict[str, Any]:
    """Fresh turns whose answers are letters, ``.`` for one that cannot be read."""
    turns = [
        {
            **turn(place, letter == right, None, None, 10 * place),
            **{"answer": None if letter == "." else letter, "prompt_tokens": 100},
            "answer_group": ".abc".index(letter),
        }
        for place, letter in enumerate(answers, start=1)
    ]
    return {**record(name, dataset=dataset), "returned_turn": len(turns), "turns": turns}
