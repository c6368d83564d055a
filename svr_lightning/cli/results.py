"""The table that ends ``test`` and ``validate``."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from svr_lightning.display import plain

_COLUMNS = (
    ("accuracy", "{:.3f}"),
    ("95 %", ""),
    ("turns", "{:.2f}"),
    ("tokens", "{:.0f}"),
    ("ESR", "{:.3f}"),
    ("PSE", "{:.3f}"),
    ("Brier", "{:.3f}"),
)
_KEYS = {
    "tokens": "avg_total_tokens",
    "ESR": "esr",
    "PSE": "pse",
    "Brier": "brier",
}


def print_results(file: Path) -> None:
    """Print a results file, at most 80 columns wide, and the folder it lies in."""
    results = json.loads(file.read_text(encoding="utf-8"))
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("data set", overflow="ellipsis", no_wrap=True, max_width=24)
    table.add_column("n", justify="right")
    for name, _ in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for name, values in _rows(results):
        cells = [_cell(values, column, form) for column, form in _COLUMNS]
        table.add_row(Text(plain(name)), str(values.get("n", "")), *cells)
    console = Console()
    console.print(table)
    console.print(Text(f"{file.parent}: samples.jsonl, results.json"), soft_wrap=True)


def _rows(results: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every data set; of several, their averages."""
    datasets = results["datasets"]
    yield from datasets.items()
    for name, average in results["macro"].items():
        if len(average["datasets"]) > 1 and not average["missing"]:
            yield f"average ({name}, {len(average['datasets'])} sets)", average


def _cell(values: Mapping[str, Any], column: str, form: str) -> str:
    if not form:
        interval = values.get("accuracy_ci95")
        return "" if interval is None else f"{interval[0]:.3f}-{interval[1]:.3f}"
    value = values.get(_KEYS.get(column, column))
    return "--" if value is None else form.format(value)
