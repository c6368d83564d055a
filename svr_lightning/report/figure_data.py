"""The numbers behind the figures that are drawn from recorded turns; each result is plain JSON.

Turn-level figures pool the problems of all data sets; averages are macro averages, as in tables.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.evaluation import sweep
from svr_lightning.evaluation.calibration import (
    area_under_risk_coverage,
    expected_calibration_error,
    levels_of,
    reliability_bins,
)
from svr_lightning.evaluation.results import Z_95, macro_average, wilson_interval
from svr_lightning.evaluation.table import Outcome, TurnTable
from svr_lightning.metrics import METRIC_NAMES

Tables = Mapping[str, TurnTable]
Outcomes = Mapping[str, Outcome]
Numbers = dict[str, Any]


def average(datasets: Mapping[str, Numbers], names: Sequence[str]) -> Numbers:
    """The macro average over ``names``, with a 95 % interval of its accuracy.

    The interval of a mean of independent proportions is put together from each one's Wilson
    interval (Zou and Donner's "MOVER"); of one data set it is that interval itself. Where one of
    ``names`` is missing every value is None.
    """
    values = macro_average(datasets, names)
    if values["missing"]:
        return dict.fromkeys([*METRIC_NAMES, "accuracy_ci95"])
    low: list[float] = []
    high: list[float] = []
    for name in names:
        accuracy, interval = datasets[name]["accuracy"], datasets[name]["accuracy_ci95"]
        low.append(accuracy - interval[0])
        high.append(interval[1] - accuracy)
    interval = [
        values["accuracy"] - float(np.sqrt(np.sum(np.square(low)))) / len(names),
        values["accuracy"] + float(np.sqrt(np.sum(np.square(high)))) / len(names),
    ]
    return {**{name: values[name] for name in METRIC_NAMES}, "accuracy_ci95": interval}


def token_interval(tables: Tables, outcomes: Outcomes, names: Sequence[str]) -> list[float]:
    """A 95 % interval of the macro average of tokens per problem (normal approximation)."""
    means, variances = [], []
    for name in names:
        table = tables[name]
        seen = table.observed(outcomes[name])
        tokens = ((table.prompt_tokens + table.completion_tokens) * seen).sum(1)
        means.append(tokens.mean())
        variances.append(tokens.var(ddof=1) / len(tokens) if len(tokens) > 1 else 0.0)
    half = Z_95 * np.sqrt(np.sum(variances)) / len(names)
    return [float(np.mean(means) - half), float(np.mean(means) + half)]


def pooled(tables: Tables, outcomes: Outcomes) -> tuple[TurnTable, Outcome]:
    """All problems of all data sets in one table, and their outcomes."""
    width = max(table.correct.shape[1] for table in tables.values())
    columns = {}
    for name in ("correct", "truncated", "verdict", "confidence", "verdict_probability"):
        columns[name] = _stack([getattr(table, name) for table in tables.values()], width)
    for name in ("repeats", "prompt_tokens", "completion_tokens"):
        columns[name] = _stack([getattr(table, name) for table in tables.values()], width)
    chosen = [outcomes[name] for name in tables]
    outcome = Outcome(
        returned=np.concatenate([one.returned for one in chosen]),
        observed=np.concatenate([one.observed for one in chosen]),
        stopped_early=np.concatenate([one.stopped_early for one in chosen]),
    )
    ids = tuple(f"{name}/{one}" for name, table in tables.items() for one in table.ids)
    length = np.concatenate([table.length for table in tables.values()])
    table = TurnTable(
        dataset=" + ".join(tables), ids=ids, length=length, recorded=outcome, **columns
    )
    return table, outcome


def _stack(parts: Sequence[NDArray[Any]], width: int) -> NDArray[Any]:
    padded = []
    for part in parts:
        wide = np.zeros((len(part), width), dtype=part.dtype)
        wide[:, : part.shape[1]] = part
        padded.append(wide)
    return np.concatenate(padded)


def reliability(
    confidence: NDArray[np.float64],
    correct: NDArray[np.bool_],
    verdict: NDArray[np.int64],
    bins: int = 10,
) -> Numbers:
    """Stated confidence against the share that is right, in bins of equal width.

    Args:
        confidence: [M] in [0, 1]. A bin holds its lower bound; the last one holds 1 as well.
        correct: [M]
        verdict: [M] 1, 0, -1 for CORRECT, INCORRECT, UNSURE.
        bins: how many.

    Returns:
        ``bins``: of each its bounds, ``n``, and, where n > 0, mean ``confidence``, ``accuracy`` and
        its Wilson interval, and how many turns have each verdict; ``n``; ``ece``, the mean distance
        of confidence and accuracy, weighted by n.
    """
    levels = levels_of(confidence, correct)
    place = np.searchsorted(np.arange(1, bins) / bins, confidence, side="right")
    rows: list[Numbers] = []
    for number, row in enumerate(reliability_bins(levels, bins)):
        accuracy = row["accuracy"]
        verdicts = verdict[place == number]
        rows.append(
            {
                **row,
                "accuracy_ci95": (
                    None if accuracy is None else wilson_interval(accuracy, int(row["n"] or 0))
                ),
                "verdicts": {
                    name: int((verdicts == code).sum())
                    for name, code in (("CORRECT", 1), ("INCORRECT", 0), ("UNSURE", -1))
                },
            }
        )
    ece = float(expected_calibration_error(levels, bins)) if len(confidence) else None
    return {"n": len(confidence), "ece": ece, "bins": rows}


def reliability_of(table: TurnTable, outcome: Outcome) -> Numbers:
    """Reliability on all observed turns, and on those alone whose gate ended a trajectory."""
    seen = table.observed(outcome)
    stopped = np.zeros_like(seen)
    rows = np.flatnonzero(outcome.stopped_early)
    stopped[rows, outcome.returned[rows] - 1] = True
    return {
        name: reliability(table.confidence[mask], table.correct[mask], table.verdict[mask])
        for name, mask in (("observed", seen), ("stopped", stopped))
    }


def risk_coverage(table: TurnTable, outcome: Outcome) -> Numbers:
    """How wrong the returned answers are where only the more confident ones are kept.

    Answers of equal confidence are kept or dropped together; the area counts them in the mean over
    all their orders. A problem that could not be run has no confidence and comes last.

    Returns:
        ``coverage`` and ``risk`` after each level of confidence; ``aurc``, the mean risk over all
        coverages; the same with every right answer first (``oracle_aurc``, and ``oracle``, its
        curve); ``operating``, the coverage and risk of the answers that the rule stopped at.
    """
    final = table.at(table.correct, outcome.returned).astype(bool)
    score = np.where(outcome.returned > 0, table.at(table.confidence, outcome.returned), -1.0)
    wrong = ~final
    stopped = int(outcome.stopped_early.sum())
    coverage, risk, area = _risk_curve(score, wrong)
    _, _, best = _risk_curve(final.astype(float), wrong)
    right = 1 - float(wrong.mean())
    kept = np.linspace(right, 1, 50) if right < 1 else np.array([1.0])
    return {
        "n": len(wrong),
        "coverage": coverage,
        "risk": risk,
        "aurc": area,
        "oracle_aurc": best,
        "oracle": {
            "coverage": [0.0, *kept.tolist()],
            "risk": [0.0, *(np.maximum(kept - right, 0) / np.maximum(kept, 1e-9)).tolist()],
        },
        "operating": {
            "coverage": stopped / len(wrong),
            "risk": int((outcome.stopped_early & wrong).sum()) / stopped if stopped else None,
        },
    }


def _risk_curve(
    score: NDArray[np.float64], wrong: NDArray[np.bool_]
) -> tuple[list[float], list[float], float]:
    """Coverage and risk after each level of ``score``, from the highest; and the mean risk."""
    levels = levels_of(score, ~wrong)
    kept = np.cumsum(levels.total[::-1])
    errors = np.cumsum((levels.total - levels.right)[::-1])
    area = float(area_under_risk_coverage(levels))
    return (kept / len(score)).tolist(), (errors / kept).tolist(), area


def transitions(table: TurnTable) -> Numbers:
    """What becomes of answers from each turn to the next, over all recorded turns.

    Returns:
        ``boundaries``: for turns k and k + 1 the counts of ``right_right``, ``right_wrong``,
        ``wrong_right`` and ``wrong_wrong``, of problems that have both turns; ``states``: for each
        turn the shares of all problems whose answer by then is right and was at turn 1 (``kept``),
        is right and was not (``fixed``), is wrong and was right before (``broken``) or never was
        right (``never``). A trajectory that has ended keeps its last answer.
    """
    width = table.correct.shape[1]
    boundaries = [
        {
            "turns": [turn, turn + 1],
            "wrong_wrong": counts[0][0],
            "wrong_right": counts[0][1],
            "right_wrong": counts[1][0],
            "right_right": counts[1][1],
        }
        for turn, counts in enumerate(sweep.transitions(table), start=1)
    ]
    states = []
    first = table.at(table.correct, np.minimum(table.length, 1)).astype(bool)
    ever = np.zeros(len(table.ids), dtype=bool)
    for turn in range(1, width + 1):
        now = table.at(table.correct, np.minimum(table.length, turn)).astype(bool)
        states.append(
            {
                "turn": turn,
                "kept": float((now & first).mean()),
                "fixed": float((now & ~first).mean()),
                "broken": float((~now & ever).mean()),
                "never": float((~now & ~ever).mean()),
            }
        )
        ever |= now
    return {"n": len(table.ids), "boundaries": boundaries, "states": states}


def stop_times(table: TurnTable, outcome: Outcome) -> Numbers:
    """How many problems end at each turn, early or not, right or wrong."""
    final = table.at(table.correct, outcome.returned).astype(bool)
    rows = []
    for turn in range(1, int(outcome.observed.max(initial=0)) + 1):
        here = outcome.observed == turn
        early, late = here & outcome.stopped_early, here & ~outcome.stopped_early
        rows.append(
            {
                "turn": turn,
                "early_right": int((early & final).sum()),
                "early_wrong": int((early & ~final).sum()),
                "last_right": int((late & final).sum()),
                "last_wrong": int((late & ~final).sum()),
            }
        )
    n = len(table.ids)
    return {
        "n": n,
        "not_run": int((outcome.observed == 0).sum()),
        "esr": float(outcome.stopped_early.mean()),
        "pse": float((outcome.stopped_early & ~final).mean()),
        "turns": rows,
    }


def confidence_by_turn(table: TurnTable) -> Numbers:
    """Quartiles of the stated confidence at each recorded turn, of right and of wrong answers."""
    rows = []
    for turn in range(table.correct.shape[1]):
        there = table.length > turn
        row: Numbers = {"turn": turn + 1}
        for name, label in (("right", True), ("wrong", False)):
            values = table.confidence[there & (table.correct[:, turn] == label), turn]
            quartiles = np.quantile(values, [0.25, 0.5, 0.75]).tolist() if len(values) else None
            row[name] = {"n": len(values), "quartiles": quartiles}
        rows.append(row)
    return {"turns": rows}
