"""Measured values as tables print them: means over seeds, their forms, and notes on them."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from svr_lightning.report.figure_data import average
from svr_lightning.report.runs import Method, Run
from svr_lightning.report.table import NONE

Form = Callable[[float], str]

FORMS: dict[str, tuple[str, Form]] = {
    "accuracy": ("Acc.", "{:.3f}".format),
    "first_turn_accuracy": ("First", "{:.3f}".format),
    "any_turn_accuracy": ("Any", "{:.3f}".format),
    "turns": ("Turns", "{:.2f}".format),
    "avg_total_tokens": ("Tok. (\u00d710\u00b3)", lambda value: f"{value / 1000:.2f}"),
    "esr": ("ESR (%)", lambda value: f"{100 * value:.1f}"),
    "pse": ("PSE (%)", lambda value: f"{100 * value:.1f}"),
    "verdict_accuracy": ("V-Acc", "{:.3f}".format),
    "auroc": ("AUROC", "{:.3f}".format),
    "brier": ("Brier", "{:.3f}".format),
    "overconfidence": ("Overconf. (%)", lambda value: f"{100 * value:.1f}"),
}
"""Head and number format of each metric, as the paper prints it."""

_STOPPING = ("esr", "pse")
_CHECKING = ("verdict_accuracy", "auroc", "brier", "overconfidence")


def seed_name(run: Run, index: int) -> str:
    """The seed of a run's configuration, or its place among the runs."""
    seed = run.sources[0].config.get("seed_everything")
    return str(seed) if isinstance(seed, int) else f"#{index}"


def value_of(run: Run, names: Sequence[str], metric: str) -> float | None:
    """One seed's macro average over ``names``; None where it is undefined or not there."""
    if (metric in _STOPPING and not run.stops) or (metric in _CHECKING and not run.self_checks):
        return None
    value = average(run.datasets, names)[metric]
    return None if value is None else float(value)


def values_of(method: Method, names: Sequence[str], metric: str) -> list[float]:
    """One per seed that has it."""
    found = [value_of(run, names, metric) for run in method.runs]
    return [value for value in found if value is not None]


def mean_of(method: Method, names: Sequence[str], metric: str) -> float | None:
    """Rounded as it is printed, so that what looks equal is equal."""
    values = values_of(method, names, metric)
    return round(statistics.fmean(values), 3) if values else None


def text_of(method: Method, names: Sequence[str], metric: str) -> str:
    """The mean over seeds; of several, with their sample standard deviation."""
    values = values_of(method, names, metric)
    if not values:
        return NONE
    text = printed(metric, statistics.fmean(values))
    if len(values) < 2:
        return text
    return f"{text} \u00b1 {printed(metric, statistics.stdev(values))}"


def printed(metric: str, value: float | None) -> str:
    """A value in its metric's form."""
    return NONE if value is None else FORMS[metric][1](value)


def rule_note(run: Run) -> str:
    """The stopping rule in words."""
    if not run.stops:
        return "one turn" if run.max_turns == 1 else f"{run.max_turns} fixed turns"
    signal = {"joint": "", "verdict": "verdict-only, ", "confidence": "confidence-only, "}
    rule = f"{signal[run.rule.gate]}\u03b3 = {run.rule.threshold:.2f}"
    return f"{rule} and at most {run.max_turns} turns"


def average_note(columns: Mapping[str, Sequence[str]]) -> str:
    """Which columns are averages."""
    names = [name for name, sets in columns.items() if len(sets) > 1]
    if not names:
        return ""
    verb = "is the unweighted average" if len(names) == 1 else "are unweighted averages"
    return f" {joined(names)} {verb} over data sets."


def seed_note(methods: Sequence[Method]) -> str:
    """What the sign of plus and minus means, where it occurs."""
    several = [method for method in methods if len(method.runs) > 1]
    return " Of several seeds, mean \u00b1 sample standard deviation." if several else ""


def first_seed_note(method: Method) -> str:
    """Which seed a sweep is of, where there are several."""
    return f" Seed {seed_name(method.runs[0], 1)} alone." if len(method.runs) > 1 else ""


def joined(names: Sequence[str] | Mapping[str, Any]) -> str:
    """Names as a phrase."""
    return " and ".join(names)
