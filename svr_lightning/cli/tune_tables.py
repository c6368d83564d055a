"""The terminal tables of ``tune``, at most 80 columns wide."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from svr_lightning.display import number, plain, text_table
from svr_lightning.evaluation.recalibration import Recalibration
from svr_lightning.evaluation.thresholds import Candidate, RiskConstraints, Tuning

_PROMISED = {"max_pse": "PSE", "min_accuracy": "acc.", "max_tokens": "tokens"}
_MEASURED = (("accuracy", "accuracy", 3), ("PSE", "pse", 3), ("tokens", "avg_total_tokens", 0))
_EFFECTS = ("brier", "brier_reliability", "ece_width", "ece_mass", "smooth_ece", "auroc", "aurc")


def show_tuning(
    tuning: Tuning,
    promises: RiskConstraints,
    confidence: float,
    recalibration: Recalibration | None,
) -> None:
    """Every threshold, then the choice or why there is none."""
    console = Console()
    columns = _columns(promises)
    names, labels = ["gamma"], [lambda row: number(row.threshold)]
    if recalibration is not None:
        scale: dict[float, float] = {}
        for mapped, stated in recalibration.thresholds.items():
            scale[stated] = max(mapped, scale.get(stated, 0.0))
        names.append("mapped")
        labels.append(lambda row: number(scale[row.threshold]))
    rows = [
        [
            *(_range(cell, group) for cell in labels),
            *(cell(_weakest(group)) for _, cell in columns),
            _verdict(group[0]),
        ]
        for group in _groups(tuning.candidates)
    ]
    size = f"{tuning.n} problems"
    if tuning.clusters < tuning.n:
        size += f", which count as {tuning.clusters} (variants of one problem are one)"
    title = f"calibration: {size}"
    console.print(text_table([*names, *(name for name, _ in columns), "certified"], rows, title))
    notes = (
        "Each bound is one-sided and holds for its own threshold alone, at the level that it was "
        "tested at; only the promise holds for all certified thresholds together."
    )
    if any(row.level == 0 for row in tuning.candidates):
        notes += (
            " Not tested: the one before failed, and no part of the error was set aside for this "
            "one."
        )
    console.print(Text(notes))
    for line in _conclusion(tuning, promises, confidence):
        console.print(Text(line))


def show_measured(measured: Mapping[str, Any]) -> None:
    """What the chosen threshold does on problems that had no part in the choice."""
    console = Console()
    if not measured["datasets"]:
        console.print(
            Text("not measured here: every problem calibrated; report on samples of other problems")
        )
        return
    rows = [
        [f"{plain(name)} ({found['n']})", metric, *_with_interval(found["metrics"][key], digits)]
        for name, found in measured["datasets"].items()
        for metric, key, digits in _MEASURED
    ]
    heads = ("data set (problems)", "metric", "value", "95 %")
    title = "measured on problems that had no part in the choice"
    console.print(text_table(heads, rows, title))


def show_effects(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Calibration on the held half with stated and with mapped confidences."""
    for name, old in before["datasets"].items():
        new = after["datasets"][name]["calibration"]["recorded"]
        pairs = [
            (metric, old["calibration"]["recorded"][metric], new[metric]) for metric in _EFFECTS
        ]
        rows = [[metric, *(_number(one["value"], 4) for one in pair)] for metric, *pair in pairs]
        title = f"{plain(name)}: all turns of {old['n']} held-back problems"
        Console().print(text_table(("", "stated", "recalibrated"), rows, title))


def _groups(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """Neighbouring thresholds that return the same on every problem, as far as is shown."""

    def shown(row: Candidate) -> tuple[Any, ...]:
        return row.esr, row.pse, row.accuracy, row.tokens, _verdict(row)

    return [list(group) for _, group in groupby(candidates, key=shown)]


def _range(cell: Callable[[Candidate], str], group: Sequence[Candidate]) -> str:
    first, last = cell(group[0]), cell(group[-1])
    return first if first == last else f"{last}-{first}"


def _weakest(group: Sequence[Candidate]) -> Candidate:
    """One of a group, with bounds that hold for each of them."""
    if any(row.pse_bound is None for row in group):
        return group[0]
    bounds: dict[str, Any] = {
        "pse_bound": max(row.pse_bound or 0.0 for row in group),
        "accuracy_bound": min(row.accuracy_bound or 0.0 for row in group),
    }
    if group[0].tokens_bound is not None:
        bounds["tokens_bound"] = max(row.tokens_bound or 0.0 for row in group)
    return replace(group[0], **bounds)


def _columns(promises: RiskConstraints) -> list[tuple[str, Callable[[Candidate], str]]]:
    columns: list[tuple[str, Callable[[Candidate], str]]] = []
    columns.append(("PSE", lambda row: _number(row.pse)))
    if promises.max_pse is not None:
        columns.append(("<=", lambda row: _number(row.pse_bound)))
    columns.append(("acc.", lambda row: _number(row.accuracy)))
    if promises.min_accuracy is not None:
        columns.append((">=", lambda row: _number(row.accuracy_bound)))
    columns.append(("tokens", lambda row: _number(row.tokens, 0)))
    if promises.max_tokens is not None:
        columns.append(("<=", lambda row: _number(row.tokens_bound, 0)))
    return columns


def _verdict(row: Candidate) -> str:
    if row.certified:
        return "yes"
    if row.level == 0:
        return "not tested"
    return "no: " + ", ".join(_PROMISED[name] for name in row.broken)


def _conclusion(tuning: Tuning, promises: RiskConstraints, confidence: float) -> list[str]:
    said = {
        "PSE": (promises.max_pse, "at most"),
        "accuracy": (promises.min_accuracy, "at least"),
        "tokens": (promises.max_tokens, "at most"),
    }
    promise = ", ".join(f"{k} {word} {v:g}" for k, (v, word) in said.items() if v is not None)
    if tuning.choice is not None:
        found = [
            f"threshold {tuning.choice.threshold:.4g}: {promise} on new problems like these, with "
            f"confidence {confidence:g}"
        ]
        if tuning.choice.esr == 0:
            found.append(
                f"this never stops: every problem takes all its {tuning.choice.turns:.3g} turns; "
                "promise less, or give more calibration problems, to save any"
            )
        return found
    lines = [f"no threshold can keep the promise: {promise}, with confidence {confidence:g}"]
    if promises.max_pse is not None and tuning.smallest_pse is not None:
        lines.append(
            f"the smallest PSE that these samples would certify is {_up(tuning.smallest_pse)}; "
            "promise it of new samples, or use more problems"
        )
    elif promises.max_pse is not None:
        lines.append("no PSE would help: the other promises fail at every threshold")
    return lines


def _up(value: float) -> str:
    """Four decimals, rounded up: what is shown is still certified."""
    return f"{math.ceil(value * 10_000) / 10_000:.4f}"


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _with_interval(metric: Mapping[str, Any], digits: int) -> tuple[str, str]:
    if metric["value"] is None:
        return "-", ""
    low, high = (_number(bound, digits) for bound in metric["ci95"])
    return _number(metric["value"], digits), f"{low}-{high}"
