"""All metrics of data sets, as in results files, and their averages, as tables show them.

``Datasets`` are the metrics of one evaluation, {data set: {metric: value}}; ``seeds`` are one such
mapping per seed of a method.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from svr_lightning.analysis.intervals import effective_size, wilson_interval
from svr_lightning.analysis.table import TurnTable
from svr_lightning.core.metrics import DEFINITIONS, METRIC_NAMES
from svr_lightning.files import finite

Datasets = Mapping[str, Mapping[str, Any]]
MATH_5 = ("math500", "aime26", "amc23", "olympiadbench", "minerva_math")
"""The data sets of the paper's Math-5 average."""
DISPLAY = {
    "countdown": "Countdown",
    "gsm8k": "GSM8K",
    "math500": "MATH500",
    "aime26": "AIME26",
    "amc23": "AMC23",
    "olympiadbench": "Olymp.",
    "minerva_math": "Minerva",
}
"""The paper's seven data sets in its order, under the names that its tables use."""
AVERAGES = ("all", "math")
"""The averages of a results file, over all data sets and over Math-5, and their names in logs."""


def measure_all(tables: Mapping[str, TurnTable]) -> dict[str, dict[str, Any]]:
    """``{"datasets": {name: values}, "macro": {"all": average, "math": average}}``.

    ``values`` are those of :func:`measure`. For the averages see :func:`macro_average`; ``all`` is
    over every data set here, ``math`` over Math-5 alone.
    """
    datasets = {name: measure(table) for name, table in tables.items()}
    parts = {"all": tuple(datasets), "math": MATH_5}
    return {
        "datasets": datasets,
        "macro": {part: macro_average(datasets, names) for part, names in parts.items()},
    }


def measure(table: TurnTable) -> dict[str, Any]:
    """Every metric that the method has, ``n`` problems and ``accuracy_ci95``; None if undefined.

    The interval is the 95 % Wilson interval for the effective number of independent problems.
    """
    values: dict[str, Any] = {name: finite(value) for name, value in table.values().items()}
    size = effective_size(table.problems["final_correct"], table.cluster)
    interval = wilson_interval(values["accuracy"] or 0.0, size)
    return {**values, "n": len(table.ids), "accuracy_ci95": interval}


def named_metrics(stage: str, results: Mapping[str, Any]) -> dict[str, float]:
    """The defined metrics under the names of a log, such as ``val/gsm8k/accuracy``.

    ``stage`` is what names begin with; ``results`` are those of :func:`measure_all`, or empty.
    """
    datasets: dict[str, dict[str, Any]] = dict(results.get("datasets", {}))
    if len(datasets) > 1:
        macro = results["macro"]
        datasets |= {name: macro[name] for name in AVERAGES if macro[name]["datasets"]}
    return {
        f"{stage}/{dataset}/{metric}": float(values[metric])
        for dataset, values in datasets.items()
        for metric in METRIC_NAMES
        if values.get(metric) is not None
    }


def macro_average(datasets: Datasets, names: Sequence[str]) -> dict[str, Any]:
    """The unweighted mean of each metric over the named data sets that are present.

    Returns:
        Each metric that any data set has: the mean over those that define it, None if none does.
        ``n_datasets``: {metric: over how many data sets it ran}. ``datasets`` and ``missing``:
        which of ``names`` went in and which are not there.
    """
    present = [name for name in names if name in datasets]
    defined = {
        metric: [value for n in present if (value := datasets[n].get(metric)) is not None]
        for metric in METRIC_NAMES
        if not datasets or any(metric in one for one in datasets.values())
    }
    return {
        **{k: math.fsum(v) / len(v) if v else None for k, v in defined.items()},
        "n_datasets": {metric: len(values) for metric, values in defined.items()},
        "datasets": present,
        "missing": [name for name in names if name not in datasets],
    }


# --- names and groups ---------------------------------------------------------------------------


def ordered(datasets: Iterable[str]) -> list[str]:
    """Each data set once: the paper's first, in its order, then the others as they come."""
    places = {name: place for place, name in enumerate(DISPLAY)}
    return sorted(dict.fromkeys(datasets), key=lambda name: places.get(name, len(places)))


def averages(datasets: Iterable[str]) -> dict[str, list[str]]:
    """The paper's averages: over its data sets, and over Math-5 if all five are there.

    Other data sets are in none: they may lie outside of what a policy was trained on.

    Examples:
        >>> averages(["gsm8k", "math500"])
        {'All-2': ['gsm8k', 'math500']}
        >>> averages(["countdown_tiny", "countdown_outside"])
        {}
    """
    names = ordered(datasets)
    found = {}
    if len(names) > 1 and set(names) <= DISPLAY.keys() and set(names) != set(MATH_5):
        found[f"All-{len(names)}"] = names
    if set(MATH_5) <= set(names):
        found["Math-5"] = list(MATH_5)
    return found


def groups(datasets: Iterable[str]) -> dict[str, list[str]]:
    """What summaries are of: the averages, where there are any, else each data set."""
    names = ordered(datasets)
    return averages(names) or columns_of(names)


def columns_of(datasets: Iterable[str]) -> dict[str, list[str]]:
    """The columns of a table: each data set, then the averages."""
    names = ordered(datasets)
    return {DISPLAY.get(name, name): [name] for name in names} | averages(names)


def average(datasets: Datasets, names: Sequence[str]) -> dict[str, Any]:
    """The macro average over ``names``, with a 95 % interval of its accuracy.

    The interval of a mean of independent proportions combines their own intervals (Zou and
    Donner's "MOVER"); for one data set it is that data set's interval. Where one of ``names`` is
    missing every value is None.
    """
    values = macro_average(datasets, names)
    if values["missing"]:
        return dict.fromkeys([*METRIC_NAMES, "accuracy_ci95"])
    rows = [(datasets[name]["accuracy"], *datasets[name]["accuracy_ci95"]) for name in names]
    accuracy, low, high = np.array(rows, dtype=np.float64).T
    below, above = (np.sqrt(np.sum((end - accuracy) ** 2)) / len(names) for end in (low, high))
    mean = values["accuracy"]
    return {**values, "accuracy_ci95": [mean - float(below), mean + float(above)]}


# --- over seeds ---------------------------------------------------------------------------------


def values_of(seeds: Sequence[Datasets], names: Sequence[str], metric: str) -> list[float]:
    """The macro average over ``names`` of each seed that has all of them and defines it."""
    whole = (one for one in seeds if set(names) <= one.keys())
    found = (macro_average(one, names).get(metric) for one in whole)
    return [value for value in found if value is not None]


def text_of(seeds: Sequence[Datasets], names: Sequence[str], metric: str) -> str:
    """The mean over the seeds that define it; of several, with their sample standard deviation.

    Where not all of several data sets have the metric, it says how many do.
    """
    values = values_of(seeds, names, metric)
    form = DEFINITIONS[metric].text
    if not values:
        return form(None)
    text = form(statistics.fmean(values))
    if len(values) > 1:
        text += f" \u00b1 {form(statistics.stdev(values))}"
    whole = (one for one in seeds if set(names) <= one.keys())
    counts = [sum(one[name].get(metric) is not None for name in names) for one in whole]
    least = min(filter(None, counts))
    return text if least == len(names) else f"{text} (of {least} sets)"
