"""All metrics of data sets, as in results files, and their summaries, as tables show them.

``Datasets`` are the metrics of one evaluation, {data set: {metric: value}}. :func:`summarize` makes
of one such mapping per seed what every table and figure shows.
"""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    given = dict.fromkeys(datasets)
    return [name for name in dict.fromkeys([*DISPLAY, *given]) if name in given]


def display_name(dataset: str) -> str:
    """What tables call a data set: a name of theirs is in quotes where it means another one.

    Examples:
        >>> display_name("gsm8k"), display_name("GSM8K"), display_name("mine")
        ('GSM8K', "'GSM8K'", 'mine')
    """
    taken = dataset in DISPLAY.values() or dataset.startswith(("All-", "Math-5"))
    return DISPLAY.get(dataset, repr(dataset) if taken else dataset)


def columns_of(datasets: Iterable[str]) -> dict[str, list[str]]:
    """The parts of results: each data set, then the paper's averages.

    They are over its data sets, and over Math-5 if all five are there. Other data sets are in none:
    they may lie outside of what a policy was trained on.

    Examples:
        >>> columns_of(["gsm8k", "math500"])
        {'GSM8K': ['gsm8k'], 'MATH500': ['math500'], 'All-2': ['gsm8k', 'math500']}
        >>> columns_of(["countdown_tiny", "gsm8k"])
        {'GSM8K': ['gsm8k'], 'countdown_tiny': ['countdown_tiny']}
    """
    names = ordered(datasets)
    parts = {display_name(name): [name] for name in names}
    if len(names) > 1 and set(names) <= DISPLAY.keys() and set(names) != set(MATH_5):
        parts[f"All-{len(names)}"] = names
    if set(MATH_5) <= set(names):
        parts["Math-5"] = list(MATH_5)
    return parts


def averages(datasets: Iterable[str]) -> dict[str, list[str]]:
    """The parts of several data sets."""
    return {part: names for part, names in columns_of(datasets).items() if len(names) > 1}


def groups(datasets: Collection[str]) -> dict[str, list[str]]:
    """What summaries are of: the averages, and each data set that is in none of them."""
    found = averages(datasets)
    inside = set().union(*found.values())
    parts = columns_of(datasets).items()
    return found | {part: names for part, names in parts if names[0] not in inside}


# --- summaries ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Value:
    """One metric on one part, a data set or an average, over the seeds of a method."""

    metric: str
    seeds: tuple[float, ...] = ()
    """The value of each seed that has all data sets of the part and defines the metric."""
    interval: Sequence[float] | None = None
    """95 % over problems, of accuracy; None for several seeds."""
    note: str = ""
    """Where not all data sets of the part define the metric: how many do."""

    @property
    def mean(self) -> float | None:
        """Over seeds; None if the metric is undefined."""
        return statistics.fmean(self.seeds) if self.seeds else None

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over seeds; None for fewer than two."""
        return statistics.stdev(self.seeds) if len(self.seeds) > 1 else None

    @property
    def text(self) -> str:
        """As tables show it: the mean, and of several seeds their standard deviation."""
        form = DEFINITIONS[self.metric].text
        text = form(self.mean)
        if self.deviation is not None:
            text += f" \u00b1 {form(self.deviation)}"
        return text + self.note


@dataclass(frozen=True)
class Summary:
    """Every metric of a method, or of one of its operating points, on every part."""

    values: Mapping[str, Mapping[str, Value]]
    """{part: {metric: value}}, the data sets first and then the averages."""

    def __call__(self, part: str, metric: str) -> Value:
        """A value; without seeds where the method lacks the part or the metric."""
        return self.values.get(part, {}).get(metric, Value(metric=metric))


def summarize(seeds: Sequence[Datasets]) -> Summary:
    """The mean, deviation and interval of each metric on each data set and average.

    Args:
        seeds: the metrics of each seed of a method.
    """
    names = ordered(name for datasets in seeds for name in datasets)
    return Summary({part: _values(seeds, inside) for part, inside in columns_of(names).items()})


def _values(seeds: Sequence[Datasets], names: Sequence[str]) -> dict[str, Value]:
    """Every metric on the average of some data sets, over the seeds that have all of them."""
    whole = [datasets for datasets in seeds if set(names) <= datasets.keys()]
    macros = [macro_average(datasets, names) for datasets in whole]
    values = {}
    for metric in METRIC_NAMES:
        defined = [macro for macro in macros if macro.get(metric) is not None]
        sets = min((macro["n_datasets"][metric] for macro in defined), default=len(names))
        values[metric] = Value(
            metric=metric,
            seeds=tuple(macro[metric] for macro in defined),
            interval=_interval(whole[0], names)
            if metric == "accuracy" and len(whole) == 1
            else None,
            note=f" (of {sets} sets)" if sets < len(names) else "",
        )
    return values


def _interval(datasets: Datasets, names: Sequence[str]) -> list[float] | None:
    """The 95 % interval of an average accuracy.

    That of a mean of independent proportions combines their own intervals (Zou and Donner's
    "MOVER"); for one data set it is that data set's interval. None if one of them has none.
    """
    if any(datasets[name].get("accuracy_ci95") is None for name in names):
        return None
    rows = [(datasets[name]["accuracy"], *datasets[name]["accuracy_ci95"]) for name in names]
    accuracy, low, high = np.array(rows, dtype=np.float64).T
    below = np.sqrt(np.sum((low - accuracy) ** 2)) / len(names)
    above = np.sqrt(np.sum((high - accuracy) ** 2)) / len(names)
    mean = math.fsum(accuracy) / len(names)
    return [mean - float(below), mean + float(above)]
