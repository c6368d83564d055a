"""Names and averages of tables and figures.

``Datasets`` are the metrics of one evaluation, {data set: {metric: value}}, as in results files;
``seeds`` are one such mapping per seed of a method.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from svr_lightning.analysis.metrics import MATH_5, macro_average
from svr_lightning.core.metrics import DEFINITIONS

Numbers = dict[str, Any]
Datasets = Mapping[str, Numbers]
NONE = "--"
"""Printed where there is no value."""
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
PRIVILEGED = " (privileged)"
"""Suffix of the name of a method whose prompts showed labels."""


def marked(name: str) -> str:
    """A method's name with the mark, which it may have already."""
    return name.removesuffix(PRIVILEGED) + PRIVILEGED


def apart(name: str) -> tuple[str, str]:
    """A name and its suffix, so that a caller can shorten the one and keep the other.

    Examples:
        >>> apart("Oracle (privileged)")
        ('Oracle', ' (privileged)')
    """
    mark = PRIVILEGED if name.endswith(PRIVILEGED) else ""
    return name.removesuffix(mark), mark


def display(dataset: str) -> str:
    """A data set's name in tables and figures."""
    return DISPLAY.get(dataset, dataset)


def ordered(datasets: Iterable[str]) -> list[str]:
    """Each data set once: the paper's first, in its order, then the others as they come."""
    present = list(dict.fromkeys(datasets))
    return [name for name in DISPLAY if name in present] + [
        name for name in present if name not in DISPLAY
    ]


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
    return averages(names) or {display(name): [name] for name in names}


def columns_of(datasets: Iterable[str]) -> dict[str, list[str]]:
    """The columns of a table: each data set, then the averages."""
    names = ordered(datasets)
    return {display(name): [name] for name in names} | averages(names)


def average(datasets: Datasets, names: Sequence[str]) -> Numbers:
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


def _averages(
    seeds: Sequence[Datasets], names: Sequence[str], metric: str
) -> list[tuple[float | None, int]]:
    """The macro average of each seed with all of ``names``, and over how many of them it is."""
    found = [macro_average(datasets, names, [metric]) for datasets in seeds]
    return [
        (one.get(metric), one["n_datasets"].get(metric, 0)) for one in found if not one["missing"]
    ]


def values_of(seeds: Sequence[Datasets], names: Sequence[str], metric: str) -> list[float]:
    """The macro average over ``names`` of each seed that has it."""
    return [value for value, _ in _averages(seeds, names, metric) if value is not None]


def text_of(seeds: Sequence[Datasets], names: Sequence[str], metric: str) -> str:
    """The mean over seeds; of several, with their sample standard deviation.

    Where not all of several data sets have the metric, it says how many do.
    """
    averaged = _averages(seeds, names, metric)
    values = [value for value, _ in averaged if value is not None]
    form = DEFINITIONS[metric].text
    if not values:
        return NONE
    text = form(statistics.fmean(values))
    if len(values) > 1:
        text += f" \u00b1 {form(statistics.stdev(values))}"
    counts = {count for _, count in averaged}
    if counts != {len(names)}:
        text += f" (of {min(counts)} sets)"
    return text
