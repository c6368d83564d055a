"""The two files that every evaluation leaves: ``samples.jsonl`` and ``results.json``.

Every number of the second is computed from the first.
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import svr_lightning
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.metrics import summarize
from svr_lightning.evaluation.records import SAMPLES, SampleRecord, record_line, unique
from svr_lightning.files import to_json, write_aside, write_file

RESULTS = "results.json"
_DEPENDENCIES = ("torch", "lightning", "transformers", "torchmetrics", "sympy")


def write_results(
    folder: str | os.PathLike[str],
    records: Sequence[SampleRecord],
    config: Mapping[str, Any],
    versions: Mapping[str, Any],
) -> dict[str, Any]:
    """Write ``samples.jsonl``, one line per problem, then ``results.json``.

    Samples are written first, so that they are kept even if they cannot be summarized. What is not
    finite becomes null; what JSON does not know becomes a string.

    Args:
        folder: created if missing.
        records: one per problem; of repeated ones the first is written.
        config: what the run was configured with, stored as it is.
        versions: see :func:`package_versions`.

    Returns:
        The content of ``results.json``.

    Raises:
        ValueError: see :func:`summarize`; the samples are on disk then.
        OSError: if a file cannot be written; what was there before the write that failed stays.
    """
    problems = write_samples(folder, records)
    results = {**summarize(problems), "config": dict(config), "versions": dict(versions)}
    text = to_json(results, indent=2)
    write_file(Path(folder) / RESULTS, [text, "\n"])
    restored: dict[str, Any] = json.loads(text)
    return restored


def write_samples(
    folder: str | os.PathLike[str], records: Sequence[SampleRecord]
) -> list[SampleRecord]:
    """Write ``samples.jsonl`` alone, for records without labels; returns what was written.

    A results file never stands beside other samples than its own: it is removed.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    problems = unique(records)
    aside = write_aside(folder / SAMPLES, map(record_line, problems))
    (folder / RESULTS).unlink(missing_ok=True)
    os.replace(aside, folder / SAMPLES)
    return problems


def read_results(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a results file holds; empty if there is none.

    Raises:
        ConfigError: if it cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        return {}
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: no results file ({error}); mend or remove it") from error
    return results if isinstance(results, dict) else {}


def setting(config: Mapping[str, Any], *keys: str) -> Any:
    """A value under nested keys of a configuration; None if it is not there."""
    found: Any = config
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def package_versions() -> dict[str, str | None]:
    """Versions of what a result depends on; None of a package that is not installed."""
    return {
        "svr_lightning": svr_lightning.__version__,
        **{name: _version(name) for name in _DEPENDENCIES},
        "python": platform.python_version(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
