"""The two files that every evaluation leaves: ``samples.jsonl`` and ``results.json``.

Every number of the second is computed from the first, by the metrics that validation logs.
"""

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import svr_lightning
from svr_lightning.core.types import Verdict
from svr_lightning.evaluation.schema import (
    check_fields,
    is_count,
    is_flag,
    is_list,
    is_share,
    is_text,
    read_lines,
)
from svr_lightning.files import finite, to_json, write_aside, write_file
from svr_lightning.metrics import METRIC_NAMES, TrajectoryMetrics

SAMPLES = "samples.jsonl"
RESULTS = "results.json"
MATH_5 = ("math500", "aime26", "amc23", "olympiadbench", "minerva_math")
"""The data sets of the paper's Math-5 average."""

Z_95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: half the width of a 95 % interval, in sigmas."""


def summarize(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All metrics of sample records, per data set and macro-averaged.

    A record that repeats another's data set and id is padding and counts once.

    Returns:
        ``{"datasets": {name: values}, "macro": {"all": average, "math": average}}``, as JSON has
        it: what is undefined is None. ``values`` holds each of ``METRIC_NAMES``, ``n`` and
        ``accuracy_ci95``, the 95 % Wilson interval [low, high]. For the averages see
        :func:`macro_average`; ``all`` is over every data set here, ``math`` over Math-5 alone.

    Raises:
        ValueError: naming a record without labels, or whose returned turn is not there.
    """
    by_dataset: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        by_dataset.setdefault(record["dataset"], []).append(record)
    datasets = {name: _dataset_values(rows) for name, rows in by_dataset.items()}
    macro = {
        "all": macro_average(datasets, tuple(datasets)),
        "math": macro_average(datasets, MATH_5),
    }
    return {"datasets": datasets, "macro": macro}


def named_metrics(stage: str, results: Mapping[str, Any]) -> dict[str, float]:
    """The defined metrics under the names of a log, such as ``val/gsm8k/accuracy``.

    Args:
        stage: what names begin with.
        results: of :func:`summarize`, or empty.
    """
    datasets: dict[str, dict[str, Any]] = dict(results.get("datasets", {}))
    if len(datasets) > 1:
        macro = results["macro"]
        datasets |= {name: macro[name] for name in ("all", "math") if macro[name]["datasets"]}
    return {
        f"{stage}/{dataset}/{metric}": float(metrics[metric])
        for dataset, metrics in datasets.items()
        for metric in METRIC_NAMES
        if metrics[metric] is not None
    }


def macro_average(
    datasets: Mapping[str, Mapping[str, Any]],
    names: Sequence[str],
    metrics: Sequence[str] = METRIC_NAMES,
) -> dict[str, Any]:
    """The unweighted mean of each metric over the named data sets that are there.

    Args:
        datasets: values by data set, None where undefined.
        names: what the average is meant to cover.
        metrics: what to average.

    Returns:
        Each of ``metrics``: the mean over the data sets that define it, None where none
        does. ``n_datasets``: {metric: over how many data sets it ran}. ``datasets`` and
        ``missing``: which of ``names`` went in and which are not there.
    """
    present = [name for name in names if name in datasets]
    defined = {
        metric: [value for name in present if (value := datasets[name][metric]) is not None]
        for metric in metrics
    }
    return {
        **{k: math.fsum(v) / len(v) if v else None for k, v in defined.items()},
        "n_datasets": {metric: len(values) for metric, values in defined.items()},
        "datasets": present,
        "missing": [name for name in names if name not in datasets],
    }


def wilson_interval(proportion: float, n: int) -> list[float] | None:
    """The 95 % Wilson score interval of a proportion of n trials; None without trials.

    Example:
        >>> [round(bound, 3) for bound in wilson_interval(0.8, 10)]
        [0.49, 0.943]
    """
    if n == 0:
        return None
    share = Z_95**2 / n
    centre = (proportion + share / 2) / (1 + share)
    half = math.sqrt(share * (proportion * (1 - proportion) + share / 4)) / (1 + share)
    low = 0.0 if proportion == 0 else max(centre - half, 0.0)
    high = 1.0 if proportion == 1 else min(centre + half, 1.0)
    return [low, high]


def write_results(
    folder: str | os.PathLike[str],
    records: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    versions: Mapping[str, Any],
) -> dict[str, Any]:
    """Write ``samples.jsonl``, one line per problem, then ``results.json``.

    Each file is whole or absent, and a results file never stands beside other samples than its
    own: the old one goes before the new samples come. Samples are written first, so that they
    are kept even where they cannot be summarized. Of records with equal data set and id the
    first is written. What is not finite becomes null; what JSON does not know becomes a string.

    Args:
        folder: made if need be.
        records: sample records.
        config: what the run was configured with, stored as it is.
        versions: see :func:`package_versions`.

    Returns:
        What ``results.json`` holds.

    Raises:
        ValueError: see :func:`summarize`; the samples are on disk then.
        OSError: if a file cannot be written; what was there before the write that failed stays.
    """
    folder = Path(folder)
    problems = write_samples(folder, records)
    results = {**summarize(problems), "config": dict(config), "versions": dict(versions)}
    text = to_json(results, indent=2)
    write_file(folder / RESULTS, [text, "\n"])
    restored: dict[str, Any] = json.loads(text)
    return restored


def write_samples(
    folder: str | os.PathLike[str], records: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Write ``samples.jsonl`` alone, for records without labels; returns what was written."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    by_problem: dict[tuple[str, str], Mapping[str, Any]] = {}
    for record in records:
        by_problem.setdefault((record["dataset"], record["id"]), record)
    problems = list(by_problem.values())
    aside = write_aside(folder / SAMPLES, (f"{to_json(record)}\n" for record in problems))
    (folder / RESULTS).unlink(missing_ok=True)
    os.replace(aside, folder / SAMPLES)
    return problems


def read_samples(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read a samples file.

    Raises:
        ConfigError: naming the file and the line that is no sample record or repeats one.
    """
    return read_lines(Path(path), _check_record, SAMPLES)


def package_versions() -> dict[str, str | None]:
    """Versions of what a result depends on; None of a package that is not installed."""
    return {
        "svr_lightning": svr_lightning.__version__,
        **{
            name: _version(name)
            for name in ("torch", "lightning", "transformers", "torchmetrics", "sympy")
        },
        "python": platform.python_version(),
    }


def _dataset_values(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # Other ranks are elsewhere when one of them writes files: it must not wait for them.
    metrics = TrajectoryMetrics(sync_on_compute=False)
    metrics.update(records)
    values = metrics.compute()
    interval = wilson_interval(values["accuracy"], int(values["n"]))
    return {**{k: finite(v) for k, v in values.items()}, "accuracy_ci95": interval}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _is_verdict(value: Any) -> bool:
    return is_text(value) and value in set(Verdict)


_RECORD_FIELDS = {
    "dataset": (is_text, "a string"),
    "id": (is_text, "a string"),
    "question": (is_text, "a string"),
    "returned_turn": (is_count, "a whole number"),
    "stopped_early": (is_flag, "true or false"),
    "turns": (is_list, "a list"),
}
_TURN_FIELDS = {
    "turn": (is_count, "a whole number"),
    "text": (is_text, "a string"),
    "correct": (lambda value: value is None or is_flag(value), "true, false or null"),
    "verdict": (_is_verdict, "one of " + ", ".join(Verdict)),
    "confidence": (is_share, "a number in [0, 1]"),
    "truncated": (is_flag, "true or false"),
    "prompt_tokens": (is_count, "a whole number"),
    "completion_tokens": (is_count, "a whole number"),
}
_OPTIONAL_OF_RECORD = {"observed_turns": (is_count, "a whole number")}
_OPTIONAL_OF_TURN = {
    "answer": (lambda value: value is None or is_text(value), "a string or null"),
    "verdict_probability": (
        lambda value: value is None or is_share(value),
        "a number in [0, 1] or null",
    ),
}


def _check_record(record: Any) -> None:
    check_fields(record, _RECORD_FIELDS, "record")
    check_fields(record, _present(_OPTIONAL_OF_RECORD, record), "record")
    for index, turn in enumerate(record["turns"], start=1):
        check_fields(turn, _TURN_FIELDS, f"turn {index}")
        check_fields(turn, _present(_OPTIONAL_OF_TURN, turn), f"turn {index}")
        if turn["turn"] != index:
            raise ValueError(f"turn {index} says that it is turn {turn['turn']}")
    if bool(record["turns"]) == (record.get("error") is not None):
        raise ValueError("the record must have either turns or an 'error'")
    if not min(1, len(record["turns"])) <= record["returned_turn"] <= len(record["turns"]):
        raise ValueError(f"returned_turn {record['returned_turn']} is not among its turns")
    observed = record.get("observed_turns", record["returned_turn"])
    if not record["returned_turn"] <= observed <= len(record["turns"]):
        raise ValueError(
            f"observed_turns {observed} does not lie between the returned and the last"
        )


def _present(fields: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: check for name, check in fields.items() if name in value}
