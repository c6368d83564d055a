"""What ``tune`` shows on a terminal, in at most 80 columns."""

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from svr_lightning.display import number, plain
from svr_lightning.evaluation.recalibration import Recalibration
from svr_lightning.evaluation.tuning import Candidate, RiskConstraints, Tuning

_PROMISED = {"max_pse": "PSE", "min_accuracy": "acc.", "max_tokens": "tokens"}
_EFFECTS = ("brier", "brier_reliability", "ece_width", "ece_mass", "smooth_ece", "auroc", "aurc")


def show_tuning(
    tuning: Tuning,
    promises: RiskConstraints,
    confidence: float,
    recalibration: Recalibration | None,
) -> None:
    """Every threshold, then the choice or why there is none."""
    console = Console()
    table = Table(title=f"{tuning.n} problems", title_justify="left", title_style="bold")
    columns = _columns(promises, recalibration)
    for name, _ in columns:
        table.add_column(name, justify="right")
    table.add_column("certified")
    for row in tuning.candidates:
        table.add_row(*(cell(row) for _, cell in columns), _verdict(row))
    console.print(table)
    notes = "Bounds are one-sided, at the level that each threshold was tested at."
    if any(row.level == 0 for row in tuning.candidates):
        notes += (
            " Not tested: the one before failed, and no part of the error was set aside for this "
            "one."
        )
    console.print(Text(notes))
    for line in _conclusion(tuning, promises, confidence):
        console.print(Text(line))


def show_effects(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Calibration on the held half with stated and with mapped confidences."""
    for name, old in before["datasets"].items():
        new = after["datasets"][name]["calibration"]["recorded"]
        table = Table(
            title=Text(f"{plain(name)}: all turns of {old['n']} held-back problems"),
            title_justify="left",
        )
        for column in ("", "stated", "recalibrated"):
            table.add_column(column, justify="right" if column else "left")
        for metric in _EFFECTS:
            pair = (old["calibration"]["recorded"][metric], new[metric])
            table.add_row(metric, *(_number(value["value"], 4) for value in pair))
        Console().print(table)


def _columns(
    promises: RiskConstraints, recalibration: Recalibration | None
) -> list[tuple[str, Any]]:
    columns: list[tuple[str, Any]] = [("gamma", lambda row: number(row.threshold))]
    if recalibration is not None:
        scale: dict[float, float] = {}
        for mapped, stated in recalibration.thresholds.items():
            scale[stated] = max(mapped, scale.get(stated, 0.0))
        columns.append(("mapped", lambda row: number(scale[row.threshold])))
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
        return [
            f"threshold {tuning.choice.threshold:.4g}: {promise} on new problems like these, with "
            f"confidence {confidence:g}"
        ]
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
