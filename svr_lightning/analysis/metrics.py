"""All metrics of data sets and their macro averages, as in results files."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from svr_lightning.analysis import calibration
from svr_lightning.analysis.averages import AVERAGES, MATH_5, macro_average
from svr_lightning.analysis.intervals import (
    RESAMPLES,
    effective_size,
    level_resamples,
    percentile_interval,
    ratio_resamples,
    resample_counts,
    wilson_interval,
)
from svr_lightning.analysis.records import SampleRecord
from svr_lightning.analysis.table import ProblemTable, TurnTable, problem_table, turn_tables
from svr_lightning.core.metrics import DEFINITIONS, METRIC_NAMES
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


def diagnose(table: TurnTable, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """The metrics of :func:`measure`, and ``ece`` where the method has self-checks.

    Returns:
        Each as ``{"value": x, "ci95": [low, high]}``, None if undefined. Intervals are those of
        ``resamples`` of the clusters.
    """
    problems = problem_table(table, table.outcome)
    counts = resample_counts(table.cluster, resamples, seed)
    drawn = ratio_resamples(problems.ratios(), counts)
    if problems.self_checked:
        for name in (name for name, one in DEFINITIONS.items() if one.terms is None):
            drawn[name] = level_resamples(problems.turns_of(name), counts, calibration.auroc)
        error = calibration.expected_calibration_error
        drawn["ece"] = level_resamples(problems.turns, counts, error)
    return {
        key: {"value": finite(value), "ci95": percentile_interval(drawn[key])}
        for key, value in point_values(problems).items()
    }


def defined_values(records: Sequence[SampleRecord]) -> dict[str, float]:
    """The metrics of :func:`diagnose`, as far as they are defined, of one data set's records.

    Raises:
        ValueError: if they are of several data sets, or a turn has no label.
    """
    tables = list(turn_tables(records).values())
    if len(tables) != 1:
        raise ValueError(f"records of one data set are needed; these are of {len(tables)}")
    values = point_values(problem_table(tables[0], tables[0].outcome))
    return {name: value for name, value in values.items() if not math.isnan(value)}


def point_values(problems: ProblemTable) -> dict[str, float]:
    """Every metric of :func:`diagnose` without its interval; nan if undefined."""
    values = problems.values()
    if problems.self_checked:
        levels = calibration.levels_of(problems.turns["confidence"], problems.turns["correct"])
        values["ece"] = float(calibration.expected_calibration_error(levels))
    return values


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
