"""All metrics of data sets and their macro averages, as in results files."""

from collections.abc import Mapping, Sequence
from typing import Any

from svr_lightning.analysis.averages import AVERAGES, MATH_5, macro_average
from svr_lightning.analysis.intervals import effective_size, wilson_interval
from svr_lightning.analysis.records import SampleRecord
from svr_lightning.analysis.table import TurnTable, problem_table, turn_tables
from svr_lightning.core.metrics import METRIC_NAMES
from svr_lightning.files import finite


def measure_all(tables: Mapping[str, TurnTable]) -> dict[str, dict[str, Any]]:
    """``{"datasets": {name: values}, "macro": {"all": average, "math": average}}``.

    ``values`` are those of :func:`measure`. For the averages see :func:`macro_average`; ``all`` is
    over every data set here, ``math`` over Math-5 alone.
    """
    datasets = {name: measure(table) for name, table in tables.items()}
    parts = zip(AVERAGES, (tuple(datasets), MATH_5), strict=True)
    return {
        "datasets": datasets,
        "macro": {part: macro_average(datasets, names) for part, names in parts},
    }


def measure(table: TurnTable) -> dict[str, Any]:
    """Every metric that the method has, ``n`` problems and ``accuracy_ci95``; None if undefined.

    The interval is the 95 % Wilson interval for the effective number of independent problems.
    """
    problems = problem_table(table, table.outcome)
    values: dict[str, Any] = {name: finite(value) for name, value in problems.values().items()}
    correct = problems.problems["final_correct"]
    size = effective_size(correct, table.cluster)
    interval = wilson_interval(values["accuracy"] or 0.0, size)
    return {**values, "n": len(table.ids), "accuracy_ci95": interval}


def defined_values(records: Sequence[SampleRecord]) -> dict[str, float]:
    """The metrics of one data set's records, as far as they are defined.

    Raises:
        ValueError: if they are of several data sets, or a turn has no label.
    """
    tables = list(turn_tables(records).values())
    if len(tables) != 1:
        raise ValueError(f"records of one data set are needed; these are of {len(tables)}")
    values = measure(tables[0])
    return {name: values[name] for name in METRIC_NAMES if values.get(name) is not None}


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
