"""Names and averages of tables and figures.

``Datasets`` are the metrics of one evaluation, {data set: {metric: value}}, as in results files;
``seeds`` are one such mapping per seed of a method.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from svr_lightning.analysis.averages import Datasets, macro_average
from svr_lightning.core.metrics import DEFINITIONS

Numbers = dict[str, Any]
NONE = "--"
"""Printed where there is no value."""
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
