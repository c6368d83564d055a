"""The numbers of tables and figures: averages over data sets and seeds, and their formats."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from svr_lightning.core.metrics import SELF_CHECK_METRICS
from svr_lightning.evaluation.intervals import Z_95, mean_variance
from svr_lightning.evaluation.metrics import macro_average
from svr_lightning.evaluation.table import problem_table
from svr_lightning.report.names import averages, ordered
from svr_lightning.report.runs import Method, Run

Numbers = dict[str, Any]
Form = Callable[[float], str]
NONE = "--"
"""Printed where there is no value."""


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


FORMS: dict[str, tuple[str, Form]] = {
    "accuracy": ("Acc.", "{:.3f}".format),
    "first_turn_accuracy": ("First", "{:.3f}".format),
    "any_turn_accuracy": ("Any", "{:.3f}".format),
    "turns": ("Turns", "{:.2f}".format),
    "avg_total_tokens": ("Tok. (\u00d710\u00b3)", lambda value: f"{value / 1000:.2f}"),
    "esr": ("ESR (%)", _percent),
    "pse": ("PSE (%)", _percent),
    "verdict_accuracy": ("V-Acc", "{:.3f}".format),
    "auroc": ("AUROC", "{:.3f}".format),
    "brier": ("Brier", "{:.3f}".format),
    "overconfidence": ("Overconf. (%)", _percent),
}
"""Head and number format of each metric, as the paper prints it."""
_STOPPING = ("esr", "pse")


def average(datasets: Mapping[str, Numbers], names: Sequence[str]) -> Numbers:
    """The macro average over ``names``, with a 95 % interval of its accuracy.

    The interval of a mean of independent proportions combines their own intervals (Zou and
    Donner's "MOVER"); for one data set it is that data set's interval. Where one of ``names`` is
    missing every value is None.
    """
    values = macro_average(datasets, names)
    metrics = [name for name in values if name not in ("n_datasets", "datasets", "missing")]
    if values["missing"]:
        return dict.fromkeys([*metrics, "accuracy_ci95"])
    rows = [(datasets[name]["accuracy"], *datasets[name]["accuracy_ci95"]) for name in names]
    accuracy, low, high = np.array(rows, dtype=np.float64).T
    interval = [
        values["accuracy"] - float(np.sqrt(np.sum((accuracy - low) ** 2))) / len(names),
        values["accuracy"] + float(np.sqrt(np.sum((high - accuracy) ** 2))) / len(names),
    ]
    return {**{name: values[name] for name in metrics}, "accuracy_ci95": interval}


def token_interval(run: Run, names: Sequence[str]) -> list[float]:
    """A 95 % interval of the macro average of tokens per problem (normal approximation)."""
    means, variances = [], []
    for name in names:
        table = problem_table(run.tables[name], run.outcomes[name])
        tokens = table.problems["total_tokens"]
        means.append(tokens.mean())
        variances.append(mean_variance(tokens, table.cluster))
    half = Z_95 * np.sqrt(np.sum(variances)) / len(names)
    return [float(np.mean(means) - half), float(np.mean(means) + half)]


def data_sets(methods: Sequence[Method]) -> list[str]:
    """The data sets of all methods, each once, in the order of tables."""
    return ordered(name for method in methods for run in method.runs for name in run.tables)


def value_of(run: Run, names: Sequence[str], metric: str) -> float | None:
    """One seed's macro average over ``names``; None where it is undefined or not there."""
    if metric in _STOPPING and not run.stops:
        return None
    if metric in SELF_CHECK_METRICS and not run.self_checks:
        return None
    value = average(run.datasets, names).get(metric)
    return None if value is None else float(value)


def values_of(method: Method, names: Sequence[str], metric: str) -> list[float]:
    """One value per seed that has it."""
    found = [value_of(run, names, metric) for run in method.runs]
    return [value for value in found if value is not None]


def mean_of(method: Method, names: Sequence[str], metric: str) -> float | None:
    """The mean over seeds, rounded as it is printed, so that what looks equal is equal."""
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


def headline(methods: Sequence[Method]) -> str:
    """One sentence: accuracy and tokens of the first method, and what they are to be held against.

    That is every turn of the same policy where all were recorded, else the most accurate of the
    other methods.
    """
    method, run = methods[0], methods[0].runs[0]
    label, names = next(iter(averages(list(run.tables)).items()))
    sentence = f"{method.name}: {_cost(method, names)}"
    others = [m for m in methods[1:] if mean_of(m, names, "accuracy") is not None]
    if run.complete and run.stops:
        fixed = average(run.budgets[-1], names)
        sentence += (
            f" instead of {fixed['accuracy']:.3f} at {fixed['avg_total_tokens']:,.0f} with "
            f"{len(run.budgets)} fixed turns"
        )
    elif others:
        best = max(others, key=lambda m: mean_of(m, names, "accuracy") or 0.0)
        sentence += f"; {best.name}: {_cost(best, names)}"
    problems = sum(len(run.tables[name].ids) for name in names)
    return f"{sentence} ({label}, {problems:,} problems)."


def _cost(method: Method, names: Sequence[str]) -> str:
    accuracy = statistics.fmean(values_of(method, names, "accuracy"))
    tokens = statistics.fmean(values_of(method, names, "avg_total_tokens"))
    return f"{accuracy:.3f} accuracy at {tokens:,.0f} tokens per problem"


def vote_counts(votes: Mapping[str, Any]) -> list[int]:
    """The numbers of votes that a votes file has results for."""
    first = next(iter(votes["datasets"].values()))
    return sorted(int(key.removeprefix("maj@")) for key in first if key.startswith("maj@"))


def vote_point(
    votes: Mapping[str, Any], names: Sequence[str], k: int
) -> tuple[float, float] | None:
    """Accuracy and tokens of Maj@k averaged over ``names``; None where one is missing."""
    found = [votes["datasets"].get(name) for name in names]
    if any(values is None for values in found):
        return None
    return (
        statistics.fmean(values[f"maj@{k}"] for values in found),
        statistics.fmean(values[f"tokens@{k}"] for values in found),
    )


def seed_name(run: Run, index: int) -> str:
    """The seed of a run's configuration, or its place among the runs."""
    seed = run.sources[0].config.get("seed_everything")
    return str(seed) if isinstance(seed, int) else f"#{index}"


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
    return f" {' and '.join(names)} {verb} over data sets."


def seed_note(methods: Sequence[Method]) -> str:
    """The meaning of plus-minus, if it occurs."""
    several = [method for method in methods if len(method.runs) > 1]
    return " Of several seeds, mean \u00b1 sample standard deviation." if several else ""


def first_seed_note(method: Method) -> str:
    """Which seed a sweep is of, where there are several."""
    return f" Seed {seed_name(method.runs[0], 1)} alone." if len(method.runs) > 1 else ""
